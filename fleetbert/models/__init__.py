"""BERT from PaddleNLP, its heads, loading of weights; knows nothing of devices or parallelism."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here
