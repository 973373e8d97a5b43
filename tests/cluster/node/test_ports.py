"""A taken port is explained."""

from __future__ import annotations

import os
import socket

from strandline.cluster.node.ports import holder_of, is_free
from strandline.proto.ids import Endpoint


def test_the_holder_of_a_port_is_named() -> None:
    """Bad input, a taken port: the process that holds it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen(1)
        endpoint = Endpoint("127.0.0.1", held.getsockname()[1])
        assert not is_free(endpoint)
        assert f"process {os.getpid()} (" in holder_of(endpoint.port)
    assert is_free(endpoint)
    assert "another process" in holder_of(endpoint.port)
