"""The internal listener: the Rpc port over gRPC, with health checks and reflection."""

from __future__ import annotations

import os

# Core would write lines of its own to standard error at every GOAWAY, beside our structured log. Read when grpc is
# first imported, which happens in this folder alone.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
