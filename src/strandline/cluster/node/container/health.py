"""The health check of a container's node, for HEALTHCHECK, as the image has no curl.

It runs as a new process every few seconds, and imports are most of its work. So it reads only the variable with the
listeners wherever that is enough; reading all settings would cost half a second of CPU each time, more than an idle
node uses. On a busy machine that took longer than the image's timeout, so that healthy nodes were reported unhealthy.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from strandline.cluster.node.config_values import HTTP, environment_name, parse_listeners
from strandline.proto.ids import Endpoint

TIMEOUT_S = 2.5
"""Timeout in seconds of the check: below that of the image's health check, so that the reason is recorded."""

_LISTENERS = environment_name("listeners")
_PROTOCOLS = environment_name("listener.security.protocol.map")
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def ask(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[bool, str]:
    """GET /readyz from the node's HTTP listener. Returns (whether it answers 200, its text). Raises ConfigError."""
    if arguments or _LISTENERS not in environment or _PROTOCOLS in environment:
        connection = _by_all_settings(arguments, environment)
    else:
        listeners = dict(parse_listeners(_LISTENERS, environment[_LISTENERS]))
        connection = (
            http.client.HTTPConnection(*_own(listeners[HTTP]), timeout=TIMEOUT_S) if HTTP in listeners else None
        )
    if connection is None:
        return False, "`listeners` has no HTTP listener to ask"
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return False, f"{connection.host}:{connection.port} does not answer: {error}"
    finally:
        connection.close()
    return answer.status == HTTPStatus.OK, text


def _by_all_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> http.client.HTTPConnection | None:
    """Return a connection to the node's HTTP listener, over TLS if it speaks TLS: with the node's own certificate, and
    without a check of the listener's, which is the same. None: there is no HTTP listener. Raises ConfigError."""
    import ssl

    from strandline.cluster.node.config_security import tls_settings
    from strandline.cluster.node.container.settings import load
    from strandline.cluster.node.settings import SSL
    from strandline.proto.tls import client_context

    config = load(arguments, environment)
    if config.http is None:
        return None
    host, port = _own(config.http)
    if config.protocol(HTTP) != SSL:
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    context = client_context(tls_settings(config.of_listener(HTTP), HTTP), check_host=False)
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def _own(bound: Endpoint) -> tuple[str, int]:
    """Return the address at which this machine reaches its own listener: loopback for one bound to all addresses."""
    return _LOOPBACK.get(bound.host, bound.host), bound.port
