"""Runs of batches that the map handles at once, compiled and in Python: held against each other, and against the way of
one batch after the other, byte by byte."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log import compaction
from strandline.log.batch import (
    LOG_APPEND_TIME,
    TIMESTAMP_TYPE_BIT,
    Record,
    assemble_batch,
    build_batch,
    gap_batch,
    parse_header,
)
from strandline.log.compression import Codec
from strandline.log.offset_map import PythonOffsetMap, new_offset_map
from strandline.log.partition_log import PartitionLog
from tests.log.compacting import COMPACTED, NOW_MS, assert_no_hole, compact, table
from tests.log.helpers import FailingDisk, open_test_log
from tests.log.test_offset_map import BOTH, SECRET, Make, batches, both, encoded, needs_compiled

CONFIG = replace(COMPACTED, segment_bytes=4_000)

KINDS = st.sampled_from(
    ["plain"] * 8
    + ["append time", "packed", "transactional", "control", "horizon", "gap", "hole", "too many", "bytes left"]
)
written = st.lists(st.tuples(batches, KINDS, st.integers(0, 3)), min_size=1, max_size=6)


def run_of(items: list[tuple[list[Any], str, int]]) -> bytes:
    """Batches of these records and kinds, each following on the one before, but for a hole."""
    out, offset = bytearray(), 3
    for records, kind, more in items:
        offset += kind == "hole"
        last = offset + len(records) - 1 + more
        if kind == "gap":
            out += gap_batch(offset, last, 1)
        else:
            out += assemble_batch(
                encoded(records) + b"\0" * (kind == "bytes left"),
                count=len(records) + (kind == "too many"),
                last_offset_delta=last - offset,
                base_timestamp=5,
                max_timestamp=77,
                base_offset=offset,
                leader_epoch=1,
                codec=Codec.LZ4 if kind == "packed" else Codec.NONE,
                transactional=kind == "transactional",
                control=kind == "control",
                timestamp_type=LOG_APPEND_TIME if kind == "append time" else 0,
                delete_horizon=kind == "horizon",
            )
        offset = last + 1
    return bytes(out)


def play(make: Make, data: bytes, first_dirty: int, until: int, count_max: int, buffer_bytes: int) -> list[Any]:
    """All that a map says of a run: with the few keys that it has room for, and with all of them."""
    said: list[Any] = []
    for size in (buffer_bytes, 100_000):
        latest = make(size, SECRET)
        said.append(latest.note_batches(data, 0, 3, first_dirty, until, count_max, crc32c))
        said.append(size < 100_000 or [latest.latest(key) for key in (b"", b"a", b"b", b"k" * 200)])
        said.append(latest.keep_batches(data, 0, 3, until, count_max, crc32c))
    return said


@needs_compiled
@given(written, st.integers(0, 30), st.sampled_from([10**6, 200]), st.sampled_from([10**6, 6, 0]), st.data())
@settings(max_examples=400, deadline=None)
def test_both_handle_runs_alike(
    items: list[Any], first_dirty: int, until: int, count_max: int, data: st.DataObject
) -> None:
    """Also where a byte is another one, or the end is cut off."""
    run = bytearray(run_of(items))
    if data.draw(st.integers(0, 3)) == 0:
        run[data.draw(st.integers(0, len(run) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    if data.draw(st.integers(0, 3)) == 0:
        del run[data.draw(st.integers(0, len(run))) :]
    compiled, python = (play(make, bytes(run), first_dirty, until, count_max, 100_000) for make in reversed(BOTH))
    assert compiled == python


@both
def test_a_run_ends_where_the_map_has_no_room(make: Make) -> None:
    """Before the batch, none of whose keys is put."""
    latest = make(0, SECRET)
    two = run_of([([(0, b"a", b"v", [])], "plain", 0), ([(0, b"b", b"v", [])], "plain", 0)])
    assert latest.note_batches(two, 0, 3, 0, 10**6, 9, crc32c) == (len(two) // 2, 4)
    assert (len(latest), latest.latest(b"a"), latest.latest(b"b")) == (1, 3, -1)


@both
@pytest.mark.parametrize(
    "kind", ["packed", "horizon", "hole", "too many", "bytes left", "rot", "transactional", "control"]
)
def test_what_a_run_leaves(make: Make, kind: str) -> None:
    """To the way of one batch after the other, which says what is wrong with it, or does more."""
    records = [(0, b"a", b"v" * 40, [])]
    data = run_of([(records, "plain", 0), (records, kind, 0)])
    if kind == "rot":
        data = data[:-5] + b"w" + data[-4:]
    latest = make(100_000, SECRET)
    first = parse_header(data).size
    assert latest.keep_batches(data, 0, 3, 10**6, 99, crc32c) == (first, 4, [True])
    assert latest.note_batches(data, 0, 3, 0, 10**6, 99, crc32c)[0] == (len(data) if kind == "horizon" else first)


@both
def test_what_stays_of_a_run(make: Make) -> None:
    """All, some, and nothing of a batch; a tombstone ends the run, and the newest time is that of what stays."""
    records = [(1, b"a", b"v", []), (9, b"b", b"v", []), (4, b"c", b"v", [])]
    kinds = ["plain", "append time", "gap", "plain", "plain"]
    later = [[(0, b"b", b"v", [])], [(0, b"c", None, [])]]
    data = run_of([(one, kind, 0) for one, kind in zip([records[:2], records, records, *later], kinds, strict=True)])
    latest = make(100_000, SECRET)
    assert latest.note_batches(data, 0, 3, 0, 10**6, 99, crc32c)[0] == len(data)
    end, offset, stays = latest.keep_batches(data, 0, 3, 10**6, 99, crc32c)
    assert (end, offset) == (len(data) - len(run_of([(later[1], "plain", 0)])), 12)
    assert [one if one is None or one is True else type(one) for one in stays] == [None, bytes, None, True]
    [cut] = [one for one in stays if isinstance(one, bytes)]
    header = parse_header(cut)
    assert (header.count, header.base_offset, header.last_offset, header.size) == (1, 5, 7, len(cut))
    assert (header.max_timestamp, header.attributes) == (77, TIMESTAMP_TYPE_BIT)
    assert header.crc == crc32c(cut[21:])


class OneByOne:
    """A map that takes no run."""

    def __init__(self, buffer_bytes: int) -> None:
        self._map = new_offset_map(buffer_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._map, name)

    def __len__(self) -> int:
        return len(self._map)

    def note_batches(self, _data: Any, position: int, offset: int, *_: Any) -> tuple[int, int]:
        """None of them."""
        return position, offset

    def keep_batches(self, _data: Any, position: int, offset: int, *_: Any) -> tuple[int, int, list[Any]]:
        """None of them."""
        return position, offset, []


def write(log: PartitionLog, rng: random.Random, count: int, sequences: dict[int, int]) -> None:
    """Batches of all kinds that clients send; `sequences`: how far each producer is."""
    for _ in range(count):
        size = rng.choice([1, 2, 5, 40])
        keys = [b"k%d" % rng.randrange(40) for _ in range(size)]
        tombstones = 0.3 if rng.random() < 0.2 else 0.0
        values = [
            None if rng.random() < tombstones else b"v" * rng.randrange(30) + b"%d" % rng.randrange(99) for _ in keys
        ]
        times = [NOW_MS + rng.randrange(-50, 50) for _ in keys]
        producer = rng.choice([-1, 1, 2])
        batch = build_batch(
            [Record(0, *one) for one in zip(times, keys, values, strict=True)],
            codec=rng.choice([Codec.NONE] * 5 + [Codec.LZ4, Codec.ZSTD]),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequences.get(producer, 0) if producer >= 0 else -1,
        )
        sequences[producer] = sequences.get(producer, 0) + size
        log.append_as_leader(memoryview(batch), int(log.log_end_offset) // 100, NOW_MS)


def passes(disk: FailingDisk, directory: Path, seed: int) -> tuple[list[Any], dict[str, bytes]]:
    """Three passes, with new batches and a day between them: what each did, and the files."""
    rng, done, sequences = random.Random(seed), [], dict[int, int]()
    log = open_test_log(disk, directory, config=CONFIG)
    for number in range(3):
        write(log, rng, 60, sequences)
        log.sync_now()
        before = table(log)
        figures = compact(log, now_ms=NOW_MS + number * 10_000)
        done.append(figures)
        after = table(log)
        assert after == {key: value for key, value in before.items() if value is not None or key in after}
        assert_no_hole(log)
    log.close()
    return done, {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("twin", [False, True], ids=["as installed", "in Python"])
def test_a_pass_leaves_the_same_as_one_batch_after_the_other(
    disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, twin: bool
) -> None:
    """The same figures, and the same bytes in every file."""
    if twin:
        monkeypatch.setattr(compaction, "new_offset_map", lambda size: PythonOffsetMap(size, SECRET))
    with_runs = passes(disk, tmp_path / "orders-0", seed)
    monkeypatch.setattr(compaction, "new_offset_map", OneByOne)
    assert passes(disk, tmp_path / "orders-1", seed) == with_runs


def test_a_run_is_cut_into_steps(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turn after so many records, however small they are."""
    turns: list[int] = []

    async def turn(size: int) -> None:
        turns.append(size)

    monkeypatch.setattr(compaction, "STEP_RECORDS", 20)
    log = open_test_log(disk, tmp_path, config=CONFIG)
    write(log, random.Random(1), 100, {})
    log.sync_now()
    compact(log, turn=turn)
    records = int(log.log_end_offset)
    assert len(turns) > 2 * records // 45
    log.close()
