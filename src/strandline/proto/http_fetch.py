"""Asynchronous HTTP and HTTPS client for a single request. The response is bounded in time and size.

Redirects are not followed: a request may carry secrets, which are meant for the configured address only.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import h11

from strandline.proto.errors import StrandlineError
from strandline.proto.tls import TRUST, explain, is_tls_error

ANSWER_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a response body. Kafka's clients accept as much from a token endpoint; a set of public keys (JWKS)
takes a few kilobytes."""

_PORTS = {"http": 80, "https": 443}
_READ_BYTES = 64 * 1024


class FetchFailed(StrandlineError):
    """The request failed. The message gives the reason, and never contains sent or received data."""


class Address(NamedTuple):
    """Parts of an HTTP or HTTPS URL.

    Attributes:
        tls: True for https.
        authority: host and port as written in the URL.
        target: path and query, for the request line.
    """

    tls: bool
    host: str
    port: int
    authority: str
    target: str


class Answer(NamedTuple):
    """HTTP response: status code and whole body."""

    status: int
    body: bytes


def parse_address(url: str) -> Address:
    """Parse `http://...` or `https://...`. Raises ValueError if `url` is neither, or contains a user or a password."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname or not re.fullmatch("[!-~]+", url) or "@" in parts.netloc:
        raise ValueError(f"no address of HTTP: {url}")
    parts.hostname.encode("idna")  # the look-up of the name would fail later for the same reason
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    port = parts.port or _PORTS[parts.scheme]
    return Address(parts.scheme == "https", parts.hostname, port, parts.netloc, target)


async def fetch(
    address: Address,
    tls: ssl.SSLContext | None,
    *,
    connect_timeout_s: float,
    read_timeout_s: float,
    headers: Mapping[str, str] | None = None,
    form: bytes | None = None,
    trust: str = TRUST,
) -> Answer:
    """Send a GET request, or a POST request if `form` is given.

    Args:
        tls: context for an https address; None for http.
        connect_timeout_s: seconds to connect.
        read_timeout_s: seconds to send the request and receive the whole response.
        form: encoded form fields to send.
        trust: name of the setting that lists the CAs trusted by `tls`, for error messages.

    Raises:
        FetchFailed: no connection, no response in time, not valid HTTP, or a body of more than `ANSWER_BYTES_MAX`.
    """
    try:
        async with asyncio.timeout(connect_timeout_s):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls if address.tls else None)
    except TimeoutError:
        raise FetchFailed(f"no connection within {connect_timeout_s:g} s") from None
    except OSError as error:
        raise FetchFailed(_words(error, trust)) from None
    try:
        async with asyncio.timeout(read_timeout_s):
            return await _ask(reader, writer, address, headers or {}, form)
    except TimeoutError:
        raise FetchFailed(f"no whole answer within {read_timeout_s:g} s") from None
    except OSError as error:
        raise FetchFailed(_words(error, trust)) from None
    except h11.ProtocolError:  # its message may contain received data, which may repeat the secrets that were sent
        raise FetchFailed("what answers there does not speak HTTP/1.1, or stops in the middle") from None
    finally:
        writer.transport.abort()  # the response is complete: do not wait for the peer to close


async def _ask(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    address: Address,
    headers: Mapping[str, str],
    form: bytes | None,
) -> Answer:
    machine = h11.Connection(h11.CLIENT)
    all_headers = {"Host": address.authority, "Accept": "application/json", "Connection": "close", **headers}
    if form is not None:
        all_headers |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(form))}
    method = "GET" if form is None else "POST"
    events: list[h11.Event] = [h11.Request(method=method, target=address.target, headers=list(all_headers.items()))]
    events += [h11.Data(data=form)] if form is not None else []
    writer.write(b"".join(machine.send(event) or b"" for event in (*events, h11.EndOfMessage())))
    status, body = 0, bytearray()
    while True:
        event = machine.next_event()
        if event is h11.NEED_DATA:
            machine.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > ANSWER_BYTES_MAX:
                raise FetchFailed(f"status {status} with more than {ANSWER_BYTES_MAX} bytes")
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return Answer(status, bytes(body))


def _words(error: OSError, trust: str) -> str:
    if is_tls_error(error):
        return explain(error, trust)
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno)
