"""gRPC channel options of the internal port, and why each is as it is."""

from __future__ import annotations

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""The largest frame either side accepts: gRPC ends a call, or a whole stream, over one that is larger. Frames of the
replication streams have at most about 2 MiB, whatever batches they carry; calls of the controller name each partition
that they are about, and 10,000 take about a megabyte."""

KEEPALIVE_TIME_MS = 5_000
"""A connection without traffic is probed after this: a machine that lost its power sends no FIN."""

KEEPALIVE_TIMEOUT_MS = 5_000
"""A probe without an answer for so long breaks the connection (it also becomes TCP_USER_TIMEOUT)."""

RECONNECT_BACKOFF_MIN_MS = 100
"""First wait after a refused connection; gRPC's own floor."""

RECONNECT_BACKOFF_MAX_MS = 300
"""Later waits: a node that came back is found within this, and few nodes ask, so the storm is small."""

CONNECT_TIMEOUT_MS = 2_000
"""A connection attempt into nothing (a blackholed host) is given up after this; gRPC's default is 20 s."""

_COMMON: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Else a probe that TCP delivers and nobody answers (a path cut in one direction, a stopped process) waits for 60 s.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON,
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_BACKOFF_MIN_MS),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_BACKOFF_MAX_MS),
    ("grpc.enable_retries", 0),  # our own callers retry, with their own deadlines
    ("grpc.use_local_subchannel_pool", 1),  # two nodes in one process (tests) do not share connections
    ("grpc.enable_http_proxy", 0),  # nodes of a cluster are never behind the user's http_proxy
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON,
    ("grpc.so_reuseport", 0),  # a taken port must fail, not share connections with whoever has it
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
)
