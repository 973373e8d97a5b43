"""Epochs in transactions: what the ledger says of one, whoever reads it and whenever.

Each attempt at a task writes in a transaction of its own, under an id of its own, and leaves it open (prepared). The
driver then decides: one entry of the ledger names the attempts whose transactions are the epoch. After that it has them
committed, and all others aborted. So:

- Rows of an attempt that failed, was repeated, or lost to a faster one, lie in a transaction that is aborted.
- A driver that dies before the decision leaves nothing: the next run writes the epoch anew. One that dies behind it
  leaves the rest of the work to the next run, whose tasks write nothing.
- Two drivers, of which one was taken for dead, decide one thing: of an epoch's decisions the first one counts that was
  made by the run that had begun last by then. Entries have one order, so all that read them agree.

An attempt notes that it begins before it asks for its producer id: a decision that stands before that entry is seen by
it, and one behind it aborts it. A transaction that was decided and aborted all the same, as it was open for longer than
its time-out or an operator ended it, tears the epoch: the next run finds the rows of the others, by what they have in
the log, and writes what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from strandline.client.errors import OffsetOutOfRange, TopicReplaced, UnknownTopic
from strandline.client.fetcher import consumer_records
from strandline.client.range_reader import RangeReader
from strandline.spark.ledger import Attempt, Entries, LogRecord, attempts_of, row_digest


class Decision(NamedTuple):
    """The transactions of an epoch."""

    offset: int
    """Offset of the entry in the ledger."""
    run: str
    attempts: tuple[str, ...]


class Epoch(NamedTuple):
    """An epoch, as its entries tell it."""

    attempts: Mapping[str, Attempt]
    runs: tuple[str, ...]
    """Runs that have begun it, the last one last."""
    decision: Decision | None
    """The decision that is to be carried out; None: there is none, or it was torn."""
    torn: tuple[str, ...]
    """Attempts of decisions that were torn, whose transactions were committed."""

    @classmethod
    def of(cls, entries: Entries) -> Epoch:
        """State of an epoch, from its entries."""
        runs: dict[str, None] = {}
        decision: Decision | None = None
        torn: list[str] = []
        for offset, entry in entries:
            if "attempt" in entry:
                runs.setdefault(entry["run"])
            elif "decided" in entry:
                # rule C24/decision-of-a-run-that-was-replaced
                if decision is None and entry["run"] == next(reversed(runs), None):
                    decision = Decision(offset, entry["run"], tuple(entry["decided"]))
            elif "torn" in entry and decision is not None and decision.offset == entry["of"]:
                torn += [name for name in decision.attempts if name not in entry["torn"]]
                decision = None
        return cls({each.name: each for each in attempts_of(entries)}, tuple(runs), decision, tuple(torn))

    def kept(self) -> list[Attempt]:
        """Attempts whose rows are committed though their epoch is not whole."""
        found = (self.attempts[name] for name in self.torn)
        return [replace(each, ended=True, producers={each.prepared.producer_id}) for each in found if each.prepared]

    def open(self) -> set[str]:
        """Transactional ids of attempts that may be open, and are not of the decision."""
        decided = () if self.decision is None else self.decision.attempts
        keep = {self.attempts[name].transaction for name in (*decided, *self.torn)}
        return {each.transaction for each in self.attempts.values() if each.transaction and not each.ended} - keep


def records_of_transactions(
    attempts: Iterable[Attempt], bootstrap: str, settings: Mapping[str, Any]
) -> Iterator[LogRecord]:
    """Records in the committed transactions of these attempts. Records and topics that were deleted since count as not
    written."""
    with RangeReader(bootstrap, **settings) as reader:
        for attempt in attempts:
            if attempt.prepared is None:
                continue
            for partition, end in attempt.ends.items():
                start = attempt.starts.get(partition, 0)
                reader.expect(partition.topic, attempt.ids.get(partition.topic))
                try:
                    for batch in reader.read_batches(*partition, start, end):
                        header = batch.header
                        if (header.producer_id, header.producer_epoch) != attempt.prepared[1:3]:
                            continue  # under one id, of a transaction that was aborted
                        for record in consumer_records(partition, header, batch.data, start, check_crcs=False):
                            digest = row_digest(partition.topic, record.key, record.value, record.headers)
                            yield LogRecord(header.producer_id, digest, partition.partition)
                except (UnknownTopic, OffsetOutOfRange, TopicReplaced):
                    continue
