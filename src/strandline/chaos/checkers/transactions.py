"""Checks of a history's transactions, i.e. of operations with several sends and polls (rule E1: precommitted-read, G0,
G1c, pairs)."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.chaos.checkers.columns import FAIL, NONE, OK, UNCOMMITTED
from strandline.chaos.checkers.history import Partition
from strandline.chaos.checkers.invariant import Anomaly
from strandline.chaos.checkers.order import READ_COMMITTED, Analysis

Edges = dict[int, set[int]]
"""Index of a transaction -> indexes of the transactions that must come after it."""


def precommitted_reads(analysis: Analysis) -> Iterator[Anomaly]:
    """Anomaly precommitted-read: a transaction polled a record that it sent itself, so that a read_committed consumer
    saw uncommitted data."""
    columns, sends, polls = analysis.columns, analysis.columns.sends, analysis.columns.polls
    if not columns.transactions:
        return
    writer = _writers(analysis)
    for poll, transaction in enumerate(polls.transaction):
        if transaction == NONE or polls.flags[poll] & UNCOMMITTED:
            continue
        for row in range(polls.start[poll], polls.start[poll + 1]):
            if writer.get(polls.value[row]) == transaction:
                producer = columns.process_name(sends.process[sends.transaction.index(transaction)])
                facts = {"value": columns.values[polls.value[row]], "offset": polls.offset[row], "process": producer}
                yield Anomaly("precommitted-read", columns.partitions[polls.partition[row]], facts)


def _writers(analysis: Analysis) -> dict[int, int]:
    """Value -> index of the transaction that sent it."""
    sends = analysis.columns.sends
    return {
        value: transaction
        for transaction, value in zip(sends.transaction, sends.value, strict=True)
        if transaction != NONE
    }


def cycles(analysis: Analysis) -> Iterator[Anomaly]:
    """Anomalies G0 and G1c: cycles between committed transactions.

    G0 is a cycle of writes alone (ww: one transaction writes after another to a partition). G1c is a cycle that also
    has reads (wr: one transaction reads what another wrote). Kafka interleaves the writes of transactions, so G0 is
    allowed, and so is G1c with a ww edge.
    """
    if not analysis.columns.transactions:
        return
    write_edges, read_edges = _write_edges(analysis), _read_edges(analysis)
    both: Edges = {}
    for edges in (write_edges, read_edges):
        for source, targets in edges.items():
            both.setdefault(source, set()).update(targets)
    legal = "transactions' writes interleave"
    pure = set[frozenset[int]]()
    for members in _circles(write_edges):
        yield Anomaly("G0", None, {"transactions": _named(analysis, members)}, legal)
        pure.add(frozenset(members))
    for members in _circles(read_edges):
        yield Anomaly("G1c", None, {"transactions": _named(analysis, members)})
        pure.add(frozenset(members))
    for members in _circles(both):
        if frozenset(members) not in pure:
            yield Anomaly("G1c", None, {"transactions": _named(analysis, members), "edges": "ww and wr"}, legal)


def _write_edges(analysis: Analysis) -> Edges:
    """ww edges: from each committed transaction to the one with the next write in the partition, if it differs."""
    writer = _writers(analysis)
    edges: Edges = {}
    for order in analysis.orders:
        before = NONE
        for _, value in order.values.items():
            transaction = writer.get(value, NONE)
            if transaction == NONE or not analysis.committed(transaction):
                continue
            if before not in (NONE, transaction):
                edges.setdefault(before, set()).add(transaction)
            before = transaction
    return edges


def _read_edges(analysis: Analysis) -> Edges:
    """wr edges: from each transaction to the committed ones that read what it wrote."""
    writer, polls = _writers(analysis), analysis.columns.polls
    edges: Edges = {}
    for poll, reader in enumerate(polls.transaction):
        if reader == NONE or not analysis.committed(reader):
            continue
        for row in range(polls.start[poll], polls.start[poll + 1]):
            transaction = writer.get(polls.value[row], NONE)
            if transaction not in (NONE, reader):
                edges.setdefault(transaction, set()).add(reader)
    return edges


def _circles(edges: Edges) -> Iterator[list[int]]:
    """Strongly connected components of more than one member (Tarjan 1972, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    stacked: set[int] = set()
    for root in sorted(edges):
        if root in number:
            continue
        work = [(root, iter(sorted(edges.get(root, ()))))]
        number[root] = low[root] = len(number)
        stack.append(root)
        stacked.add(root)
        while work:
            node, following = work[-1]
            for target in following:
                if target not in number:
                    number[target] = low[target] = len(number)
                    stack.append(target)
                    stacked.add(target)
                    work.append((target, iter(sorted(edges.get(target, ())))))
                    break
                if target in stacked:
                    low[node] = min(low[node], number[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    cut = stack.index(node)
                    members = stack[cut:]
                    del stack[cut:]
                    stacked.difference_update(members)
                    if len(members) > 1:
                        yield sorted(members)


def _named(analysis: Analysis, transactions: list[int]) -> list[str]:
    """Names of transactions for a report: the producer, and the first value that it sent."""
    columns, sends = analysis.columns, analysis.columns.sends
    wanted = set(transactions)
    named: dict[int, str] = {}
    for row, transaction in enumerate(sends.transaction):
        if transaction in wanted and transaction not in named:
            value = columns.values[sends.value[row]]
            named[transaction] = f"{columns.process_name(sends.process[row])}: {value}"
    return [named.get(transaction, f"transaction {transaction}") for transaction in transactions]


def pairs(analysis: Analysis) -> Iterator[Anomaly]:
    """Anomalies of exactly-once processing, where each input is to give one output.

    pair-duplicate: one input has two committed outputs. pair-lost: a transaction committed offsets beyond an input,
    but the input has no output.
    """
    columns, sends = analysis.columns, analysis.columns.sends
    if not columns.sources:
        return
    outputs: dict[int, list[int]] = {}
    for row, value in enumerate(sends.value):
        source = columns.sources.get(value)
        shown = analysis.seen[value] & READ_COMMITTED
        if source is not None and (shown or sends.status[row] == OK) and sends.status[row] != FAIL:
            made = outputs.setdefault(source, [])
            if value not in made:
                made.append(value)
    for source, made in outputs.items():
        if len(made) > 1:
            facts = {"source": columns.values[source], "outputs": [columns.values[value] for value in made]}
            yield Anomaly("pair-duplicate", _home(analysis, made[0]), facts)
    for source in _passed(analysis):
        if source not in outputs:
            facts = {"source": columns.values[source], "offset": analysis.where[source]}
            yield Anomaly("pair-lost", _home(analysis, source), facts)


def _home(analysis: Analysis, value: int) -> Partition | None:
    return analysis.columns.partitions[analysis.home[value]] if analysis.home[value] != NONE else None


def _passed(analysis: Analysis) -> Iterator[int]:
    """Values that committed transactions of a pipeline polled, and whose offsets they committed as processed."""
    columns, polls = analysis.columns, analysis.columns.polls
    pipelines = {
        transaction
        for transaction, value in zip(columns.sends.transaction, columns.sends.value, strict=True)
        if value in columns.sources
    }
    for poll, transaction in enumerate(polls.transaction):
        if transaction not in pipelines or not analysis.committed(transaction):
            continue
        ends = {
            columns.partition_id(commit.partition): commit.offset
            for commit in columns.transactional_commits.get(transaction, ())
        }
        for row in range(polls.start[poll], polls.start[poll + 1]):
            if polls.offset[row] < ends.get(polls.partition[row], 0):
                yield polls.value[row]
