"""The Open Inference Protocol v2: HTTP and gRPC, and the one validation that both go through."""
