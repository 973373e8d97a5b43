"""Is a port free, and if not, who holds it."""

from __future__ import annotations

import socket

from strandline.proto.ids import Endpoint


def is_free(endpoint: Endpoint) -> bool:
    """Whether somebody could listen there now (port 0: always)."""
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind((endpoint.host, endpoint.port))
            probe.listen(1)
        except OSError:
            return False
    return True


def holder_of(port: int) -> str:
    """Who listens on a port of this machine, in words; what the operating system does not tell stays unknown."""
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
