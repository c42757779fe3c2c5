"""From a bundle to answers. Never imports train, model, PaddleNLP or PaddleSlim."""
