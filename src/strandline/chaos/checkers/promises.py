"""Checks of single values: at one offset, one value, once, and there for ever if promised or shown (rule E1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.chaos.checkers.columns import ACKED, FAIL, MAY_REPEAT, NONE, OK, UNCOMMITTED
from strandline.chaos.checkers.invariant import Anomaly
from strandline.chaos.checkers.order import READ, READ_FINALLY, Analysis


def inconsistent_offsets(analysis: Analysis) -> Iterator[Anomaly]:
    """Offsets with two values."""
    columns = analysis.columns
    for number, order in enumerate(analysis.orders):
        for offset, others in order.conflicts.items():
            values = [columns.values[value] for value in (order.values.get(offset), *others)]
            yield Anomaly("inconsistent-offsets", columns.partitions[number], {"offset": offset, "values": values})


def duplicates(analysis: Analysis) -> Iterator[Anomaly]:
    """Values at more than one offset; legal where the producer retried without idempotence."""
    if not analysis.elsewhere:
        return
    columns, sends = analysis.columns, analysis.columns.sends
    repeatable = {value for value, flags in zip(sends.value, sends.flags, strict=True) if flags & MAY_REPEAT}
    for value, others in analysis.elsewhere.items():
        places = sorted([(analysis.home[value], analysis.where[value]), *others])
        offsets = [offset for _, offset in places]
        facts: dict[str, Any] = {"value": columns.values[value], "offsets": offsets}
        if len({partition for partition, _ in places}) > 1:
            facts["places"] = [f"{columns.partitions[partition]}@{offset}" for partition, offset in places]
        legal = "retried without idempotence" if value in repeatable else ""
        yield Anomaly("duplicate", columns.partitions[places[0][0]], facts, legal)


def lost_writes(analysis: Analysis) -> Iterator[Anomaly]:
    """A value acked under acks=all (its transaction committed too, or proven so by a sibling that was read), at or
    below the highest offset read, that no poll ever returned."""
    columns, sends = analysis.columns, analysis.columns.sends
    for row, flags in enumerate(sends.flags):
        if not flags & ACKED or analysis.seen[sends.value[row]] & READ:
            continue
        order = analysis.orders[sends.partition[row]]
        offset = sends.offset[row]
        if offset != NONE and offset <= order.highest_read:
            facts = {
                "value": columns.values[sends.value[row]],
                "offset": offset,
                "highest_read": order.highest_read,
                "acked_ms": round(sends.completed_ms[row]),
            }
            yield Anomaly("lost-write", columns.partitions[sends.partition[row]], facts)


def shown_then_lost(analysis: Analysis) -> Iterator[Anomaly]:
    """A value that a consumer of committed data was shown, and that the final read, past its offset, does not hold.
    Whatever the acks were."""
    columns = analysis.columns
    if not any(order.highest_read_finally >= 0 for order in analysis.orders):
        return
    aborted = _aborted(analysis)
    for value, bits in enumerate(analysis.seen):
        if bits & READ and not bits & READ_FINALLY and value not in aborted:
            order = analysis.orders[analysis.home[value]]
            if analysis.where[value] <= order.highest_read_finally:
                facts = {"value": columns.values[value], "offsets": [analysis.where[value]]}
                yield Anomaly("shown-then-lost", columns.partitions[analysis.home[value]], facts)


def _aborted(analysis: Analysis) -> set[int]:
    """Values of transactions that are not known to have committed: shown to a consumer that asked to see them."""
    sends = analysis.columns.sends
    return {
        value
        for transaction, status, value in zip(sends.transaction, sends.status, sends.value, strict=True)
        if transaction != NONE and status != OK
    }


def aborted_reads(analysis: Analysis) -> Iterator[Anomaly]:
    """G1a: the value of a failed send seen by an ok poll. A consumer of uncommitted data may see aborted ones."""
    columns, sends, polls = analysis.columns, analysis.columns.sends, analysis.columns.polls
    failed = {
        value: transaction
        for status, transaction, value in zip(sends.status, sends.transaction, sends.value, strict=True)
        if status == FAIL and analysis.seen[value] & READ
    }
    if not failed:
        return
    names = {number: name for name, number in columns.processes.items()}
    for poll, status in enumerate(polls.status):
        if status != OK:
            continue
        for row in range(polls.start[poll], polls.start[poll + 1]):
            transaction = failed.get(polls.value[row])
            if transaction is None or (transaction != NONE and polls.flags[poll] & UNCOMMITTED):
                continue
            value = columns.values[polls.value[row]]
            facts = {"value": value, "offset": polls.offset[row], "consumer": names[polls.process[poll]]}
            yield Anomaly("G1a", columns.partitions[polls.partition[row]], facts)


def unseen(analysis: Analysis) -> Iterator[Anomaly]:
    """Acknowledged values beyond the highest offset read: there must be none once everything healed and was read."""
    columns, sends = analysis.columns, analysis.columns.sends
    for row, flags in enumerate(sends.flags):
        if not flags & ACKED or analysis.seen[sends.value[row]] & READ:
            continue
        offset = sends.offset[row]
        if offset == NONE or offset > analysis.orders[sends.partition[row]].highest_read:
            facts = {"value": columns.values[sends.value[row]], "offset": None if offset == NONE else offset}
            yield Anomaly("unseen", columns.partitions[sends.partition[row]], facts)
