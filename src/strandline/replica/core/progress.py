"""What a leader knows of one follower in its leader epoch."""

from __future__ import annotations

from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, NodeId


class FollowerProgress:
    """Offsets, in one leader epoch, of one follower: it begins unknown and is filled by a validated fetch.

    Invariants:
    - offset, durable offset and broker epoch are set together by a validated fetch, so that they are of one process
      (KAFKA-15221: judged on one snapshot);
    - durable_offset <= fetch_offset;
    - log_start_offset is durable there, too; -1 until the follower gave it;
    - counted_offset is what the high watermark may count on: the durable offset under flush.policy = ack, else the
      fetch offset; -1 until a fetch was validated in this leader epoch (kafka-tlaplus 6.5.4).
    """

    __slots__ = (
        "broker_epoch",
        "counted_offset",
        "durable_offset",
        "fetch_offset",
        "in_isr",
        "in_maximal_isr",
        "last_ack_ms",
        "last_caught_up_ms",
        "leader_end_at_last_ack",
        "log_start_offset",
        "node_id",
    )

    def __init__(self, node_id: NodeId, *, in_isr: bool, now_ms: float) -> None:
        self.node_id = node_id
        self.fetch_offset = -1
        self.durable_offset = -1
        self.counted_offset = -1
        self.log_start_offset = -1
        self.broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
        self.in_isr = in_isr
        self.in_maximal_isr = in_isr
        self.last_ack_ms = -1.0
        self.leader_end_at_last_ack = -1
        self.last_caught_up_ms = now_ms if in_isr else float("-inf")

    @property
    def fetched(self) -> bool:
        """A fetch of it was validated in this leader epoch."""
        return self.fetch_offset >= 0

    def forget(self) -> None:
        """Its offsets are void: another process of that node began to fetch, and was not found valid yet."""
        self.fetch_offset = self.durable_offset = self.counted_offset = -1
        self.leader_end_at_last_ack = -1
        if not self.in_isr:
            self.last_caught_up_ms = float("-inf")

    def advance(self, fetch_offset: int, durable_offset: int, counted: int, leader_end: int, now_ms: float) -> None:
        """It has everything below `fetch_offset`, and synced everything below `durable_offset`.

        It was caught up now if it is at the leader's end, and at the time of its previous ack if it has now what the
        leader had then (it cannot be expected to stand still with a leader that is written to).
        """
        self.fetch_offset = fetch_offset
        self.durable_offset = durable_offset
        self.counted_offset = counted
        if fetch_offset >= leader_end:
            self.last_caught_up_ms = now_ms
        elif self.leader_end_at_last_ack >= 0 and fetch_offset >= self.leader_end_at_last_ack:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_ack_ms)
        self.leader_end_at_last_ack = leader_end
        self.last_ack_ms = now_ms

    def caught_up(self, leader_end: int, lag_time_max_ms: float, now_ms: float) -> bool:
        """At the leader's end, or was so within the last `lag_time_max_ms` (Kafka's replica.lag.time.max.ms)."""
        return self.fetch_offset == leader_end or now_ms - self.last_caught_up_ms <= lag_time_max_ms
