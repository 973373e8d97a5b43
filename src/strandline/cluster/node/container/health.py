"""The health check of a container's node: for HEALTHCHECK, where an image has no curl."""

from __future__ import annotations

import http.client
import ssl
from http import HTTPStatus

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_security import tls_settings
from strandline.cluster.node.settings import HTTP, SSL
from strandline.proto.errors import ConfigError
from strandline.proto.tls import client_context

TIMEOUT_S = 2.5
"""Seconds for the check: below the time limit of the image's health check, so that the reason gets into its record.
"""

_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def ask(config: NodeConfig) -> tuple[bool, str]:
    """GET /readyz of the node's own HTTP listener: whether it answers 200, and what it says."""
    if config.http is None:
        return False, "`listeners` has no HTTP listener to ask"
    host, port = _LOOPBACK.get(config.http.host, config.http.host), config.http.port
    try:
        connection = _connection(config, host, port)
    except ConfigError as error:
        return False, str(error)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return False, f"{host}:{port} does not answer: {error}"
    finally:
        connection.close()
    return answer.status == HTTPStatus.OK, text


def _connection(config: NodeConfig, host: str, port: int) -> http.client.HTTPConnection:
    """Connection to this node's own listener: with its own certificate, and without a look at what it shows, for it
    is its own. Raises ConfigError."""
    if config.protocol(HTTP) != SSL:
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    context = client_context(tls_settings(config.of_listener(HTTP), HTTP), check_host=False)
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
