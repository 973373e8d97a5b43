"""A taken port is explained."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from strandline.cluster.node.ports import HeldPorts, holder_of, is_free
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


@pytest.mark.skipif(sys.platform != "linux", reason="ports are held on Linux alone")
def test_a_held_port_is_given_to_nobody_and_free_for_a_server() -> None:
    """Neither who asks for any port nor an outgoing connection gets it; who asks for it, as servers do, may listen."""
    ports = HeldPorts("127.0.0.1")
    port, *others = ports.any(3)
    try:
        assert len({port, *others}) == 3
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        assert is_free(Endpoint("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)):
            pass
        ports.hold(port)
    finally:
        ports.release()
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))


def test_a_port_that_somebody_has_is_not_held() -> None:
    """Who starts a server there is told by the server."""
    ports = HeldPorts("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports.hold(server.getsockname()[1])
    ports.release()
