"""What gRPC tells about a failed call, in the words of the Rpc port."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from strandline.proto.ids import Endpoint
from strandline.proto.ports import RpcError, RpcRejected, RpcTimeout, RpcUnavailable

_REFUSED = "Connection refused"
"""Core's text for ECONNREFUSED; it has no field for it. A test holds this against the installed gRPC."""

_BROKEN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,  # the server ended the call while it stopped
        grpc.StatusCode.INTERNAL,  # RST_STREAM, a half-written frame: handlers' own errors come as UNKNOWN
    }
)


def rpc_error(error: grpc.aio.AioRpcError, endpoint: Endpoint, method: str) -> RpcError:
    """The port's error for one of gRPC's.

    `refused` is set when nobody listens at the endpoint: gRPC repeats the last attempt's outcome until its next one,
    at most RECONNECT_BACKOFF_MAX_MS later.
    """
    code, details = error.code(), error.details() or ""
    where = f"{method} at {endpoint}: {details or code.name}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RpcTimeout(where)
    if code in _BROKEN:
        return RpcUnavailable(where, refused=_REFUSED in details)
    return RpcRejected(where)


def task_is_cancelled() -> bool:
    """The running task itself was cancelled, and not only the gRPC call that it waits for."""
    task: asyncio.Task[Any] | None = asyncio.current_task()
    return task is not None and task.cancelling() > 0
