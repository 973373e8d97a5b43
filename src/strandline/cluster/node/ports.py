"""Binding of ports, checks whether a port is free or which process uses it, and reservation of ports for nodes that
start later."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence
from typing import Any

from strandline.proto.ids import WILDCARDS, Endpoint

_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of a machine that has IPv6 switched off."""


class HeldPorts:
    """Reserved ports of one address. The system gives them neither to a server on any free port nor to an outgoing
    connection.

    Each port has a socket with SO_REUSEADDR that is bound but never listens. Servers also set that option, and so can
    listen on the port. This works on Linux only; elsewhere no port is reserved.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._sockets: dict[int, socket.socket] = {}

    def any(self, count: int) -> list[int]:
        """Find `count` free ports, all different. Raises OSError."""
        taken = [self._bind(0) for _ in range(count)]
        ports: list[int] = [each.getsockname()[1] for each in taken]
        self._sockets.update(zip(ports, taken, strict=True))
        if sys.platform != "linux":
            self.release()
        return ports

    def hold(self, port: int) -> None:
        """Reserve this port. If another process uses it, nothing is done: a server that starts there gets the error."""
        if port not in self._sockets and sys.platform == "linux":
            try:
                self._sockets[port] = self._bind(port)
            except OSError:
                return

    def release(self) -> None:
        """Release all reserved ports."""
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()

    def _bind(self, port: int) -> socket.socket:
        held = socket.socket()
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((self._host, port))
        except OSError:
            held.close()
            raise
        return held


def bind_everywhere(port: int) -> socket.socket:
    """Bind a port on all addresses of this machine, IPv4 and (if it is enabled) IPv6. Raises OSError."""
    if socket.has_dualstack_ipv6():
        try:
            return bind(socket.AF_INET6, ("::", port), both=True)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
    return bind(socket.AF_INET, ("0.0.0.0", port))


def bind_each(addresses: Sequence[tuple[int, tuple[Any, ...]]]) -> list[socket.socket]:
    """Bind all addresses of a name. Raises OSError if one fails; then none stays bound."""
    bound: list[socket.socket] = []
    try:
        for family, address in addresses:
            bound.append(bind(family, address))
    except OSError:
        for each in bound:
            each.close()
        raise
    return bound


def bind(family: int, address: tuple[Any, ...], *, both: bool = False) -> socket.socket:
    """Return a bound socket. `both`: an IPv6 socket accepts IPv4 too. Raises OSError; its message has the address."""
    # asyncio sets TCP_NODELAY only on sockets that name their protocol. Without it a small frame that follows another
    # would wait 40 ms for the peer's delayed ACK.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        if family == socket.AF_INET6:
            # rule A23/every-address-is-of-one-family
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
        bound.bind(address)
    except OSError as error:
        bound.close()
        where = Endpoint(str(address[0]), int(address[1]))
        raise OSError(error.errno, f"{where} cannot be bound: {error.strerror}") from None
    return bound


def is_free(endpoint: Endpoint) -> bool:
    """True if a server could listen at the endpoint now (always for port 0)."""
    host, port = endpoint
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with bind_everywhere(port) if host in WILDCARDS else bind(family, (host, port)) as probe:
            probe.listen(1)
    except OSError:
        return False
    return True


def holder_of(port: int) -> str:
    """Return a sentence that names the process which listens on a port of this machine, as far as the system tells."""
    import psutil  # only after a failure

    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        connections = []
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,):
            return f"process {connection.pid} ({_command_of(connection.pid)}) holds {port}"
    return f"another process holds {port}"


def _command_of(pid: int | None) -> str:
    import psutil

    if pid is None:
        return "of another user"
    try:
        command = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return "which is gone by now"
    return command if len(command) <= 80 else command[:77] + "..."
