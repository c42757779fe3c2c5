"""The server for GPU and x86: HTTP and gRPC over `fleetbert.engines`.

A request goes one way: `protocol` (bytes → a checked request) → `scheduler` (token ids, the queue
that counts them) → `workers` (rows, the engine) → its response. `repository` says which versions
are served, `ops` what operators see, `server` opens the ports.

Never imports train, models, compress, PaddleNLP or PaddleSlim. The process that listens imports no
Paddle either: engines run in worker processes of their own.
"""
