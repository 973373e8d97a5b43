"""One judge of a batch: all that read a log say the same of the same bytes, but for the bounds that each one names."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from strandline.client.fetcher import whole_batches
from strandline.log.batch import assemble_batch, check_content, check_replicated_batches, gap_batch
from strandline.log.config import BATCH_BYTES_MAX, INT64_MAX
from strandline.log.dump import DumpedBatch, Problem, dump_file
from strandline.log.producer_state import ProducerStates
from strandline.log.real_disk import RealDisk
from strandline.log.scan import ScannedBatch, find_batch_after, scan_batches
from strandline.log.verify.partition_scan import SegmentScan
from strandline.proto.errors import KafkaError

FIRST, OFFSET, EPOCH = 5, 8, 2
"""One good batch stands before the one that is judged, which is to begin at OFFSET."""

Judge = Callable[[bytes, Path, int], int]
"""Gets a log, its file, and the offset of the first batch; returns the number of batches found good, from the start."""


def recovery(_: bytes, path: Path, first: int) -> int:
    file = RealDisk().open(str(path))
    try:
        return sum(isinstance(found, ScannedBatch) for found in scan_batches(file, first, EPOCH))
    finally:
        file.close()


def verify(_: bytes, path: Path, first: int) -> int:
    file = RealDisk().open(str(path))
    found: list[int] = []
    try:
        scan = SegmentScan(
            file,
            first,
            epochs=None,
            epoch=EPOCH,
            epochs_may_lag=False,
            log_start_offset=first,
            on_batch=lambda position, _: found.append(position),
            producers=ProducerStates(),
            progress=lambda _: None,
        )
        scan.run(None, None)
    finally:
        file.close()
    return sum(not scan.damaged or position < scan.damaged[0].position for position in found)


def dump(_: bytes, path: Path, first: int) -> int:
    found = list(dump_file(RealDisk(), str(path)))
    damaged = min((item.position for item in found if isinstance(item, Problem)), default=path.stat().st_size)
    return sum(isinstance(item, DumpedBatch) and item.position < damaged for item in found)


def replication(data: bytes, _: Path, first: int) -> int:
    for size in (len(data), FIRST_SIZE):
        with suppress(KafkaError):
            return len(check_replicated_batches(memoryview(data)[:size], first, EPOCH))
    return 0


def client(data: bytes, _: Path, first: int) -> int:
    good = 0
    with suppress(KafkaError):
        for header, batch in whole_batches(memoryview(data), INT64_MAX):
            check_content(header, batch)
            good += 1
    return good


JUDGES: list[Judge] = [recovery, verify, dump, replication, client]


def batch(base: int = OFFSET, *, delta: int = 2, count: int = 3, epoch: int = EPOCH, body: bytes = b"x" * 30) -> bytes:
    return bytes(
        assemble_batch(
            body,
            count=count,
            last_offset_delta=delta,
            base_timestamp=0,
            max_timestamp=0,
            base_offset=base,
            leader_epoch=epoch,
        )
    )


def changed(form: str, position: int, value: int) -> bytes:
    """The good batch with a field that is another; its CRC is as it was."""
    data = bytearray(batch())
    struct.pack_into(form, data, position, value)
    return bytes(data)


def flipped(position: int) -> bytes:
    data = bytearray(batch())
    data[position] ^= 0x10
    return bytes(data)


FIRST_SIZE = len(batch())


class Case(NamedTuple):
    """Bytes behind a good batch.

    Attributes:
        good: they are a whole valid batch.
        others: the judges whose own bounds say the other thing.
        first: where the good batch before begins.
    """

    name: str
    data: bytes
    good: bool
    others: tuple[Judge, ...] = ()
    first: int = FIRST


CASES = [
    Case("whole", batch(), True),
    Case("of a later epoch", batch(epoch=7), True),
    Case("compacted", batch(count=1), True),
    Case("a gap", bytes(gap_batch(OFFSET, 90, EPOCH)), True),
    Case("a header alone", batch(count=0, body=b""), True),
    Case("the last offset that there is", batch(INT64_MAX - 3), True, (), INT64_MAX - 6),
    Case("ends beyond the last offset", batch(INT64_MAX - 2), False, (), INT64_MAX - 5),
    Case("more records than offsets", batch(count=4), False),
    Case("a record without an offset", batch(delta=0, count=2), False),
    Case("one byte short", batch()[:-1], False),
    Case("half a header", batch()[:60], False),
    Case("format 0", changed(">b", 16, 0), False),
    Case("format 1", changed(">b", 16, 1), False),
    Case("format 3", changed(">b", 16, 3), False),
    Case("shorter than its header", changed(">i", 8, 48), False),
    Case("of negative length", changed(">i", 8, -12), False),
    Case("one byte more than there are", changed(">i", 8, len(batch()) - 11), False),
    Case("of 2 GiB", changed(">i", 8, (1 << 31) - 1), False),
    Case("negative offset", changed(">q", 0, -1), False),
    Case("negative delta", batch(delta=-1, count=0), False),
    Case("negative count", batch(count=-1), False),
    Case("a bit of the CRC", flipped(18), False),
    Case("a bit of the attributes", flipped(22), False),
    Case("a bit of a record", flipped(70), False),
    Case("an offset that was", batch(OFFSET - 1), False),
    # Brokers that compact without gap batches leave offsets out; `log dump` shows such logs too.
    Case("an offset left out", batch(OFFSET + 1), False, (dump, client)),
    # A fetch answer does not say which epoch came before, nor does `log dump` know.
    Case("an epoch that was", batch(epoch=1), False, (dump, client)),
]


def said(case: Case, path: Path) -> dict[str, bool]:
    """Whether each judge takes the bytes for a batch."""
    data = batch(case.first) + case.data
    path.write_bytes(data)
    found = {judge.__name__: judge(data, path, case.first) for judge in JUDGES}
    # A consumer keeps the batch before back where the order is wrong.
    assert all(good >= 1 or (judge == "client" and not case.good) for judge, good in found.items()), found
    return {judge: good == 2 for judge, good in found.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_judges_say_the_same(case: Case, tmp_path: Path) -> None:
    """Recovery, `log verify`, `log dump`, a follower and a consumer."""
    expected = {judge.__name__: case.good != (judge in case.others) for judge in JUDGES}
    assert said(case, tmp_path / f"{case.first:020d}.log") == expected


def test_the_largest_batch_is_the_same_for_all(tmp_path: Path) -> None:
    """96 MiB are taken, a byte more is not: but by a consumer, whose bound is that of an answer (other brokers have
    other bounds)."""
    path = tmp_path / f"{FIRST:020d}.log"
    largest = Case("largest", batch(body=bytes(BATCH_BYTES_MAX - 61)), True)
    assert set(said(largest, path).values()) == {True}
    larger = Case("larger", batch(body=bytes(BATCH_BYTES_MAX - 60)), False, (client,))
    assert said(larger, path) == {judge.__name__: judge is client for judge in JUDGES}


def test_a_batch_is_looked_for_behind_a_damaged_start(tmp_path: Path) -> None:
    """Of a log whose first bytes are none: before, this failed on the offset before the first."""
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(bytes(batch(0))[:20] + b"\xff" * 41 + batch(3))
    assert [item.position for item in dump_file(RealDisk(), str(path)) if isinstance(item, DumpedBatch)] == [61]
    file = RealDisk().open(str(path))
    try:
        assert find_batch_after(file, 0, -1) == (61, 3)
    finally:
        file.close()
