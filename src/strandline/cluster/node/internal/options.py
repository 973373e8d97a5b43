"""Bounds and times of the internal port, and why each is as it is; and the h2 library, set up by them."""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""The largest message either side sends or takes. Frames of the replication streams have at most about 2 MiB, whatever
batches they carry; calls of the controller name each partition that they are about, and 10,000 take about a
megabyte."""

STREAM_WINDOW_BYTES = 2 * 1024 * 1024
"""Bytes that a peer may send on a stream before its reader has consumed any: two frames of replication."""

CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
"""The same for all streams of a connection together. A node gives each of its streams a connection of its own, so that
a slow reader keeps nobody else waiting."""

DATA_FRAME_BYTES_MAX = 1024 * 1024
"""Bytes of one HTTP/2 frame of DATA at most, in either direction; gRPC's own limit of 16 KiB would cut a message
into 64 writes."""

CONTROL_FRAME_BYTES_MAX = 16 * 1024
"""Bytes of any other frame, which is held until it is complete, and of all headers of a request, at most."""

STREAMS_MAX = 1024
"""Streams and calls that a peer may have open over one connection."""

UNPAID_FRAMES_MAX = 1000
"""Frames without data that may come in KEEPALIVE_S, for which no data paid: a frame of DATA that came pays for one
(gRPC probes the path, PING, when data come), one that was sent for two (WINDOW_UPDATE of stream and connection)."""

WRITE_BUFFER_BYTES = 512 * 1024
"""Bytes in the write buffer, not yet taken by the socket, above which a writer waits."""

KEEPALIVE_S = 5.0
"""Seconds of silence after which a peer is probed, and after as long again given up: a machine that lost its power
sends no FIN, and a path that is cut in one direction, or a process that is stopped, none either."""

RECONNECT_BACKOFF_MS = (100.0, 300.0)
"""First and longest wait after a failed attempt: a node that came back is found within this, and few nodes ask, so the
storm is small."""

CONNECT_TIMEOUT_S = 2.0
"""A connection attempt into nothing (a host that does not answer) is given up after this."""

HANDLER_GRACE_S = 5.0
"""Seconds that a stream's handler may go on after its peer is gone: it notices at its next read or write."""


def h2_connection(*, client: bool) -> H2Connection:
    """One end of a connection, with our settings."""
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
    """An error code of HTTP/2 in words."""
    return next((known.name for known in ErrorCodes if known == code), str(code))
