"""`fleetbert bench`: how fast a user's own bundle, server and training are on this machine.

`infer.py`, `serve.py` and `train.py` each have a command, its measuring and its report. What they
time runs in processes of its own (`*_worker.py`, `serve_client.py`), which take turns (`measure`).
How this project does beside other engines is measured in `tests/benchmarks/`.
"""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here
