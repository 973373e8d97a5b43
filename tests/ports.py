"""Free ports for servers whose ports must be known before they start."""

from __future__ import annotations

from strandline.cluster.node.ports import HeldPorts

_held = HeldPorts("127.0.0.1")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that nobody else gets before this process ends: not the cluster of another
    worker, and no outgoing connection."""
    return _held.any(count)


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
