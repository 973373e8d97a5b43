"""Offset checkpoints that a disk gives back damaged: nothing goes on the word of one file (rule B31)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strandline.log.checkpoints import HIGH_WATERMARKS, LOG_STARTS, OFFSET_CHECKPOINTS, RECOVERY_POINTS, encode_offsets
from strandline.log.findings import LogCondition
from strandline.log.log_dir import LogDir
from strandline.log.offset_checkpoints import CHECKPOINT_COPY, decode_copy, encode_copy
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import Offset, TopicPartition
from tests.log.helpers import TOPIC_ID, TP, FailingDisk, all_records, fill
from tests.log.test_log_dir import formatted, killed, opened

START, END = 14, 60

FILES = (*OFFSET_CHECKPOINTS, CHECKPOINT_COPY)


class Left:
    """A directory whose log begins at 14 and ends at 60, in several segments."""

    def __init__(self, disk: FailingDisk, tmp_path: Path, *, clean: bool) -> None:
        self.disk = disk
        self.path = Path(formatted(disk, tmp_path))
        log_dir = opened(disk, str(self.path))
        log = log_dir.create(TP, TOPIC_ID)
        fill(log, 40, size=200, epoch=1)
        log.sync_now()
        log.cleaned_to = Offset(20)
        log_dir.write_checkpoints({TP: 40})
        self.older = {name: (self.path / name).read_bytes() for name in FILES}
        log.delete_records_before(START)
        log.cleaned_to = Offset(30)
        fill(log, END - 40, size=200, epoch=2)
        log.sync_now()
        log.sync_now()
        log_dir.write_checkpoints({TP: END})
        log_dir.close(3) if clean else killed(log_dir)

    def damage(self, name: str, damage: str) -> None:
        path = self.path / name
        data = path.read_bytes()
        match damage:
            case "flip":
                at = data.rindex(b"orders 0 ") + len(b"orders 0 ")
                data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            case "up":
                at = data.rindex(b"orders 0 ") + len(b"orders 0 ")
                data = data[:at] + b"9" + data[at:]
            case "zeros":
                data = bytes(len(data))
            case "cut":
                data = data[: len(data) // 2]
            case "older":
                data = self.older[name]
            case "missing":
                path.unlink()
                return
        path.write_bytes(data)

    def found(self) -> LogDir:
        return opened(self.disk, str(self.path))


def check(log_dir: LogDir, start: int = START) -> None:
    """Every record is there, and what was deleted is not."""
    assert log_dir.offline == {}
    log = log_dir.logs[TP]
    assert (log.log_start_offset, log.log_end_offset) == (start, END)
    assert log.cleaned_to <= 30, "no more than was compacted"
    assert [record.offset for record in all_records(log) if record.offset >= start] == list(range(start, END))
    assert log_dir.findings.all[TP].condition is LogCondition.INTACT


@pytest.mark.parametrize("damage", ["flip", "up", "zeros", "cut", "older", "missing"])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "killed"])
def test_99_damage_to_one_file_changes_nothing(
    disk: FailingDisk, tmp_path: Path, capsys: pytest.CaptureFixture[str], clean: bool, name: str, damage: str
) -> None:
    """Schedule 99: whatever becomes of one file, the log begins and ends where it did, and its start says so. After the
    next checkpoint both files are what they were."""
    left = Left(disk, tmp_path, clean=clean)
    whole = {file: (left.path / file).read_bytes() for file in FILES}
    left.damage(name, damage)
    capsys.readouterr()
    log_dir = left.found()
    said = capsys.readouterr().out
    check(log_dir)
    assert damage in ("older", "missing") or name in said
    log_dir.logs[TP].cleaned_to = Offset(30)
    log_dir.write_checkpoints({TP: END})
    assert {file: (left.path / file).read_bytes() for file in FILES} == whole
    killed(log_dir)
    check(left.found())


@pytest.mark.parametrize("damage", ["up", "flip"])
def test_99_an_older_builds_log_start_is_held_against_the_epochs(
    disk: FailingDisk, tmp_path: Path, damage: str
) -> None:
    """There is no copy: what both the checkpoint and the log's own epochs say counts. What is intact is believed."""
    left = Left(disk, tmp_path, clean=True)
    left.damage(CHECKPOINT_COPY, "missing")
    shutil.copytree(left.path, tmp_path / "whole")
    check(opened(disk, str(tmp_path / "whole")))
    left.damage(LOG_STARTS, damage)
    log_dir = left.found()
    assert log_dir.logs[TP].log_start_offset <= START
    assert log_dir.logs[TP].log_end_offset == END
    assert {record.offset for record in all_records(log_dir.logs[TP])} >= set(range(START, END))


def test_neither_can_be_read(disk: FailingDisk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The node starts. The logs say what there is, and nobody may count on it that nothing lacks."""
    left = Left(disk, tmp_path, clean=True)
    for name in FILES:
        left.damage(name, "cut")
    log_dir = left.found()
    assert "has no copy: the logs alone say what it said" in capsys.readouterr().out
    assert log_dir.findings.all[TP].condition is LogCondition.CUT
    assert log_dir.logs[TP].log_end_offset == END
    assert {record.offset for record in all_records(log_dir.logs[TP])} >= set(range(START, END))


def test_what_one_file_says_does_not_become_what_two_say(disk: FailingDisk, tmp_path: Path) -> None:
    """A log cannot be opened in this life: what is known of its start stays as it was, and is not copied."""
    left = Left(disk, tmp_path, clean=True)
    left.damage(CHECKPOINT_COPY, "missing")
    left.damage(LOG_STARTS, "up")
    metadata = left.path / str(TP) / "partition.metadata"
    whole = metadata.read_bytes()
    metadata.write_bytes(b"version: 0\n")
    log_dir = left.found()
    assert list(log_dir.offline) == [TP]
    fill(log_dir.create(TopicPartition("other", 1), TOPIC_ID), 3)
    log_dir.write_checkpoints({})
    killed(log_dir)
    metadata.write_bytes(whole)
    assert left.found().logs[TP].log_start_offset == START


@pytest.mark.parametrize("position", range(0, 60, 7))
def test_a_copy_holds_or_is_refused(position: int) -> None:
    """Any flipped bit of it is noticed."""
    contents = {LOG_STARTS: encode_offsets({TP: 5}), HIGH_WATERMARKS: b"", RECOVERY_POINTS: encode_offsets({TP: 7})}
    data = encode_copy(contents)
    assert decode_copy("p", data) == contents
    flipped = bytearray(data)
    flipped[position] ^= 4
    with pytest.raises(CorruptLogError, match="checksum"):
        decode_copy("p", bytes(flipped))
