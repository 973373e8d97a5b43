"""Does the node in this container do its work? For HEALTHCHECK, where an image has no curl."""

from __future__ import annotations

import http.client
from http import HTTPStatus

from strandline.cluster.node.config import NodeConfig

TIMEOUT_S = 2.5
"""Below the time limit of the image's health check, so that the reason gets into its record."""

_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def ask(config: NodeConfig) -> tuple[bool, str]:
    """GET /readyz of the node's own HTTP listener: whether it answers 200, and what it says."""
    if config.http is None:
        return False, "`listeners` has no HTTP listener to ask"
    host, port = _LOOPBACK.get(config.http.host, config.http.host), config.http.port
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return False, f"{host}:{port} does not answer: {error}"
    finally:
        connection.close()
    return answer.status == HTTPStatus.OK, text
