"""Clients of another protocol on the Kafka port: a sentence that says so helps more than a frame size of 1.2 GB."""

from __future__ import annotations

_HTTP_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI ")
_TLS_HANDSHAKE = 0x16
_TLS_MAJOR = 0x03


def describe_intruder(start: memoryview) -> str:
    """What speaks there, by the first bytes of what should be a frame; "" if they tell nothing."""
    head = bytes(start[:4])
    if head in _HTTP_METHODS:
        line = bytes(start).split(b"\r\n", 1)[0].decode("ascii", "replace")
        return f"an HTTP request ({line!r}) on the Kafka port; HTTP is served on a port of its own (metrics, health)"
    if len(head) >= 2 and head[0] == _TLS_HANDSHAKE and head[1] == _TLS_MAJOR:
        return "a TLS handshake on a plaintext Kafka port; the client should use security.protocol=PLAINTEXT"
    if head == b"SSH-":
        return "an SSH client on the Kafka port"
    return ""
