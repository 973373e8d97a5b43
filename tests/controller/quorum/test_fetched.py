"""What a leader sent is tried before it is appended (rule A16)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import pytest
from tests.controller.quorum.quorum_trial import Node, Trial

from strandline.controller.quorum.api import CommittedBatch, QuorumConfig
from strandline.controller.quorum.fetched import Fetched
from strandline.controller.quorum.metadata_log import MetadataLog, build_data_batch
from strandline.controller.raft.messages import (
    Batch,
    FetchRequest,
    FetchResponse,
    LeaderChange,
    OffsetAndEpoch,
    ReplicaKey,
)
from strandline.log.batch import Record, build_batch
from strandline.log.compression import Codec
from strandline.log.real_disk import RealDisk
from strandline.proto import marks
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError
from strandline.proto.ids import NodeId
from strandline.proto.steps import Steps
from strandline.proto.system import SystemClock

ME = ReplicaKey(NodeId(2), UUID(int=2))
BAD = b"bad"


class Tried:
    """A rehearsal that refuses what is bad, and knows what it holds."""

    def __init__(self, handed: list[bytes]) -> None:
        self.handed = handed
        self.values: list[bytes] = []
        self.restarts = 0

    def restart(self) -> None:
        self.restarts += 1
        self.values = list(self.handed)

    def replay(self, batch: CommittedBatch) -> None:
        if BAD in batch.records:
            raise FatalError("nobody can replay this")
        self.values += batch.records

    def load(self, end_offset: int, epoch: int, records: Iterable[bytes]) -> Steps[None]:
        yield from ()
        if BAD in list(records):
            raise FatalError("nobody can load this")


def batch(offset: int, value: bytes, *, epoch: int = 1) -> Batch:
    data = build_data_batch([value], base_offset=offset, epoch=epoch, timestamp_ms=1)
    return Batch(offset, offset + 1, epoch, bytes(data))


def asked(offset: int, *, epoch: int = 1) -> FetchRequest:
    return FetchRequest("c", ME, epoch, offset, epoch if offset else 0, 0, 0, 1000)


def answer(high_watermark: int, *batches: Batch) -> FetchResponse:
    return FetchResponse(ErrorCode.NONE, 1, NodeId(1), high_watermark, batches=batches)


def log_of(path: Path, *values: bytes) -> MetadataLog:
    """A log of one control batch, as every epoch begins, and these records."""
    log = MetadataLog.open(RealDisk(), str(path), SystemClock(), QuorumConfig(), rewriting=None)
    assert log.write(Batch(0, 1, 1, LeaderChange(NodeId(1), (), ())), 1)
    for offset, value in enumerate(values, start=1):
        assert log.write(batch(offset, value), 1)
    return log


def test_what_can_be_replayed_passes_and_is_tried_once(tmp_path: Path) -> None:
    """The rehearsal goes on from answer to answer; records of the log that are not committed are tried first."""
    log = log_of(tmp_path, b"a", b"b")
    tried = Tried([b"a"])
    fetched = Fetched(log, tried)
    first = answer(2, batch(3, b"c"), batch(4, b"d"))
    assert fetched.judged(asked(3), first, 2) == (first, "")
    assert tried.values == [b"a", b"b", b"c", b"d"]
    for offset, value in ((3, b"c"), (4, b"d")):
        assert log.write(batch(offset, value), 1)
    second = answer(5, batch(5, b"e"))
    assert fetched.judged(asked(5), second, 2) == (second, "")
    assert tried.values == [b"a", b"b", b"c", b"d", b"e"]
    assert tried.restarts == 1


@pytest.mark.parametrize(
    "bad",
    [
        batch(4, BAD),
        Batch(4, 5, 1, bytes(build_batch([Record(0, 1, None, BAD)], base_offset=4, leader_epoch=1, codec=Codec.GZIP))),
    ],
    ids=["plain", "compressed"],
)
def test_what_cannot_be_replayed_is_cut_off(tmp_path: Path, bad: Batch) -> None:
    """What is before it passes. If nothing is, the answer is an error of a leader that is to be doubted."""
    log = log_of(tmp_path, b"a", b"b")
    fetched = Fetched(log, Tried([b"a", b"b"]))
    response, why = fetched.judged(asked(3), answer(3, batch(3, b"c"), bad, batch(5, b"e")), 3)
    assert (response.error, response.batches) == (ErrorCode.NONE, (batch(3, b"c"),))
    assert "at 4: nobody can replay this" in why
    assert log.write(batch(3, b"c"), 1)
    response, why = fetched.judged(asked(4), answer(4, bad, batch(5, b"e")), 3)
    assert (response.error, response.leader_id, response.batches) == (ErrorCode.INVALID_RECORD, None, ())
    assert "at 4: nobody can replay this" in why


def test_what_is_no_record_at_all_is_cut_off_too(tmp_path: Path) -> None:
    """A batch whose records do not parse, under a CRC that holds."""
    data = bytearray(build_data_batch([b"abc"], base_offset=1, epoch=1, timestamp_ms=1))
    data[61:] = b"\xff" * (len(data) - 61)
    fetched = Fetched(log_of(tmp_path), Tried([]))
    response, why = fetched.judged(asked(1), answer(1, Batch(1, 2, 1, bytes(data))), 1)
    assert response.error is ErrorCode.INVALID_RECORD, why


def test_what_is_committed_is_not_refused(tmp_path: Path) -> None:
    """A majority holds it: whether it can be replayed is for the listener to say."""
    fetched = Fetched(log_of(tmp_path), Tried([]))
    committed = answer(2, batch(1, BAD), batch(2, b"b"))
    assert fetched.judged(asked(1), committed, 1) == (committed, "")


def test_who_has_not_caught_up_refuses_nothing(tmp_path: Path) -> None:
    """The state that the records meet is not known: behind a snapshot, behind what is committed, or an old answer."""
    log = log_of(tmp_path, b"a", BAD)
    fetched = Fetched(log, Tried([]))
    unknown = answer(1, batch(3, BAD))
    assert fetched.judged(asked(3), unknown, 1) == (unknown, ""), "the log itself holds what cannot be tried"
    assert fetched.judged(asked(2), unknown, 2) == (unknown, ""), "not the answer to what is wanted now"
    log.reset_to(OffsetAndEpoch(9, 1))
    behind = answer(1, batch(9, BAD))
    assert fetched.judged(asked(9), behind, 3) == (behind, ""), "a snapshot is not loaded yet"


def test_after_a_truncation_the_rehearsal_begins_anew(tmp_path: Path) -> None:
    """What was truncated was never there."""
    log = log_of(tmp_path, b"a")
    tried = Tried([b"a"])
    fetched = Fetched(log, tried)
    fetched.judged(asked(2), answer(2, batch(2, b"b"), batch(3, b"c")), 2)
    assert log.write(batch(2, b"b"), 1)
    assert log.write(batch(3, b"c"), 1)
    log.truncate_to(3)
    fetched.judged(asked(3), answer(2, batch(3, b"x")), 2)
    assert tried.values == [b"a", b"b", b"x"]


def test_the_rehearsal_begins_anew_where_the_log_took_another_way(tmp_path: Path) -> None:
    """What was tried was not appended, and another leader's record stands in its place."""
    log = log_of(tmp_path, b"a")
    tried = Tried([b"a"])
    fetched = Fetched(log, tried)
    fetched.judged(asked(2), answer(2, batch(2, b"b")), 2)
    assert log.write(batch(2, b"x", epoch=2), 1)
    fetched.judged(asked(3, epoch=2), answer(2, batch(3, b"y", epoch=2)), 2)
    assert tried.values == [b"a", b"x", b"y"]


def test_a_snapshot_that_cannot_be_loaded_replaces_nothing() -> None:
    """A node that has been away would get a snapshot that it cannot load: it stops with its own log in place, and the
    version that can load it goes on from there."""
    trial = Trial(config=QuorumConfig(snapshot_max_new_record_bytes=4_000, log_segment_bytes=2_000))
    disk = trial.world.machines["n3"].disk

    def kept() -> list[str]:
        return sorted(name for name in disk.files() if "__cluster_metadata-0" in name and ".part" not in name)

    async def scenario(trial: Trial) -> None:
        trial.start()
        await trial.commit(b"first")
        trial.kill(3)
        for number in range(60):
            await trial.commit(BAD if number == 0 else b"%d" % number * 100)
        leader = await trial.elect()
        assert leader.quorum is not None
        await trial.until(lambda: leader.quorum is not None and leader.quorum._log.start_offset > 10)  # type: ignore[union-attr]
        before = kept()
        again = trial.nodes[3] = Node(3, 3, trial.config)
        again.rehearsal = Tried([])
        trial.world.spawn("n3", again.main)
        await trial.until(lambda: again.fatal)
        assert "nobody can load this" in str(again.fatal[0])
        assert kept() == before, "its log is in place"
        trial.kill(3)
        trial.start(3)
        await trial.until(lambda: trial.nodes[3].values == leader.values)

    trial.play(scenario)


def test_the_log_stays_where_the_snapshot_cannot_be_loaded() -> None:
    """A node's own snapshot would be all that is left of the log below it. It is read back and loaded first; where that
    fails the node says so, keeps its log, and goes on."""
    marks.reset()
    trial = Trial(config=QuorumConfig(snapshot_max_new_record_bytes=1_000, log_segment_bytes=500))

    def snapshots_of(number: int) -> list[str]:
        return [name for name in trial.world.machines[f"n{number}"].disk.files() if ".checkpoint" in name]

    async def scenario(trial: Trial) -> None:
        trial.start()
        await trial.until(lambda: trial.nodes[3].quorum is not None)
        odd = trial.nodes[3]
        odd.take_snapshot = lambda: (odd.end_offset, odd.epoch, [BAD])  # type: ignore[method-assign]
        driver = odd.quorum._driver  # type: ignore[union-attr]
        driver._snapshotting._fetched = Fetched(driver._log, Tried([]))
        for number in range(60):
            await trial.commit(b"%d" % number * 50)
        await trial.until(lambda: snapshots_of(1) and snapshots_of(2) and odd.values == trial.nodes[1].values)
        assert snapshots_of(3) == []
        assert marks.counts()["snapshot-not-kept"] > 1, "it is tried again, some records later"
        assert odd.quorum is not None
        assert odd.quorum._log.start_offset == 0  # type: ignore[union-attr]
        assert not odd.fatal
        trial.kill(3)
        trial.start(3)
        await trial.until(lambda: trial.nodes[3].values == trial.nodes[1].values)

    trial.play(scenario)
