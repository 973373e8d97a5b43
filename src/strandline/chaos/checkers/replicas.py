"""Check after a run: the committed prefixes of all replicas, compared byte by byte, and what is in them (rule E2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import Struct

from strandline.chaos.checkers.batches import NotABatch, StoredBatch, StoredRecord, records
from strandline.chaos.checkers.compacted import compare_compacted, stored_records
from strandline.chaos.checkers.history import Send
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.stored import stored_batches
from strandline.chaos.sim.disk import SimDisk


def compare_replicas(
    place: Callable[[str, str], tuple[SimDisk, str]],
    high_watermarks: Mapping[str, Mapping[str, int]],
    sends: Iterable[Send] = (),
    compacted: Mapping[str, bool] | None = None,
    *,
    tiered: Mapping[str, Iterable[tuple[StoredBatch, bytes]]] | None = None,
) -> None:
    """Every replica's batches below the lowest high watermark are the same bytes, from where the last of them begins;
    and in them is what the acknowledgements of `sends` said.

    Of partitions that are `compacted` each replica has the same last record of each key: see `checkers.compacted`.
    Beside each stands whether its tombstones may be gone.
    `place` tells disk and directory of a node's replica. `high_watermarks` is partition directory name -> node name ->
    high watermark, `tiered` partition directory name -> what of it is in the object store.

    Raises:
        InvariantViolated: IdenticalReplicas, AckedIsStored.
    """
    acked: dict[str, list[Send]] = {}
    for send in sends:
        if send.acked and send.offset is not None:
            acked.setdefault(str(send.partition), []).append(send)
    for directory, by_node in high_watermarks.items():
        end = min(by_node.values())
        if compacted is not None and directory in compacted:
            logs: dict[str, list[StoredRecord]] = {}
            for name in by_node:
                kept, ends = stored_records(*place(name, directory))
                logs[name] = [record for record in kept if not ends.aborted(record.offset)]
            go = compacted[directory]
            compare_compacted(directory, logs, end, "IdenticalReplicas", tombstones_go=go)
            continue
        batches = {name: list(_committed(*place(name, directory), end)) for name in by_node}
        _compare(directory, end, batches)
        stored = [*(tiered or {}).get(directory, ()), *next(iter(batches.values()), [])]  # all replicas have the same
        _check_acked(directory, stored, acked.get(directory, ()))


def _committed(disk: SimDisk, directory: str, end: int) -> Iterator[tuple[StoredBatch, bytes]]:
    reached = 0
    try:
        for batch, content in stored_batches(disk, directory, end=end):
            yield batch, content
            reached = batch.next_offset
    except NotABatch as error:
        if reached < end:
            facts = {"directory": directory, "below": end}
            raise InvariantViolated("IdenticalReplicas", f"a log does not parse: {error}", **facts) from error


def _compare(directory: str, end: int, batches: Mapping[str, list[tuple[StoredBatch, bytes]]]) -> None:
    """Records may be deleted on some replicas a little before they are on others."""
    start = max((found[0][0].base_offset if found else end for found in batches.values()), default=0)
    contents = {
        name: b"".join(content for batch, content in found if batch.base_offset >= start)
        for name, found in batches.items()
    }
    if len(set(contents.values())) > 1:
        sizes = {name: len(content) for name, content in contents.items()}
        facts = {"partition": directory, "from": start, "below": end, "sizes": sizes}
        raise InvariantViolated("IdenticalReplicas", "committed bytes differ", **facts)


def _check_acked(directory: str, found: Iterable[tuple[StoredBatch, bytes]], sends: Iterable[Send]) -> None:
    stored: dict[int, str] = {}
    try:
        for batch, content in found:
            for record in records(batch, content):
                stored[record.offset] = (record.value or b"").decode(errors="replace")
    except NotABatch as error:
        raise InvariantViolated("IdenticalReplicas", f"a log does not parse: {error}", partition=directory) from error
    for send in sends:
        assert send.offset is not None
        if stored.get(send.offset) != send.value:
            facts = {"partition": directory, "offset": send.offset, "acked": send.value}
            facts["found"] = stored.get(send.offset)
            raise InvariantViolated("AckedIsStored", "another record is there, or none", **facts)


# Every replica knows who wrote what its disk may not have any more (rule B24: a log knows its producers)

_PRODUCER = Struct(">qh")
_PRODUCER_AT = 43
"""Position in a batch of its producer's id, and the epoch behind it."""

Known = Mapping[int, tuple[int, int]]
"""Producer id -> (epoch, offset of its last record), from a replica's memory."""


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
