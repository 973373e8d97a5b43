"""Schedule 80: a scrub finds what rotted and no more; the rest is served, and what a leader has fills the hole."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strandline.log.batch import HEADER_SIZE, Record, build_batch
from strandline.log.partition_log import PartitionLog
from strandline.log.rot import Gone, SegmentScrub
from strandline.log.segment import Hole
from strandline.proto.errors import KafkaError
from tests.log.helpers import FailingDisk, client_batch, open_test_log
from tests.log.test_rot import BATCHES, PER_BATCH, TIME_MS, check_error, flip, written

LENGTH, LAST_OFFSET_DELTA = 11, 26
"""In a batch: the bytes that have the lowest bits of these fields."""


def scrub(log: PartitionLog) -> list[Hole]:
    """Of the last segment; noted in the log, as a broker does."""

    async def pace(size: int) -> None:
        assert size <= 1 << 20
        await asyncio.sleep(0)

    segment = log.segments[-1]
    holes = asyncio.run(SegmentScrub(log, segment, pace).holes())
    log.rot.scrubbed(segment, holes)
    return holes


def readable(log: PartitionLog, batches: dict[int, bytes]) -> set[int]:
    """The offsets that can be read: with the right bytes, or CORRUPT_MESSAGE."""
    end, found = int(log.log_end_offset), set()
    for offset in range(int(log.log_start_offset), end):
        try:
            read = log.read(offset, 1 << 20, end)
        except KafkaError as error:
            check_error(error)
            continue
        assert read is not None
        assert read.data == b"".join(batches[at] for at in range(int(read.first_offset), int(read.next_offset), 2))
        found.add(offset)
    return found


def heal(log: PartitionLog, batches: dict[int, bytes]) -> None:
    """As a leader's data come: from the hole on, beyond it too, in answers of two batches."""
    while (hole := next(log.rot.holes(), None)) is not None:
        segment, left = hole
        while left is not None:
            data = b"".join(batches[at] for at in sorted(batches) if at >= left.offset)[: 2 * len(batches[0])]
            left = log.rot.mend(segment, left, memoryview(data))


@pytest.mark.parametrize("interval", [150, 100_000])
def test_every_bit_of_a_header_makes_a_hole_that_is_healed(tmp_path: Path, interval: int) -> None:
    with written(tmp_path, interval) as (log, batches, path):
        rotten, whole = 4, path.read_bytes()
        start = sum(len(batches[at]) for at in range(0, rotten, PER_BATCH))
        for position in range(start, start + HEADER_SIZE + 3):
            flip(path, position, position % 8)
            [hole] = scrub(log)
            assert (hole.position, hole.offset) == (start, rotten)
            assert log.rot
            assert readable(log, batches) == set(range(BATCHES * PER_BATCH)) - set(range(4, hole.next_offset))
            if interval == 150:
                assert hole.next_offset <= 8, "the index names the next whole batch, or the one behind it"
            if 27 < position - start < 57:
                assert hole.next_offset == 6, "the header tells where the next one is"
            heal(log, batches)
            assert path.read_bytes() == whole
            assert readable(log, batches) == set(range(BATCHES * PER_BATCH))
            assert log.needs_sync
            log.sync_now()
            log.rot.unsynced.clear()
            assert not log.rot


@given(positions=st.lists(st.integers(0, BATCHES * 99 - 1), min_size=1, max_size=5), zeros=st.booleans())
@settings(max_examples=40, deadline=None)
@example(positions=[0, 210, 320], zeros=False)  # the index names a batch in the hole, whose length is right
def test_whatever_rots_is_healed(tmp_path_factory: pytest.TempPathFactory, positions: list[int], zeros: bool) -> None:
    """Several places, or whole stretches of zeros as a bad sector has them, up to both ends of the file."""
    with written(tmp_path_factory.mktemp("rot")) as (log, batches, path):
        whole = path.read_bytes()
        bad = bytearray(whole)
        for position in positions:
            at = position * len(whole) // (BATCHES * 99)
            if zeros:
                bad[at : at + 130] = bytes(len(bad[at : at + 130]))
            else:
                bad[at] ^= 1 << position % 8
        path.write_bytes(bad)
        holes = scrub(log)
        assert holes or bad == whole
        lost = {offset for hole in holes for offset in range(hole.offset, hole.next_offset)}
        assert readable(log, batches) == set(range(BATCHES * PER_BATCH)) - lost
        heal(log, batches)
        assert path.read_bytes() == whole
        assert scrub(log) == []


def test_a_hole_that_is_mended_during_a_scrub_is_none(tmp_path: Path) -> None:
    """What the scrub read before it was written over is no rot: it would be asked for, and counted, once more."""
    with written(tmp_path) as (log, batches, path):
        flip(path, 2 * len(batches[0]) + LENGTH, 1)
        [hole] = scrub(log)

        async def mended_meanwhile() -> list[Hole]:
            async def pace(_: int) -> None:
                await asyncio.sleep(0)

            found = asyncio.create_task(SegmentScrub(log, log.segments[-1], pace).holes())
            while hole.position not in reads:
                await asyncio.sleep(0)
            heal(log, batches)
            return await found

        reads: list[int] = []
        pread = log.disk.pread_cold

        async def noted(file: Any, size: int, position: int) -> bytes:
            data = await pread(file, size, position)
            reads.append(position)
            return data

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log.disk, "pread_cold", noted)
            assert asyncio.run(mended_meanwhile()) == []


def test_a_whole_log_has_no_holes(tmp_path: Path) -> None:
    """What was taken for rot was none: an index, or a read that went wrong once."""
    with written(tmp_path) as (log, _, path):
        log.rot.suspect(str(path), 0)
        assert log.rot
        assert scrub(log) == []
        assert not log.rot


@pytest.mark.parametrize("start", range(1, 11))
def test_what_lies_below_the_log_start_is_of_epochs_that_are_forgotten(tmp_path: Path, start: int) -> None:
    """Deleted records share a segment with those that stay: that nobody knows their epoch is no rot, and rot in them
    is seen all the same."""
    disk = FailingDisk()
    with closing(open_test_log(disk, tmp_path)) as log:
        for epoch, base in ((0, 0), (0, 2), (1, 4), (3, 6), (3, 8)):
            log.assign_epoch_start(epoch, base)
            log.append_as_leader(client_batch(2, timestamp_ms=TIME_MS), epoch, TIME_MS)
        log.delete_records_before(start, keep_active=True)
        assert log.epochs.entries()[0][1] == start or start >= 10
        assert scrub(log) == []
        flip(tmp_path / "00000000000000000000.log", log.segments[0].size // 5 + HEADER_SIZE + 3, 0)
        [hole] = scrub(log)
        assert (hole.offset, hole.next_offset) == (2, 4)


def test_batches_in_a_value_are_no_batches_of_the_log(tmp_path: Path) -> None:
    """A record may carry batches of later offsets, intact and of the right epoch: they are not what follows."""
    with written(tmp_path) as (log, _, path):
        inner = bytearray(client_batch(1))
        inner[:8], inner[12:16] = (40).to_bytes(8, "big"), (2).to_bytes(4, "big")
        start, offset = path.stat().st_size, int(log.log_end_offset)
        outer = memoryview(build_batch([Record(0, TIME_MS, None, bytes(inner))]))
        log.append_as_leader(outer, 2, 0)
        log.append_as_leader(client_batch(1), 2, 0)
        flip(path, start + 9, 3)  # its length
        [hole] = scrub(log)
        assert (hole.position, hole.offset) == (start, offset)
        assert hole.next_offset <= int(log.log_end_offset)
        for at in range(offset, hole.next_offset):
            with pytest.raises(KafkaError, match="rotted"):
                log.read(at, 1 << 20, int(log.log_end_offset))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A leader's batches go into the hole or nowhere: another size, another offset, another epoch, a flipped bit."""
    with written(tmp_path) as (log, batches, path):
        flip(path, len(batches[0]) + HEADER_SIZE, 1)
        [hole] = scrub(log)
        rotten = path.read_bytes()
        longer = bytearray(client_batch(PER_BATCH, size=30))
        longer[:8], longer[12:16] = (2).to_bytes(8, "big"), bytes(4)
        of_another_epoch = bytearray(batches[2])
        of_another_epoch[15] ^= 1
        flipped = bytearray(batches[2])
        flipped[-1] ^= 1
        for wrong in (longer, of_another_epoch, flipped, bytearray(batches[4]), bytearray(batches[2][:50])):
            with pytest.raises(KafkaError, match="do not fit"):
                log.rot.mend(log.segments[0], hole, memoryview(wrong))
            assert path.read_bytes() == rotten
        assert log.rot.mend(log.segments[0], hole, memoryview(batches[2] + batches[4])) is None


def test_a_segment_that_left_the_log_is_not_written(tmp_path: Path) -> None:
    """The data for its hole come late: another segment has its name by now, and all of that is as it was written."""
    with written(tmp_path) as (log, batches, path):
        flip(path, HEADER_SIZE + 3, 0)
        [hole] = scrub(log)
        segment = log.segments[0]
        log.truncate_fully_and_start_at(0)
        for _ in range(3):
            log.append_as_leader(client_batch(PER_BATCH, size=30), 0, 0)
        whole = path.read_bytes()
        with pytest.raises(KafkaError, match="do not fit"):
            log.rot.mend(segment, hole, memoryview(batches[0]))
        assert path.read_bytes() == whole
        assert not any(log.rot.holes())


def test_a_cut_takes_the_hole_along(tmp_path: Path) -> None:
    """A cut where a hole begins leaves nothing of it; what was deleted from the front is missed no more."""
    with written(tmp_path) as (log, batches, path):
        flip(path, 3 * len(batches[0]) + HEADER_SIZE, 1)
        scrub(log)
        log.delete_records_before(7)
        assert log.rot, "the log begins inside the batch"
        log.delete_records_before(8)
        assert not log.rot
        flip(path, 5 * len(batches[0]) + HEADER_SIZE, 1)
        scrub(log)
        assert log.truncate_to(10) == 10
        assert not log.rot
        assert readable(log, batches) >= {8, 9}


def test_no_cut_lands_inside_of_a_hole(tmp_path: Path) -> None:
    """Schedule 88: it would take records from before itself along. A log of the same epochs fills the hole up to there,
    and no further."""
    with written(tmp_path, 100_000) as (log, batches, path):
        whole = path.read_bytes()
        flip(path, 3 * len(batches[0]) + LENGTH, 1)
        [hole] = scrub(log)
        assert (hole.offset, hole.next_offset) == (6, 18)
        for offset in (7, 8, 12, 17):
            with pytest.raises(KafkaError) as refused:
                log.truncate_to(offset)
            check_error(refused.value)
            assert (log.log_end_offset, log.latest_epoch, list(log.rot.holes())) == (18, 2, [(log.segments[0], hole)])
        log.rot.suspect(str(refused.value.figures["file"]), int(refused.value.figures["position"]))
        assert not log.rot.suspects, "a scrub has been there"
        assert log.rot.before_cut(6) is None
        assert [log.rot.before_cut(offset) for offset in (7, 12, 18)] == 3 * [(log.segments[0], hole)]
        other = bytes(build_batch([Record(0, 1, None, b"other", ())], base_offset=12, leader_epoch=3))
        sent = batches[6] + batches[8] + batches[10] + other
        left = log.rot.mend(log.segments[0], hole, memoryview(sent))
        assert left == Hole(6 * len(batches[0]), hole.end, 12, 18)
        assert log.rot.before_cut(12) is None
        assert log.truncate_to(12) == 12
        assert path.read_bytes() == whole[: left.position]
        assert not any(log.rot.holes())


def test_no_cut_goes_by_a_header_that_has_rotted(tmp_path: Path) -> None:
    """Schedule 88: nobody has scrubbed it yet, and it claims the offset at which the log is to be cut."""
    with written(tmp_path, 100_000) as (log, batches, path):
        position = 2 * len(batches[0]) + LAST_OFFSET_DELTA
        flip(path, position, 4)
        with pytest.raises(KafkaError) as refused:
            log.truncate_to(11)
        check_error(refused.value)
        assert log.log_end_offset == 18
        log.rot.suspect(str(refused.value.figures["file"]), int(refused.value.figures["position"]))
        assert log.rot.suspects, "it is looked into"
        flip(path, position, 4)
        assert log.truncate_to(11) == 10, "whole batches go with all of their records"


def test_a_scrub_ends_where_its_segment_does(tmp_path: Path) -> None:
    """It was cut, or deleted, while the disk was waited for."""
    with written(tmp_path) as (log, _, _):

        async def cut(_: int) -> None:
            log.truncate_to(4)

        with pytest.raises(Gone):
            asyncio.run(SegmentScrub(log, log.segments[0], cut).holes())

        async def drop(_: int) -> None:
            log.truncate_fully_and_start_at(100)

        with pytest.raises(Gone):
            asyncio.run(SegmentScrub(log, log.segments[0], drop).holes())
