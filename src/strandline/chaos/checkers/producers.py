"""Check after a run: every replica knows who wrote what its disk may not have any more (rule B24: a log knows its
producers)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct

from strandline.chaos.checkers.batches import StoredBatch
from strandline.chaos.checkers.invariant import InvariantViolated

_PRODUCER = Struct(">qh")
_PRODUCER_AT = 43
"""Position in a batch of its producer's id, and the epoch behind it."""

Known = Mapping[int, tuple[int, int]]
"""Producer id -> its epoch, and the last offset that it wrote, as a replica has it in memory."""


def check_producers(
    partition: str, stored: Iterable[tuple[StoredBatch, bytes]], start_offset: int, replicas: Mapping[str, Known]
) -> None:
    """Each producer of a batch in the object store, from the tier's start on, is known on each replica by that batch or
    by a later one, in the epoch of it or a later one. By this a retry is recognised, and a fenced producer refused.

    `stored`: the batches of the store. `replicas`: by node.

    Raises InvariantViolated: ProducersAreKnown.
    """
    for batch, content in stored:
        producer_id, epoch = _PRODUCER.unpack_from(content, _PRODUCER_AT)
        if producer_id < 0 or batch.base_offset < start_offset:
            continue
        for name, known in replicas.items():
            known_epoch, last_offset = known.get(producer_id, (-1, -1))
            if known_epoch < epoch or last_offset < batch.last_offset:
                facts = {"partition": partition, "node": name, "offset": batch.base_offset, "producer": producer_id}
                facts |= {"epoch": epoch, "known_epoch": known_epoch, "known_offset": last_offset}
                raise InvariantViolated("ProducersAreKnown", "a retry of a batch would be appended", **facts)
