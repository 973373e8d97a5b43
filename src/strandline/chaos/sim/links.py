"""Behaviour of links between machines: what is drawn for all of them, and what a fault has done to one."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.cluster.node.internal.options import MESSAGE_BYTES_MAX


@dataclass
class NetworkConfig:
    """Behaviour of a healthy network in this run. Times in microseconds of world time."""

    latency_min_us: int = 100
    latency_max_us: int = 1_000
    loss_probability: float = 0.0
    """Probability that a chunk arrives a retransmission later."""
    retransmit_us: int = 200_000
    give_up_us: int = 8_000_000
    """A sender whose data stays unacknowledged this long breaks the connection."""
    connect_timeout_us: int = 10_000_000
    window_bytes: int = 256 * 1024
    fragment_probability: float = 0.2
    coalesce_probability: float = 0.2
    late_probability: float = 0.0
    """Probability that a single call is carried out up to `late_max_us` later than it arrived, behind younger ones.
    """
    late_max_us: int = 400_000
    repeat_probability: float = 0.0
    """Probability that a single call is carried out a second time, up to `repeat_max_us` later. The second answer is
    dropped."""
    repeat_max_us: int = 3_000_000
    repeated_methods: tuple[str, ...] = ()
    """Methods of which calls are carried out once more, with `method_probability`, up to `method_max_us` later."""
    late_answers: tuple[str, ...] = ()
    """Methods whose answers are as late."""
    method_probability: float = 0.0
    method_max_us: int = 2_000_000
    frame_bytes_max: int = MESSAGE_BYTES_MAX
    """The largest request, reply or stream frame between nodes: what is larger is not sent, and ends its call."""


@dataclass
class Link:
    """One direction between two machines."""

    source: str
    target: str
    blocked: bool = False
    extra_latency_us: int = 0
    loss_probability: float = 0.0
    late_probability: float = 0.0
    repeat_probability: float = 0.0
