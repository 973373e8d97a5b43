"""The h2 library, set up for connections between nodes."""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings

from strandline.cluster.node.internal.options import (
    CONTROL_FRAME_BYTES_MAX,
    DATA_FRAME_BYTES_MAX,
    STREAM_WINDOW_BYTES,
    STREAMS_MAX,
)


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
