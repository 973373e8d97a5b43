"""Leader epochs against a model that is a plain list of (offset, epoch) of every record."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strandline.log.epochs import LeaderEpochs


class EpochsAgainstRecords(RuleBasedStateMachine):
    """The cache answers as the records themselves would (KIP-101, KIP-279)."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = LeaderEpochs()
        self.records: list[int] = []  # the epoch of each offset
        self.start = 0
        self.epoch = 0

    @rule(elections=st.integers(0, 3), count=st.integers(1, 4))
    def append(self, elections: int, count: int) -> None:
        """Elections without records before the one whose leader writes (schedule 5: they leave nothing behind)."""
        for _ in range(elections):
            self.epoch += 1
            self.epochs.assign(self.epoch, len(self.records))
        self.epochs.assign(self.epoch, len(self.records))
        self.records += [self.epoch] * count

    @precondition(lambda self: len(self.records) > self.start)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """A follower cuts its end; the next epoch is newer than any seen."""
        end = data.draw(st.integers(self.start, len(self.records)))
        self.epochs.truncate_from_end(end)
        del self.records[end:]
        self.epoch += 1

    @precondition(lambda self: len(self.records) > self.start)
    @rule(data=st.data())
    def raise_start(self, data: st.DataObject) -> None:
        """Retention moves the log start."""
        self.start = data.draw(st.integers(self.start, len(self.records) - 1))
        self.epochs.truncate_from_start(self.start)

    @invariant()
    def answers_as_the_records(self) -> None:
        """Every epoch's end, every offset's epoch."""
        end = len(self.records)
        live = list(enumerate(self.records))[self.start :]
        for offset, epoch in live:
            assert self.epochs.epoch_at(offset) == epoch
        for epoch in range(self.epoch + 2):
            found, end_offset = self.epochs.end_offset_for(epoch, end)
            known = [e for e in (e for _, e in live) if e <= epoch]
            if known and found == max(known):
                assert end_offset == min((o for o, e in live if e > epoch), default=end)
            elif known:
                assert found > max(known), "an epoch without records yet: it begins where the last one ends"
                assert end_offset == end
        entries = self.epochs.entries()
        assert entries == sorted(entries)
        assert len({start for _, start in entries}) == len(entries)


EpochsAgainstRecords.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestEpochsAgainstRecords = EpochsAgainstRecords.TestCase


def test_an_election_without_records_is_answered() -> None:
    """Schedule 3: the epoch is known from the election on, before its first record."""
    epochs = LeaderEpochs([(1, 0)])
    epochs.assign(2, 10)
    assert epochs.latest == 2
    assert epochs.end_offset_for(1, 10) == (1, 10)
    assert epochs.end_offset_for(2, 10) == (2, 10)


def test_two_elections_without_records_leave_one_entry() -> None:
    """Schedule 5: an empty epoch is replaced by the next, or truncation would cut at the wrong place."""
    epochs = LeaderEpochs([(1, 0)])
    epochs.assign(2, 10)
    epochs.assign(3, 10)
    assert epochs.entries() == [(1, 0), (3, 10)]
    assert epochs.end_offset_for(2, 10) == (1, 10)


def test_asking_outside() -> None:
    """Older than all: nothing. Newer than all: the newest, up to the log end."""
    epochs = LeaderEpochs([(5, 100)])
    assert epochs.end_offset_for(4, 120) == (-1, -1)
    assert epochs.end_offset_for(9, 120) == (5, 120)
    assert LeaderEpochs().end_offset_for(0, 0) == (-1, -1)
    assert epochs.epoch_at(99) == -1
    assert LeaderEpochs().latest == -1


def test_dirty_follows_changes() -> None:
    """Only a change makes the file stale."""
    epochs = LeaderEpochs([(1, 0)])
    assert not epochs.dirty
    assert not epochs.assign(1, 5)
    assert not epochs.dirty
    assert epochs.assign(2, 7)
    assert epochs.dirty
    epochs.written = epochs.version
    epochs.truncate_from_end(100)
    epochs.truncate_from_start(0)
    assert not epochs.dirty
    with pytest.raises(ValueError, match="epoch -1"):
        epochs.assign(-1, 0)
