"""An S3 server in the process of the tests: moto's, whose conditional writes are atomic here, as those of S3 are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Lock, Thread
from typing import Any

import pytest

Environ = dict[str, Any]
App = Callable[[Environ, Any], Iterable[bytes]]


def served_s3() -> Iterator[str]:
    """The address of an S3 server on a free port, for as long as the generator lives."""
    reason = "moto is not installed: pip install 'moto[server]'"
    apps = pytest.importorskip("moto.moto_server.werkzeug_app", reason=reason)
    serving = pytest.importorskip("werkzeug.serving", reason=reason)
    app = one_write_at_a_time(apps.DomainDispatcherApplication(apps.create_backend_app))
    handler = apps.MotoRequestHandler
    server = serving.make_server("127.0.0.1", 0, app, threaded=True, request_handler=handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    host, port = server.server_address[:2]
    yield f"http://{host}:{port}"
    server.shutdown()
    thread.join()
    server.server_close()


def one_write_at_a_time(app: App) -> App:
    """moto looks for a key and writes it in two steps: of two requests with If-None-Match both may find nothing."""
    lock = Lock()

    def served(environ: Environ, start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return app(environ, start_response)
        with lock:
            return app(environ, start_response)

    return served
