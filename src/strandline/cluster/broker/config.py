"""Limits of the Kafka listener."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """Under Kafka's names where Kafka has them.

    Attributes:
        request_bytes_max: the largest Produce frame (`socket.request.max.bytes`).
        small_request_bytes_max: the largest frame of every other API. Their elements are small, so a frame of the size
            that batches need would decode into millions of objects and hold the event loop for seconds.
        idle_ms_max: a connection without traffic for this long is closed (`connections.max.idle.ms`).
        requests_in_flight_max: unanswered requests of one connection; more are not read from the socket.
        queued_bytes_max: answers of one connection that wait behind an unfinished one; more requests are not read.
        write_buffer_bytes: unsent bytes of one connection above which no more of its requests are read.
        stalled_ms_max: while the node's memory budget is used up, a connection that holds the most of it without any
            progress for this long is closed.
    """

    request_bytes_max: int = 100 * MIB
    small_request_bytes_max: int = 4 * MIB
    idle_ms_max: int = 600_000
    requests_in_flight_max: int = 128
    queued_bytes_max: int = 4 * MIB
    write_buffer_bytes: int = 1 * MIB
    stalled_ms_max: int = 10_000
