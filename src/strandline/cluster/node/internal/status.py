"""gRPC's headers and status codes, and the errors of the Rpc port for them."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, unquote

from strandline.proto.ports import RpcError, RpcRejected, RpcTimeout, RpcUnavailable

OK, CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 0, 1, 2, 4, 5, 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 12, 13, 14

_BROKEN = frozenset({CANCELLED, INTERNAL, UNAVAILABLE})
"""Statuses of a stopping server or a failed transport; errors of handlers have the status UNKNOWN."""

_HTTP_BROKEN = frozenset({b"429", b"502", b"503", b"504"})
"""HTTP statuses that gRPC maps to UNAVAILABLE (doc/http-grpc-status-mapping.md of gRPC)."""

_CONTENT_TYPE = b"application/grpc"
RESPONSE_HEAD = ((b":status", b"200"), (b"content-type", _CONTENT_TYPE))
"""Headers of a response."""


def request_head(method: str, authority: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request."""
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", _CONTENT_TYPE),
    ]


def method_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the method of a request with these headers; "": it is no gRPC call."""
    found: dict[bytes, bytes] = dict(headers)
    if found.get(b":method") != b"POST" or not found.get(b"content-type", b"").startswith(_CONTENT_TYPE):
        return ""
    return found[b":path"].decode(errors="replace")


def trailers(code: int, words: str) -> list[tuple[bytes, bytes]]:
    """Return the trailers of a response: a status code and its message, if any."""
    found = [(b"grpc-status", b"%d" % code)]
    if words:
        found.append((b"grpc-message", quote(words, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~\"").encode()))
    return found


def status_of(headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
    """Return (status code, message) of a response's headers or trailers; None: they contain no status."""
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
    """Return the port's error for a status other than OK. `where`: the call, for the message."""
    text = f"{where}: {words or f'gRPC status {code}'}"
    if code == DEADLINE_EXCEEDED:
        return RpcTimeout(text)
    return RpcUnavailable(text) if code in _BROKEN else RpcRejected(text)


class CallError(Exception):
    """Raised by a handler to answer with this status instead of a reply."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
