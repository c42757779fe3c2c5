"""The server for GPU and x86: HTTP and gRPC over `fleetbert.engines`.

Never imports train, model, compress, PaddleNLP or PaddleSlim. The process that listens imports no
Paddle either: engines run in worker processes of their own.
"""
