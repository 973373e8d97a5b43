"""gRPC's status codes, and what they mean to a caller of the Rpc port."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.proto.ports import RpcError, RpcRejected, RpcTimeout, RpcUnavailable

OK, CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 0, 1, 2, 4, 5, 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 12, 13, 14

_BROKEN = frozenset({CANCELLED, INTERNAL, UNAVAILABLE})
"""The server stops, or the transport failed: errors of handlers come as UNKNOWN."""

_HTTP_BROKEN = frozenset({b"429", b"502", b"503", b"504"})
"""HTTP statuses that gRPC takes for UNAVAILABLE (doc/http-grpc-status-mapping.md of gRPC)."""


def status_of(headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
    """The status and its words that a response's headers or trailers carry, if they do."""
    from urllib.parse import unquote  # only calls that fail have words

    found: dict[bytes, bytes] = dict(headers)
    http = found.get(b":status", b"200")
    if http != b"200":
        code = UNAVAILABLE if http in _HTTP_BROKEN else UNKNOWN
        return code, f"the peer answers with HTTP status {http.decode(errors='replace')}"
    code_text = found.get(b"grpc-status")
    if code_text is None:
        return None
    words = found.get(b"grpc-message", b"")
    code = int(code_text) if code_text.isdigit() and len(code_text) < 4 else UNKNOWN
    return code, unquote(words.decode("latin-1")) if words else ""


def rpc_error(code: int, words: str, where: str) -> RpcError:
    """The port's error for a status that is not OK."""
    text = f"{where}: {words or f'gRPC status {code}'}"
    if code == DEADLINE_EXCEEDED:
        return RpcTimeout(text)
    return RpcUnavailable(text) if code in _BROKEN else RpcRejected(text)


class CallError(Exception):
    """A handler's answer is this status and no reply."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
