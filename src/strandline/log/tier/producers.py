"""What the object store tells of the producers of its records (KIP-98): for a log that begins behind them.

Every sidecar has the producer snapshot of the end of its segment. Where a log begins in the middle of one, or a sidecar
has none, the batches from the snapshot before on are read.

A lost cluster's segments tell of that one's producers. This cluster may have given the same ids to others: a batch of
theirs would pass for a retry, be acknowledged, and not be written. So such ids are left out (rule B27).
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.log.batch import BatchHeader
from strandline.log.producer_state import ProducerStates, SnapshotDamaged
from strandline.log.tier.reading import TierReader
from strandline.proto.ids import TopicId, TopicPartition
from strandline.proto.tier import ProducerIds, Tier, TieredSegment


async def producers_before(
    reader: TierReader, tp: TopicPartition, topic_id: TopicId, tier: Tier, offset: int, *, now_ms: int
) -> ProducerStates:
    """The state after every batch that ends at `offset` or before, which the tier reaches. They count as seen now.

    A batch that `offset` lies inside of is left out: a log that begins there has the whole of it.

    Raises KafkaError and StoreError as `TierReader`.
    """
    states = ProducerStates()
    untold: list[TieredSegment] = []
    for segment in reversed(tier.segments):
        if segment.base_offset >= offset:
            continue
        # rule B24/producers-of-what-follows
        snapshot = await reader.producers(tp, topic_id, segment) if segment.end_offset <= offset else None
        if snapshot is not None and _is_loaded(states, snapshot, now_ms):
            if segment.producers is not None:  # rule B27/lost-producers-are-ours
                states.keep(segment.producers)
            break
        untold.append(segment)

    for segment in reversed(untold):
        await reader.each_header(tp, topic_id, segment, offset, _taker(states, segment.producers, offset, now_ms))
    return states


def _taker(
    states: ProducerStates, known: ProducerIds | None, offset: int, now_ms: int
) -> Callable[[BatchHeader], None]:
    def take(header: BatchHeader) -> None:
        theirs = known is None or header.producer_id in known  # rule B27/lost-producers-are-ours-where-snapshots-lack
        # rule B24/a-batch-is-known-before-it-comes
        if header.producer_id >= 0 and header.next_offset <= offset and theirs:
            states.update(header, header.base_offset, now_ms)

    return take


def _is_loaded(states: ProducerStates, snapshot: bytes, now_ms: int) -> bool:
    try:
        states.load_snapshot(snapshot, now_ms)
    except SnapshotDamaged:  # as it was copied
        return False
    return True
