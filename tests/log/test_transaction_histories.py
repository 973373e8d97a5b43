"""Random histories of transactions against a model: stops, cuts, compaction, a copy (rules C6, C10 and C11)."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log.batch import Record, build_batch
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk
from tests.log.compacting import COMPACTED, NOW_MS, assert_no_hole, compact
from tests.log.helpers import open_test_log
from tests.log.transacting import TransactionalProducer, aborted, committed_records

CONFIG = replace(COMPACTED, segment_bytes=500)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("send",) * 8
            + ("commit", "abort", "plain", "compact") * 2
            + ("raise",) * 3
            + ("stop", "kill", "roll", "delete", "cut")
        ),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    min_size=30,
    max_size=80,
)
CHECKED = ("stop", "kill", "compact", "delete", "cut")


@dataclass
class Model:
    """What was written: offset -> (key, producer or None), and how each transaction ended."""

    records: dict[int, tuple[str, tuple[int, int] | None]] = field(default_factory=dict)
    ends: dict[tuple[int, int], tuple[int, bool]] = field(default_factory=dict)
    """Producer and epoch -> offset of the marker, and whether it commits."""

    def cut(self, offset: int) -> None:
        self.records = {at: what for at, what in self.records.items() if at < offset}
        self.ends = {one: end for one, end in self.ends.items() if end[0] < offset}

    def open(self) -> dict[tuple[int, int], int]:
        """First offset of each open transaction."""
        firsts: dict[tuple[int, int], int] = {}
        for offset, (_, transaction) in sorted(self.records.items()):
            if transaction is not None and transaction not in self.ends:
                firsts.setdefault(transaction, offset)
        return firsts

    def stable(self, high_watermark: int) -> int:
        """Last stable offset by the rule."""
        firsts: dict[tuple[int, int], int] = {}
        for offset, (_, transaction) in sorted(self.records.items()):
            if transaction is not None and self.ends.get(transaction, (high_watermark, True))[0] >= high_watermark:
                firsts.setdefault(transaction, offset)
        return min([high_watermark, *firsts.values()])

    def committed(self, stable: int) -> dict[int, str]:
        """Key by offset of what a reader of committed records must see, but for what compaction may have taken."""
        return {
            offset: key
            for offset, (key, transaction) in self.records.items()
            if offset < stable and (transaction is None or self.ends.get(transaction, (0, False))[1])
        }


class History:
    """A log, its model, and the producers."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "log"
        self.log = open_test_log(RealDisk(), self.path, config=CONFIG)
        self.model = Model()
        self.producers = {number: TransactionalProducer(self.log, number) for number in range(3)}
        self.high_watermark = 0

    def write(self, key: str, producer: TransactionalProducer | None) -> None:
        fields = {} if producer is None else {"transactional": True, "base_sequence": producer.sequence}
        if producer is not None:
            fields |= {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        batch = build_batch([Record(0, NOW_MS, key.encode(), b"v" * 30)], **fields)  # type: ignore[arg-type]
        asked = None
        if producer is not None:
            asked = self.log.begin_verification(
                producer.producer_id, producer.epoch, producer.sequence, begins_at_0=True
            )
            producer.sequence += 1
        offset = self.log.append_as_leader(memoryview(batch), 0, NOW_MS, verification=asked).base_offset
        self.model.records[offset] = (key, None if producer is None else (producer.producer_id, producer.epoch))

    def end(self, producer: TransactionalProducer, *, commit: bool) -> None:
        transaction = (producer.producer_id, producer.epoch)
        self.model.ends[transaction] = (int(producer.end(commit=commit).base_offset), commit)

    def open_again(self, *, clean: bool) -> None:
        if clean:
            self.log.close()
        else:
            self.log.sync_now()
            self.log.close_files()
        self.log = open_test_log(RealDisk(), self.path, config=CONFIG, last_life=LastLife(clean=clean))
        for producer in self.producers.values():
            producer.log = self.log

    def cut(self, back: int) -> None:
        """To an offset that is not below the high watermark."""
        at = max(self.high_watermark, int(self.log.log_end_offset) - back)
        end = int(self.log.truncate_to(at))
        self.model.cut(end)
        for producer in self.producers.values():
            entry = self.log.producers.get(producer.producer_id)
            producer.epoch += 1 if entry is None else max(0, entry.epoch - producer.epoch)
            if entry is not None and entry.transaction_start >= 0:
                producer.epoch, producer.sequence = entry.epoch, entry.batches[-1].last_sequence + 1
            else:
                producer.epoch, producer.sequence = producer.epoch + 1, 0

    def step(self, kind: str, number: int, key: int) -> None:
        match kind:
            case "send":
                self.write(f"k{key}", self.producers[number])
            case "commit" | "abort":
                self.end(self.producers[number], commit=kind == "commit")
            case "plain":
                self.write(f"k{number}", None)
            case "stop" | "kill":
                self.open_again(clean=kind == "stop")
            case "compact":
                self.log.sync_now()
                stable = self.log.last_stable_offset(self.high_watermark)
                compact(self.log, limit=stable, now_ms=NOW_MS + len(self.model.records) * 500)
            case "raise":
                self.high_watermark = int(self.log.log_end_offset)
            case "roll":
                self.log.roll()
            case "cut":
                self.cut(4 * number + key)
            case "delete":
                self.log.delete_records_before(min(self.log.log_start_offset + 1, self.high_watermark))

    def check(self) -> None:
        """The log says what the model says."""
        log, model, start = self.log, self.model, int(self.log.log_start_offset)
        stable = log.last_stable_offset(self.high_watermark)
        assert stable == max(start, model.stable(self.high_watermark))
        seen = {
            record.offset: (record.key or b"").decode()
            for record in committed_records(log, high_watermark=self.high_watermark)
        }
        must = {at: key for at, key in model.committed(stable).items() if at >= start}
        assert seen.items() <= must.items(), "only what was committed is seen"
        last = {key: at for at, key in sorted(must.items())}
        assert {at: key for key, at in last.items()}.items() <= seen.items(), "the last of each key is seen"
        assert {one.producer_id for one in log.open_transactions()} == {one[0] for one in model.open()}
        assert_no_hole(log)


@given(STEPS)
@settings(max_examples=15, deadline=None)
def test_histories(steps: list[tuple[str, int, int]]) -> None:
    """After each step that may forget something the log says what the model says, and a copy of it as well."""
    with tempfile.TemporaryDirectory() as directory:
        history = History(directory)
        for kind, number, key in steps:
            history.step(kind, number, key)
            if kind in CHECKED:
                history.check()
        history.check()
        follower = open_test_log(RealDisk(), Path(directory) / "follower", config=CONFIG)
        copy(history.log, follower)
        high_watermark, end = history.high_watermark, int(history.log.log_end_offset)
        assert follower.last_stable_offset(high_watermark) == history.log.last_stable_offset(high_watermark)
        assert committed_records(follower) == committed_records(history.log)
        listed = {(one.producer_id, one.last_offset) for one in aborted(follower, 0, end)}
        assert listed <= {(one.producer_id, one.last_offset) for one in aborted(history.log, 0, end)}
        follower.close()
        history.log.close()


def copy(log: PartitionLog, follower: PartitionLog) -> None:
    """Replicate all of it."""
    if log.bases[0]:
        follower.truncate_fully_and_start_at(log.bases[0])
        follower.producers = log.snapshots.load(log.segments, log.bases[0], 0)
    offset = log.bases[0]
    while offset < log.log_end_offset:
        segment = next(one for one in reversed(log.segments) if one.base_offset <= offset)
        data = segment.file.pread(segment.size, 0)
        offset = int(follower.append_as_follower(memoryview(bytearray(data))))
    follower.delete_records_before(log.log_start_offset)
