"""Import this before paddle: it prepares the process (`environment.prepare`).

The `__init__` of every package with modules that import Paddle does, and so do those of this one.
"""

from fleetbert.compat import environment

environment.prepare()
