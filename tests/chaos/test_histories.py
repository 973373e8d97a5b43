"""Histories made of a correct log are never flagged, seeded corruptions always; and histories survive their files."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.chaos.check_cli import check
from strandline.chaos.checkers.anomalies import find_anomalies, judge
from strandline.chaos.checkers.history import History, OffsetRead, Partition, Poll, Send, Status, Transaction
from strandline.chaos.checkers.journal import BadHistory, Journal, read_columns, read_history, write_history
from tests.chaos.histories import FAIL, INFO, INVOKED, OK, P0, P1, committed, offset_read, polled, sent, txn


@dataclass
class Log:
    """A correct log of two partitions under producers, transactions and consumers, and the history that they write."""

    rng: random.Random
    history: History = field(default_factory=History)
    records: dict[Partition, list[tuple[int, str, bool]]] = field(default_factory=lambda: {P0: [], P1: []})
    """(offset, value, visible to consumers of committed data)."""
    ends: dict[Partition, int] = field(default_factory=lambda: {P0: 0, P1: 0})
    now_ms: float = 0.0
    values: int = 0

    def tick(self) -> float:
        self.now_ms += self.rng.random() * 10
        return self.now_ms

    def write(self, where: Partition, value: str, visible: bool = True) -> int:
        offset = self.ends[where]
        self.ends[where] += 1
        self.records[where].append((offset, value, visible))
        return offset

    def value(self) -> str:
        self.values += 1
        return f"v{self.values}"

    def send(self) -> None:
        where = self.rng.choice((P0, P1))
        send = Send(f"p{self.rng.randint(1, 3)}", where, self.value(), group=self.values // 4, invoked_ms=self.tick())
        fate = self.rng.choice(("ok", "ok", "ok", "fail", "lost", "unknown"))
        if fate in ("ok", "unknown"):
            offset = self.write(where, send.value)  # type: ignore[arg-type]
            if fate == "ok":
                send.offset = offset
        send.status = {"ok": OK, "fail": FAIL}.get(fate, INFO)
        send.completed_ms = self.tick()
        self.history.send(send)

    def transact(self) -> None:
        fate = self.rng.choice((OK, FAIL, INFO))
        takes_place = fate is OK or (fate is INFO and self.rng.random() < 0.5)
        transaction = Transaction(f"tx{self.rng.randint(1, 2)}", status=fate, invoked_ms=self.tick())
        for _ in range(self.rng.randint(1, 4)):
            where = self.rng.choice((P0, P1))
            value = self.value()
            step = Send(transaction.process, where, value, invoked_ms=self.tick(), status=OK)
            step.offset = self.write(where, value, takes_place)
            step.completed_ms = self.tick()
            transaction.steps.append(step)
        for where in (P0, P1):
            self.ends[where] += 1  # the marker
        transaction.completed_ms = self.tick()
        self.history.transaction(transaction)

    def read(self, process: str, positions: dict[Partition, int], *, final: bool = False) -> None:
        dirty = process.startswith("dirty")
        invoked_ms = self.tick()
        got = []
        for where in (P0, P1):
            fresh = [one for one in self.records[where] if one[0] >= positions.get(where, 0) and (dirty or one[2])]
            for offset, value, _ in fresh[: 10**6 if final else self.rng.randint(0, 5)]:
                got.append((where, offset, value))
                positions[where] = offset + 1
        status = OK if final or self.rng.random() < 0.9 else FAIL
        poll = Poll(process, got, status=status, invoked_ms=invoked_ms, final=final, uncommitted=dirty)
        self.history.poll(poll)


def correct(seed: int) -> History:
    """A history of a correct log."""
    log = Log(random.Random(seed))
    positions: dict[str, dict[Partition, int]] = {}
    for _ in range(log.rng.randint(5, 60)):
        step = log.rng.random()
        if step < 0.5:
            log.send()
        elif step < 0.65:
            log.transact()
        else:
            who = log.rng.choice(("c1", "c2", "dirty"))
            before = dict(positions.setdefault(who, {}))
            log.read(who, positions[who])
            if log.history.polls[-1].status is FAIL:
                positions[who] = before
            if log.rng.random() < 0.1:
                positions[who] = {}
    log.read("final", {}, final=True)
    return _with_generations(log.history)


def _with_generations(history: History) -> History:
    """A consumer whose poll starts below where it was has gone back: a new generation."""
    place: dict[tuple[str, Partition], int] = {}
    generations: dict[str, int] = {}
    for poll in history.polls:
        first: dict[Partition, int] = {}
        for where, offset, _ in poll.records:
            first.setdefault(where, offset)
        if any(offset <= place.get((poll.process, where), -1) for where, offset in first.items()):
            generations[poll.process] = generations.get(poll.process, 0) + 1
            place = {key: at for key, at in place.items() if key[0] != poll.process}
        poll.generation = generations.get(poll.process, 0)
        if poll.status is OK:
            place |= {(poll.process, where): offset for where, offset, _ in poll.records}
    return history


@given(st.integers(0, 10**9))
@settings(max_examples=150, deadline=None)
def test_a_correct_log_is_never_flagged(seed: int) -> None:
    """Whatever the fates of sends and transactions, the sizes of polls, the steps back."""
    assert [str(one) for one in judge(correct(seed))] == []


def _final(history: History) -> Poll:
    return next(poll for poll in history.polls if poll.final)


def _promised(history: History) -> list[Send]:
    """Acked sends that only the final read returned."""
    sends = history.sends + [
        step for one in history.transactions if one.status is OK for step in one.steps if isinstance(step, Send)
    ]
    return [send for send in sends if send.acked]


def lose(history: History, rng: random.Random) -> set[str]:
    """A promised record is nowhere."""
    send = rng.choice(_promised(history))
    for poll in history.polls:
        poll.records = [record for record in poll.records if record[2] != send.value]
    return {"lost-write", "unseen"}


def forget(history: History, rng: random.Random) -> set[str]:
    """What was shown is gone in the end (and was promised to nobody)."""
    final = _final(history)
    shown = {record[2] for poll in history.polls if poll.status is OK and not poll.final for record in poll.records}
    there = [record for record in final.records if record[2] in shown]
    if not there:
        return set()
    gone = rng.choice(there)
    behind = [record for record in final.records if record[0] == gone[0] and record[1] > gone[1]]
    final.records = [record for record in final.records if record != gone]
    return {"shown-then-lost"} if behind else set()


def double(history: History, rng: random.Random) -> set[str]:
    """A record was appended twice."""
    final = _final(history)
    where, _, value = rng.choice(list(final.records))
    end = max(offset for place, offset, _ in final.records if place == where)
    final.records = [*final.records, (where, end + 1, value)]
    return {"duplicate"}


def rewrite(history: History, rng: random.Random) -> set[str]:
    """Another value stands where one was read."""
    where, offset, _ = rng.choice(list(_final(history).records))
    history.polls.insert(0, Poll("witness", [(where, offset, "something else")]))
    return {"inconsistent-offsets"}


def swap(history: History, rng: random.Random) -> set[str]:
    """Two records of one partition come in the wrong order."""
    final = _final(history)
    records = list(final.records)
    places = [place for place in range(len(records) - 1) if records[place][0] == records[place + 1][0]]
    if not places:
        return set()
    place = rng.choice(places)
    records[place], records[place + 1] = records[place + 1], records[place]
    final.records = records
    return {"int-nonmonotonic-poll"}


def skip(history: History, rng: random.Random) -> set[str]:
    """One consumer passes over what another was given."""
    final = _final(history)
    records = list(final.records)
    inner = [
        place
        for place in range(1, len(records) - 1)
        if records[place - 1][0] == records[place][0] == records[place + 1][0]
    ]
    if not inner:
        return set()
    gone = rng.choice(inner)
    history.polls.append(Poll("hasty", [record for place, record in enumerate(records) if place != gone]))
    return {"int-poll-skip"}


def expose(history: History, rng: random.Random) -> set[str]:
    """A consumer of committed data is shown what was aborted."""
    aborted = [
        step
        for one in history.transactions
        if one.status is FAIL
        for step in one.steps
        if isinstance(step, Send) and step.offset is not None
    ]
    if not aborted:
        return set()
    send = rng.choice(aborted)
    assert send.offset is not None
    history.polls.insert(0, Poll("witness", [(send.partition, send.offset, send.value)]))
    return {"G1a"}


CORRUPTIONS = (lose, forget, double, rewrite, swap, skip, expose)


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_a_corruption_is_always_flagged(corrupt: object) -> None:
    """By its name, whatever else it also looks like; and the corruption can be made in most histories."""
    made = 0
    for seed in range(120):
        history = correct(seed)
        if not _promised(history) or not _final(history).records:
            continue
        expected = corrupt(history, random.Random(seed))  # type: ignore[operator]
        if expected:
            made += 1
            names = {one.name for one in judge(history)}
            assert names & expected, (seed, names)
    assert made >= 30


# --- files ---


def everything() -> History:
    """One of each kind of operation, every field set to something."""
    return History(
        [sent("a", 0, group=3), sent(7, None, status=INFO, acks=1, may_repeat=True), sent("é\n", 4, source="a")],
        [
            polled((0, "a"), (4, "é\n"), process="c1", generation=2, subscribed=True),
            polled((9, 7), partition=P1, uncommitted=True, rebalanced=(P0, P1), final=True, status=FAIL),
        ],
        [txn(sent("b", 1), polled((0, "a")), committed(1, 5), status=INFO)],
        [committed(3, 7.5)],
        [offset_read(3, 9)],
    )


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    """Every field of every kind of operation."""
    write_history(everything(), tmp_path / "history.jsonl")
    assert read_history(tmp_path / "history.jsonl") == everything()


@given(st.integers(0, 10**9))
@settings(max_examples=20, deadline=None)
def test_a_file_is_judged_like_the_history(seed: int) -> None:
    """Straight into columns, the same findings."""
    import tempfile

    history = correct(seed)
    rewrite(history, random.Random(seed)) if _final(history).records else None
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.jsonl"
        write_history(history, path)
        assert find_anomalies(read_columns(path)) == find_anomalies(history)


def test_a_journal_keeps_the_order_of_beginnings_and_what_never_ended(tmp_path: Path) -> None:
    """The second send ends first; the third never does, and the recorder dies in mid-line."""
    path = tmp_path / "history.jsonl"
    sends = [sent("a", None, status=INVOKED), sent("b", None, status=INVOKED), sent("c", None, status=INVOKED)]
    with Journal(path) as journal:
        for send in sends:
            journal.begin(send)
        for offset, send in ((1, sends[1]), (0, sends[0])):
            send.status, send.offset, send.completed_ms = OK, offset, 5.0
            journal.end(send)
        journal.write(polled((0, "a"), (1, "b")))
    with path.open("a") as file:
        file.write('{"op": "po')
    history = read_history(path)
    assert [(send.value, send.status, send.offset) for send in history.sends] == [
        ("a", OK, 0),
        ("b", OK, 1),
        ("c", INVOKED, None),
    ]
    assert find_anomalies(read_columns(path)) == find_anomalies(history) == []


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        "nonsense",
        '{"op": "send"}',
        '{"op": "send", "process": "p", "partition": "t", "value": "a", "status": "ok"}',
        '{"op": "send", "process": "p", "partition": "t-0", "value": "a", "status": "perhaps"}',
        '{"op": "txn", "process": "p", "status": "ok", "steps": [{"op": "txn", "process": "p", "steps": [],'
        ' "status": "ok"}]}',
        '{"end": 3, "status": "ok", "ms": 1}',
        '{"op": "poll", "process": "c", "status": "ok", "records": {"t-0": [[1], []]}}',
    ],
)
def test_what_is_no_history_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    """Exit 2, and where."""
    path = tmp_path / "history.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(BadHistory):
        read_columns(path)
    result = CliRunner().invoke(check, [str(path)])
    assert result.exit_code == 2
    assert "line" in result.output


def test_check_tells_what_it_found(tmp_path: Path) -> None:
    """Exit 0 and figures; exit 1 and the findings; the same as JSON."""
    path = tmp_path / "history.jsonl"
    write_history(History([sent("a", 0)], [polled((0, "a"))]), path)
    result = CliRunner().invoke(check, [str(path)])
    assert (result.exit_code, "no anomalies" in result.output) == (0, True)
    write_history(History([sent("a", 0), sent("b", 1), sent("c", 2)], [polled((0, "a"), (2, "c"))]), path)
    result = CliRunner().invoke(check, [str(path)])
    assert result.exit_code == 1
    assert "lost-write in t-0: value=b, offset=1" in result.output
    told = json.loads(CliRunner().invoke(check, [str(path), "--output", "json"]).output)
    assert told["anomalies"] == {"lost-write": 1, "int-poll-skip": 1}
    assert told["acked"] == 3


def test_an_unknown_status_is_told() -> None:
    """Each status has its name in the file."""
    assert [status.value for status in Status] == ["invoked", "ok", "fail", "info"]
    assert OffsetRead("m", "g", P0, 1).offset == 1
