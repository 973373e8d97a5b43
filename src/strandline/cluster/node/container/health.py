"""The health check of a container's node: for HEALTHCHECK, where an image has no curl.

It is a process of its own every few seconds, and what it imports is most of its work. So it reads the variable with the
listeners alone wherever that says all; all settings would cost half a second of CPU each time, more than a node at
rest. A busy machine took longer for that than the time limit of the image, and called nodes unhealthy that served.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from strandline.cluster.node.config_values import HTTP, environment_name, parse_listeners
from strandline.proto.ids import Endpoint

TIMEOUT_S = 2.5
"""Seconds for the check: below the time limit of the image's health check, so that the reason gets into its record.
"""

_LISTENERS = environment_name("listeners")
_PROTOCOLS = environment_name("listener.security.protocol.map")
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def ask(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[bool, str]:
    """GET /readyz of the node's own HTTP listener: whether it answers 200, and what it says. Raises ConfigError."""
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
    """Connection to this node's own listener, over TLS where it speaks that: with its own certificate, and without a
    look at what it shows, for it is its own. Raises ConfigError."""
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
    """The address at which this machine itself reaches a listener."""
    return _LOOPBACK.get(bound.host, bound.host), bound.port
