"""A backup's files: what is written, and how damage is told. The way to a cluster and back is row S100's test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from strandline.cli.main import main
from strandline.client.batch_sender import MadeRecords
from strandline.client.range_reader import RangeReader, RawBatch
from strandline.log.batch import TRANSACTIONAL_BIT, Record, build_batch, decode_records, parse_header, verify_crc
from strandline.log.compression import Codec
from strandline.tools.backup.files import (
    MANIFEST,
    BackupDamaged,
    BackupRefused,
    Manifest,
    PartitionCopy,
    SegmentWriter,
    read_batches,
    read_manifest,
    verify,
    write_manifest,
)
from strandline.tools.backup.restore import filler
from strandline.tools.backup.take import take

NOTHING_LISTENS = "127.0.0.1:1"
FILE_BYTES = 200
"""Room for one batch."""


def batch(base_offset: int, count: int, codec: Codec = Codec.NONE) -> bytes:
    records = [Record(0, 1_000 + n, b"key", b"value %d" % (base_offset + n), (("h", None),)) for n in range(count)]
    return bytes(build_batch(records, base_offset=base_offset, leader_epoch=3, codec=codec, producer_id=7,
                             producer_epoch=1, base_sequence=base_offset))  # fmt: skip


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Two partitions: one of four files whose log began inside of its first batch, one empty."""
    directory = tmp_path / "backup"
    directory.mkdir()
    with SegmentWriter(directory / "orders-0", FILE_BYTES) as writer:
        for base, codec in ((10, Codec.NONE), (15, Codec.ZSTD), (20, Codec.GZIP), (25, Codec.NONE)):
            data = batch(base, 5, codec)
            writer.append(parse_header(data), data)
    with SegmentWriter(directory / "orders-1", FILE_BYTES):
        pass
    parts = PartitionCopy(0, 12, 30, tuple(writer.segments)), PartitionCopy(1, 4, 4, ())
    write_manifest(directory, Manifest("orders", "id", "cluster", 5, 3, {"retention.ms": "1"}, parts))
    return directory


def check(directory: Path) -> int:
    return verify(directory, read_manifest(directory), lambda _: None)


def test_what_was_written_comes_back(backup: Path) -> None:
    """Files end before they grow beyond their size; names are those of segments; every batch is there unchanged."""
    manifest = read_manifest(backup)
    assert (manifest.records, manifest.partitions[0].first_offset, manifest.partitions[1].first_offset) == (18, 10, 4)
    files = sorted(path.name for path in (backup / "orders-0").iterdir())
    assert len(files) == 4
    assert files == [segment.name for segment in manifest.partitions[0].segments]
    assert all(path.stat().st_size <= FILE_BYTES for path in (backup / "orders-0").iterdir())
    assert [header.base_offset for header, _ in read_batches(backup, manifest, 0)] == [10, 15, 20, 25]
    assert [data for _, data in read_batches(backup, manifest, 0)][1] == batch(15, 5, Codec.ZSTD)
    assert check(backup) == max(len(data) for _, data in read_batches(backup, manifest, 0))


def first_file(directory: Path) -> Path:
    return min((directory / "orders-0").iterdir())


def flip(directory: Path) -> None:
    path = first_file(directory)
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)


def truncate(directory: Path) -> None:
    path = first_file(directory)
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(directory: Path) -> None:
    path = first_file(directory)
    path.write_bytes(path.read_bytes() + b"\0")


def swap(directory: Path) -> None:
    """Two files of one size, each whole in itself."""
    first, *_, last = sorted((directory / "orders-0").iterdir())
    one, other = first.read_bytes(), last.read_bytes()
    assert len(one) == len(other)
    first.write_bytes(other)
    last.write_bytes(one)


def other_records(directory: Path) -> None:
    """A batch that is whole, of the same size and offsets, and another one."""
    path = first_file(directory)
    data = path.read_bytes()
    changed = [Record(0, one.timestamp_ms, b"KEY", one.value, one.headers) for one in decode_records(data)]
    path.write_bytes(build_batch(changed, base_offset=10, leader_epoch=3, producer_id=7, producer_epoch=1,
                                 base_sequence=10))  # fmt: skip


def without_file(directory: Path) -> None:
    first_file(directory).unlink()


def edit_manifest(directory: Path) -> None:
    path = directory / MANIFEST
    told = json.loads(path.read_text())
    told["partitions"][0]["end"] = 25
    path.write_text(json.dumps(told))


def cut_manifest(directory: Path) -> None:
    path = directory / MANIFEST
    path.write_bytes(path.read_bytes()[:-20])


def without_manifest(directory: Path) -> None:
    (directory / MANIFEST).unlink()


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        (flip, "the batch's CRC does not hold"),
        (truncate, "were written"),
        (lengthen, "were written"),
        (swap, "a batch of offset 25 stands where 10 must follow"),
        (other_records, "the checksum that it was written with"),
        (without_file, "it is not there"),
        (edit_manifest, "manifest.json"),
        (cut_manifest, "manifest.json"),
        (without_manifest, "is no backup"),
    ],
)
def test_a_damaged_backup_is_told_before_any_cluster_is_asked(
    backup: Path, damage: Callable[[Path], None], where: str
) -> None:
    """One sentence, exit code 1, and nobody was asked: where nothing listens the code would be 3."""
    damage(backup)
    with pytest.raises(BackupDamaged, match=where):
        check(backup)
    told = CliRunner().invoke(main, ["topic", "restore", str(backup), "--bootstrap", NOTHING_LISTENS])
    assert told.exit_code == 1
    assert "the backup is damaged" in told.stderr
    assert told.stdout == ""


def test_a_whole_backup_goes_on_to_the_cluster(backup: Path) -> None:
    """So that the test above cannot pass by accident."""
    told = CliRunner().invoke(main, ["topic", "restore", str(backup), "--bootstrap", NOTHING_LISTENS])
    assert told.exit_code == 3, told.output


def test_a_batch_keeps_all_but_its_producer(backup: Path) -> None:
    """Records, times and codec are not touched; offsets begin at 0, as a leader wants them, and the CRC holds."""
    data = batch(15, 5, Codec.ZSTD)
    sent = MadeRecords(data).build(producer_id=99, producer_epoch=2, base_sequence=40)
    header, before = parse_header(sent), parse_header(data)
    verify_crc(sent)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (99, 2, 40)
    assert (header.base_offset, header.leader_epoch) == (0, -1)
    assert (header.attributes, header.count, header.max_timestamp) == (
        before.attributes,
        before.count,
        before.max_timestamp,
    )
    assert sent[61:] == data[61:]


def raw(base_offset: int, **fields: int) -> RawBatch:
    header = parse_header(batch(base_offset, 5))._replace(**fields)
    return RawBatch(base_offset, header.next_offset, 0, memoryview(b""), header)


@pytest.mark.parametrize(
    ("there", "what"),
    [
        ([raw(0), raw(7)], "no record at some offset from 5 to 7"),
        ([raw(0), raw(5, last_offset_delta=7)], "no record at some offset from 5 to 13"),
        ([raw(0), raw(5, attributes=TRANSACTIONAL_BIT)], "records of transactions, from offset 5 on"),
        ([raw(0)], "no record at some offset from 5 to 10"),
    ],
)
def test_a_log_that_cannot_come_back_under_equal_offsets_is_refused(
    tmp_path: Path, there: list[RawBatch], what: str
) -> None:
    """Compacted logs, markers and records of transactions: and nothing is left of the attempt."""

    class Reader:
        """Serves these batches."""

        def expect(self, topic: str, topic_id: str) -> None:
            """Nothing else is there."""

        def read_batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[RawBatch]:
            """All of them."""
            yield from there

    planned = Manifest("orders", "id", "cluster", 5, 3, {}, (PartitionCopy(0, 2, 10, ()),))
    with pytest.raises(BackupRefused, match=what):
        take(cast(RangeReader, Reader()), planned, tmp_path / "backup", copied=lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_filler_is_small_and_holds_what_it_says() -> None:
    """Fifty thousand offsets in less than two bytes each."""
    made = filler(50_000)
    header = parse_header(made)
    assert (header.count, header.last_offset_delta) == (50_000, 49_999)
    assert len(made) < 100_000
