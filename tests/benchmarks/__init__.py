"""This project beside others; `python tests/benchmarks --help`."""
