"""Limits and timeouts of the internal port, with their reasons; and the set-up of the h2 library by them."""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of a message, sent or received. Messages of replication streams have at most about 2 MiB; calls of the
controller list the partitions that they concern, and 10,000 partitions take about a megabyte."""

STREAM_WINDOW_BYTES = 2 * 1024 * 1024
"""Bytes that a peer may send on a stream before its reader has consumed any: two frames of replication."""

CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes that a peer may send on all streams of a connection before any are consumed. A node gives each of its streams a
connection of its own, so that a slow reader delays no other stream."""

DATA_FRAME_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a DATA frame of HTTP/2, in either direction; gRPC's own limit of 16 KiB would need 64 writes for a
message of this size."""

CONTROL_FRAME_BYTES_MAX = 16 * 1024
"""Maximum bytes of any other frame, which is held until it is complete, and of all headers of a request."""

STREAMS_MAX = 1024
"""Maximum streams and calls that a peer may have open on one connection."""

UNPAID_FRAMES_MAX = 1000
"""Frames without data that a peer may send in KEEPALIVE_S beyond those that data allow: each received DATA frame allows
one more (gRPC sends PING when data arrive), each sent one two more (WINDOW_UPDATE of stream and connection)."""

WRITE_BUFFER_BYTES = 512 * 1024
"""Bytes in the write buffer, not yet taken by the socket, above which a writer waits."""

KEEPALIVE_S = 5.0
"""Seconds of silence after which a peer is probed; after the same time again without an answer the connection is ended.
A machine without power sends no FIN, and neither does a stopped process or a path that is cut in one direction."""

RECONNECT_BACKOFF_MS = (100.0, 300.0)
"""First and longest wait after a failed attempt to connect. A node that is back is found within this time; few nodes
try, so that the load is small."""

CONNECT_TIMEOUT_S = 2.0
"""Seconds after which an attempt to connect to a host that does not answer is given up."""

HANDLER_GRACE_S = 5.0
"""Seconds that a stream's handler may go on after its peer is gone: it notices at its next read or write."""


def h2_connection(*, client: bool) -> H2Connection:
    """Return h2's state machine for one end of a connection, with the settings of this module."""
    config = H2Configuration(
        client_side=client,
        header_encoding=None,
        validate_outbound_headers=False,  # what comes is checked; what we send is ours
        normalize_outbound_headers=False,
    )
    connection = H2Connection(config)
    of_the_role = {SettingCodes.ENABLE_PUSH: 0} if client else {SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX}
    connection.local_settings = Settings(
        client=client,
        initial_values={
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            SettingCodes.MAX_FRAME_SIZE: DATA_FRAME_BYTES_MAX,
            SettingCodes.MAX_HEADER_LIST_SIZE: CONTROL_FRAME_BYTES_MAX,
            **of_the_role,
        },
    )
    connection.decoder.max_header_list_size = CONTROL_FRAME_BYTES_MAX
    return connection


def name_of(code: int) -> str:
    """Return the name of an HTTP/2 error code, or its number if unknown."""
    return next((known.name for known in ErrorCodes if known == code), str(code))
