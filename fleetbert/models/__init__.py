"""BERT from PaddleNLP, its heads, loading of weights; knows nothing of devices or parallelism."""
