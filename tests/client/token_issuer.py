"""A token endpoint for tests: a real server of HTTP or HTTPS, whose answers each test chooses."""

from __future__ import annotations

import json
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from tests.cluster.security.tls_case import ca

CLIENT, SECRET = "spark-job", "s3cr3t-do-not-show-me"


class Asked(NamedTuple):
    """A request: path, headers, and its form."""

    path: str
    headers: dict[str, str]
    form: dict[str, list[str]]

    @property
    def client(self) -> str:
        """`id:secret` of HTTP's basic authentication."""
        return b64decode(self.headers["authorization"].removeprefix("Basic ")).decode()


class Said(NamedTuple):
    """An answer; `slow_s` passes before each of its last three bytes."""

    status: int = 200
    body: bytes = b""
    slow_s: float = 0.0


def granted(token: str, **more: Any) -> Said:
    return Said(body=json.dumps({"access_token": token, "token_type": "Bearer", **more}).encode())


class Issuer:
    """What was asked, and what is answered next."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Said] = lambda _: granted(f"token-{len(self.asked)}", expires_in=3600)


@contextmanager
def issuer(*, tls: bool = True) -> Iterator[Issuer]:
    """A server on a free port of this machine; over TLS by a certificate of the tests' CA."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            asked = Asked(self.path, {name.lower(): value for name, value in self.headers.items()}, form)
            found.asked.append(asked)
            said = found.answer(asked)
            self.send_response(said.status)
            self.send_header("Content-Length", str(len(said.body)))
            if said.status == 302:
                self.send_header("Location", found.url + "/elsewhere")
            self.end_headers()
            try:
                self.wfile.write(said.body[:-3] if said.slow_s else said.body)
                for byte in said.body[-3:] if said.slow_s else b"":
                    time.sleep(said.slow_s)
                    self.wfile.write(bytes((byte,)))
            except OSError:
                pass  # the client has gone, as it should

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            pass  # a client that does not like the certificate

    server = Server(("127.0.0.1", 0), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(ca().node(1))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    found = Issuer(f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}/oauth/token")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
