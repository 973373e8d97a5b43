"""The internal listener: the Rpc port over gRPC, with health checks and reflection."""
