"""The cleaner's checkpoint: what compaction believes after a restart is of this very log (rule B28)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from strandline.log.checkpoints import CLEANER_OFFSETS, Cleaned, decode_cleaned, encode_cleaned, encode_offsets
from strandline.log.log_dir import LogDir
from strandline.log.offset_checkpoints import CHECKPOINT_COPY, decode_copy, encode_copy
from strandline.log.partition_log import PartitionLog
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import Offset, TopicPartition
from tests.log.helpers import TOPIC_ID, TP, FailingDisk, client_batch
from tests.log.test_log_dir import formatted, killed, opened

ANOTHER_ID = UUID(int=0x77, version=4)


def append(log: PartitionLog, batches: int) -> None:
    """So many times ten records, durable."""
    for _ in range(batches):
        log.append_as_leader(client_batch(10), 0, 0)
    log.sync_now()


def compacted(disk: FailingDisk, path: str, offset: int = 20) -> LogDir:
    """A directory whose log of 30 records was compacted up to `offset`, with checkpoints that say so."""
    log_dir = opened(disk, path)
    log = log_dir.create(TP, TOPIC_ID)
    append(log, 3)
    log.cleaned_to = Offset(offset)
    log_dir.write_checkpoints({TP: 30})
    return log_dir


def stored(path: str) -> dict[TopicPartition, Cleaned]:
    """What the file says."""
    return decode_cleaned("file", (Path(path) / CLEANER_OFFSETS).read_bytes())


def put(path: str, data: bytes) -> None:
    """The disk gives this back for the checkpoint, and so says its copy."""
    copy = Path(path) / CHECKPOINT_COPY
    copy.write_bytes(encode_copy(decode_copy("copy", copy.read_bytes()) | {CLEANER_OFFSETS: data}))
    (Path(path) / CLEANER_OFFSETS).write_bytes(data)


def cleaned_after_a_kill(disk: FailingDisk, path: str, log_dir: LogDir) -> int:
    """Where compaction goes on in the next life."""
    killed(log_dir)
    again = opened(disk, path)
    found = again.logs[TP].cleaned_to
    killed(again)
    return found


def test_it_is_known_after_a_kill(disk: FailingDisk, tmp_path: Path) -> None:
    path = formatted(disk, tmp_path)
    log_dir = compacted(disk, path)
    assert stored(path) == {TP: Cleaned(TOPIC_ID, 20)}
    assert cleaned_after_a_kill(disk, path, log_dir) == 20


def test_93_what_was_compacted_is_of_one_topic(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 93: even where the file is an older copy of itself."""
    path = formatted(disk, tmp_path)
    log_dir = compacted(disk, path)
    older = (Path(path) / CLEANER_OFFSETS).read_bytes()
    asyncio.run(log_dir.delete(TP))
    append(log_dir.create(TP, ANOTHER_ID), 3)
    put(path, older)
    assert cleaned_after_a_kill(disk, path, log_dir) == 0
    assert stored(path) == {}


@pytest.mark.parametrize("topic_id", [TOPIC_ID, ANOTHER_ID])
@pytest.mark.parametrize("way", ["deleted", "rotten"])
def test_93_what_was_compacted_goes_with_the_log(disk: FailingDisk, tmp_path: Path, way: str, topic_id: UUID) -> None:
    """Schedule 93: deleted with its topic; or set aside, to be fetched from a leader that has compacted less."""
    path = formatted(disk, tmp_path)
    log_dir = compacted(disk, path)
    if way == "deleted":
        asyncio.run(log_dir.delete(TP))
    else:
        log_dir.set_rotten_aside(TP)
    assert stored(path) == {}
    append(log_dir.create(TP, topic_id), 3)
    assert cleaned_after_a_kill(disk, path, log_dir) == 0


def test_what_was_cut_is_not_compacted(disk: FailingDisk, tmp_path: Path) -> None:
    """What comes in its place was never compared with what lies before; the file says so before anything is cut."""
    path = formatted(disk, tmp_path)
    log_dir = compacted(disk, path, 25)
    log = log_dir.logs[TP]
    log.truncate_to(Offset(10))
    assert stored(path) == {TP: Cleaned(TOPIC_ID, 10)}
    append(log, 2)
    assert cleaned_after_a_kill(disk, path, log_dir) == 10


def test_what_a_log_lacks_was_not_compacted(disk: FailingDisk, tmp_path: Path) -> None:
    """An entry beyond the end is of other records. It is off the disk before new ones can reach it."""
    path = formatted(disk, tmp_path)
    log_dir = compacted(disk, path)
    put(path, encode_cleaned({TP: Cleaned(TOPIC_ID, 31)}))
    assert cleaned_after_a_kill(disk, path, log_dir) == 0
    assert stored(path) == {}


@pytest.mark.parametrize("data", [encode_offsets({TP: 20}), b"0\n1\nt 0", b"\0" * 40, b"1\n1\nt 0 20 short\n"])
def test_what_cannot_be_relied_on_is_compacted_again(disk: FailingDisk, tmp_path: Path, data: bytes) -> None:
    """An earlier version names no id; what is damaged is told of. Neither ends the start: it costs time alone."""
    path = formatted(disk, tmp_path)
    log_dir = compacted(disk, path)
    (Path(path) / CLEANER_OFFSETS).write_bytes(data)
    (Path(path) / CHECKPOINT_COPY).unlink()
    with capture_logs() as lines:
        assert cleaned_after_a_kill(disk, path, log_dir) == 0
    told = [line for line in lines if "compacted again" in line["event"]]
    assert bool(told) == (data != encode_offsets({TP: 20}))


def test_the_file() -> None:
    """As Kafka's, and the id behind each entry; an older reader refuses the version, and compacts again."""
    cleaned = {TopicPartition("b", 1): Cleaned(ANOTHER_ID, 7), TopicPartition("a", 0): Cleaned(TOPIC_ID, 5)}
    data = encode_cleaned(cleaned)
    assert data.split(b"\n")[:2] == [b"1", b"2"]
    assert data.split(b"\n")[2].startswith(b"a 0 5 ")
    assert decode_cleaned("file", data) == cleaned
    with pytest.raises(CorruptLogError, match="version 2"):
        decode_cleaned("file", data.replace(b"1\n", b"2\n", 1))
