"""From a bundle to answers. Never imports train, model, PaddleNLP or PaddleSlim."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here
