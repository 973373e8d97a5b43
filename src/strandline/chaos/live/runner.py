"""One live run: load, faults one after the other, healing, everything read back and judged."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from strandline.chaos.checkers.anomalies import judge
from strandline.chaos.checkers.history import History, Status
from strandline.chaos.checkers.journal import write_history
from strandline.chaos.live.clients.options import partitions_of
from strandline.chaos.live.faults import (
    FAULTS,
    RETENTION_MS,
    SEGMENT_BYTES,
    ActiveFault,
    Fault,
    FaultContext,
    NotNow,
    Violated,
    plan,
    undo,
)
from strandline.chaos.live.gaps import NO_FAULT, AckTimes, Window, table
from strandline.chaos.live.load import FINAL_KINDS, TOPICS_OF, ClientFailed, Load
from strandline.chaos.live.operations import FACTOR, Operator, rows
from strandline.chaos.live.replicas import compare
from strandline.chaos.live.target import ASK, ChaosTarget, client_settings, pause
from strandline.client import Admin, NewTopic
from strandline.proto.errors import StrandlineError

IN_SYNC_MIN = 2
READY_S = 60.0
WHOLE_S = 90.0
"""Seconds after healing for: every node up, every replica in its ISR, acks in every partition."""

QUIET_S = 1.5
POLL_S = 0.1
SECOND_FAULT_PROBABILITY = 0.2
ALONE = frozenset(
    {
        "wiped-dir",
        "directory-lost",
        "crash-all-one-rots",
        "zeroed-tail",
        "rolling-restart",
        "dirs-swapped",
        "kill-all",
        "one-stays-dead",
        "restore-then-produce",
    }
)
"""Faults during which no other strikes: those that destroy data allow none, the others leave nothing to strike or are
over at once."""

TWO_AT_ONCE = "(two at once)"
JOURNAL_BYTES_MAX = 1 << 30
ROUNDS_MAX = 3
SHOWN_MAX = 20


@dataclass(frozen=True)
class RunOptions:
    """One run.

    Attributes:
        schedule: kinds of faults; each round has each once.
        gap_ms: the mean pause between two sends of one producer.
        operations: an operator works meanwhile (`operations.Operator`); the cluster has a broker more than a partition
            has replicas.
        every_fault: go on, when the minutes are over, until each kind of the schedule has struck: `ROUNDS_MAX` rounds
            at most. For runs that are to have shown something on a machine however slow.
    """

    schedule: list[str]
    minutes: float
    seed: int
    clients: list[str]
    gap_ms: float = 60.0
    topics: dict[str, int] = field(default_factory=lambda: {"chaos-a": 3, "chaos-b": 1})
    operations: bool = False
    every_fault: bool = False


@dataclass
class Outcome:
    """Result of a run.

    Attributes:
        violations: every broken promise, one sentence each; none: the run held.
        faults: a row a kind, see `gaps.table`.
        operations: a row a kind, see `Operator.counts`; none without an operator.
        struck: every fault: seconds since the beginning, and what was done.
    """

    violations: list[str] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    operations: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, dict[str, int]] = field(default_factory=dict)
    struck: list[tuple[float, str]] = field(default_factory=list)
    directory: str | None = None

    @property
    def held(self) -> bool:
        """True if nothing was broken."""
        return not self.violations

    def never_struck(self, options: RunOptions) -> set[str]:
        """The kinds of the schedule that have not struck, not even as the second of two."""
        return set(options.schedule) - {what.partition(":")[0] for _, what in self.struck}


class LiveRun:
    """One run on one cluster.

    Args:
        directory: for the journals.
        tell: what happens, a line at a time.
    """

    def __init__(self, target: ChaosTarget, options: RunOptions, directory: Path, tell: Callable[[str], None]) -> None:
        self.options = options
        self._target = target
        self._tell = tell
        self._directory = directory
        self._rng = random.Random(options.seed)
        self._load = Load(
            target.bootstrap,
            options.topics,
            directory,
            options.seed,
            options.gap_ms,
            properties=target.client_properties,
        )
        hand = random.Random(f"{options.seed}-operator")
        self._operator = Operator(target, hand, options.topics, directory, self._say) if options.operations else None
        self._works = False
        """Whether the operator types: not before there are topics, nor once the faults are over."""
        self._acks = AckTimes()
        self._windows: list[Window] = []
        self._strikes: list[ActiveFault] = []
        self._struck_alone: set[str] = set()
        self._outcome = Outcome()
        self._over = False
        self._began = time.monotonic()
        self._partitions = partitions_of(options.topics)
        self._others = {name: count for kind in options.clients for name, count in TOPICS_OF.get(kind, {}).items()}
        """Topics that clients write in transactions."""
        partitions = [(where.topic, where.number) for where in self._partitions]
        self._scene = FaultContext(target, self._rng, partitions, self._whole, self._wait_whole, self._wait_acked)

    def execute(self) -> Outcome:
        """Run it; the cluster is there, and started. It is left running, healed as far as it can be."""
        try:
            self._begin()
            self._storm()
            self._end()
        except Violated as violated:
            self._outcome.violations.append(str(violated))
        except ClientFailed as failed:
            self._outcome.violations.append(f"ClientFailed: {failed}")
        except TimeoutError as error:
            self._outcome.violations.append(f"Progress: {error}; {self._state()}")
        except (OSError, StrandlineError) as error:
            # Not a promise that is known to be broken, but one that nobody has checked: the evidence is kept as well.
            self._outcome.violations.append(f"Unjudged: the run came to no end: {type(error).__name__}: {error}")
        finally:
            self._over = True
            for strike in self._strikes:
                undo(strike)
            self._load.kill()
            if self._operator is not None:
                self._operator.kill()
        self._sum_up()
        return self._outcome

    # --- phases ---

    def _begin(self) -> None:
        self._say(f"creating {', '.join(self.options.topics)}; clients: {', '.join(self.options.clients)}")
        configs = {
            "min.insync.replicas": str(IN_SYNC_MIN),
            "segment.bytes": str(SEGMENT_BYTES),
            "retention.ms": str(RETENTION_MS),
        }
        with Admin(self._target.bootstrap, **self._client_settings()) as admin:
            topics = self.options.topics | self._others
            admin.create_topics([NewTopic(name, count, FACTOR, configs) for name, count in topics.items()])
        self._load.start(self.options.clients)
        self._until(lambda: self._acked_since(0), READY_S, "no acks in every partition")
        self._began = time.monotonic()
        self._works = self._operator is not None

    def _storm(self) -> None:
        deadline = time.monotonic() + self.options.minutes * 60
        faults = plan(self.options.schedule, self._rng)
        in_any_case = ROUNDS_MAX * len(self.options.schedule) if self.options.every_fault else 0
        for turn in itertools.count():
            if time.monotonic() >= deadline and (turn >= in_any_case or not self._outcome.never_struck(self.options)):
                break
            self._quiet()
            self._one_fault(next(faults))
            if self._load.journal_bytes > JOURNAL_BYTES_MAX:
                self._say("the journals are long enough: no more faults")
                break

    def _end(self) -> None:
        self._say("healing, and waiting until everything is whole")
        self._target.heal()
        self._wait_progress()
        self._end_operations()
        self._load.finish(self._pause)
        self._until(self._whole_or_fallen, WHOLE_S, "not every node runs with every replica in sync")
        self._say("fresh clients read everything from the beginning")
        self._load.start([kind for kind in FINAL_KINDS if kind in self.options.clients] or ["own"], final=True)
        self._load.finish(self._pause)
        self._say("judging")
        anomalies = judge(self._load.history)
        self._outcome.violations += [str(anomaly) for anomaly in anomalies]
        self._outcome.violations += compare(self._target, self._partitions + partitions_of(self._others))
        self._outcome.figures["anomalies"] = len(anomalies)

    def _end_operations(self) -> None:
        """Raises Violated where an operation does not end, or leaves something."""
        self._works = False
        if self._operator is not None:
            self._say("the operator ends what was begun")
            left = self._operator.finish(self._until)
            if left:
                raise Violated("; ".join(left[:SHOWN_MAX]))
            self._wait_progress()

    # --- faults ---

    def _quiet(self) -> None:
        window = Window(NO_FAULT, _now_ms())
        self._hold(QUIET_S)
        if self._operator is not None:
            self._check_isr()
        window.undone_ms = window.whole_ms = _now_ms()
        self._windows.append(window)

    def _one_fault(self, fault: Fault) -> None:
        window = Window(fault.name, _now_ms())
        if not self._strike(fault):
            return
        low, high = fault.hold_s
        hold_s = self._rng.uniform(low, high)
        if fault.name in self._struck_alone - ALONE:
            second = FAULTS[self._rng.choice(sorted(self._struck_alone - ALONE))]
            if self._rng.random() < SECOND_FAULT_PROBABILITY:
                self._hold(hold_s / 2)
                if self._strike(second):
                    window.kind = TWO_AT_ONCE
                hold_s /= 2
        self._hold(hold_s)
        for strike in reversed(self._strikes):
            undo(strike)
        self._strikes.clear()
        if window.kind == fault.name:
            self._struck_alone.add(fault.name)
        window.undone_ms = _now_ms()
        self._wait_progress()
        window.whole_ms = _now_ms()
        self._windows.append(window)
        gap_ms = max(self._acks.gap_ms(where, window.began_ms, window.whole_ms) for where in self._partitions)
        self._say(
            f"  undone after {(window.undone_ms - window.began_ms) / 1000:.1f} s, whole "
            f"{(window.whole_ms - window.undone_ms) / 1000:.1f} s later; longest time without an ack {gap_ms:.0f} ms"
        )

    def _strike(self, fault: Fault) -> bool:
        """Whether it struck."""
        try:
            strike = fault.strike(self._scene)
        except (NotNow, OSError, StrandlineError) as error:
            self._say(f"{fault.name}: not now ({error})")
            return False
        self._strikes.append(strike)
        self._outcome.struck.append((round(time.monotonic() - self._began, 1), f"{fault.name}: {strike.what}"))
        self._say(f"{fault.name}: {strike.what}")
        return True

    # --- looking and waiting ---

    def _pause(self) -> None:
        pause(POLL_S)
        self._acks.note(self._load.read())
        if self._works and self._operator is not None:
            self._operator.look()

    def _hold(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._pause()
            self._check_fallen()

    def _check_fallen(self) -> None:
        down = {node for strike in self._strikes for node in strike.down}
        fallen = [node for node in self._target.node_ids if node not in self._target.running() and node not in down]
        if fallen:
            raise Violated(f"NoNodeFalls: nodes {fallen} ended by themselves")

    def _check_isr(self) -> None:
        """With nothing broken no move takes so many replicas out of an ISR that producers are refused. Raises
        Violated."""
        try:
            with Admin(self._target.responsive, **ASK, **self._client_settings()) as admin:
                parts = [(topic.name, part) for topic in admin.describe_topics(self.options.topics)
                         for part in topic.partitions]  # fmt: skip
        except (StrandlineError, OSError, TimeoutError):
            return  # a node that is short of CPU; acks go on, or the next wait fails
        few = [f"{name}-{part.partition}: {part.isr}" for name, part in parts if len(part.isr) < IN_SYNC_MIN]
        if few:
            raise Violated(f"MovesKeepTheIsr: nothing is broken, and too few replicas are in sync: {', '.join(few)}")

    def _until(self, holds: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}, after {timeout_s:g} s")
            self._pause()

    def _wait_whole(self) -> None:
        if not self._over:
            self._until(self._whole, WHOLE_S, "not every replica is in sync")

    def _wait_acked(self) -> None:
        """Check that every partition acknowledges a record again, after the faults that were undone. Raises
        Violated."""
        if not self._over:
            since_ms = _now_ms()
            self._progress(lambda: self._acked_since(since_ms), "no acks in every partition")

    def _wait_progress(self) -> None:
        """Wait, once everything has been undone, until the cluster is whole and acknowledges. Raises Violated."""
        since_ms = _now_ms()
        self._progress(self._whole_or_fallen, "not every node runs with every replica in sync")
        self._progress(lambda: self._acked_since(since_ms), "no acks in every partition")

    def _progress(self, holds: Callable[[], bool], what: str) -> None:
        try:
            self._until(holds, WHOLE_S, what)
        except TimeoutError as error:
            raise Violated(f"Progress: {error}; {self._state()}") from None

    def _whole_or_fallen(self) -> bool:
        self._check_fallen()
        return self._whole()

    def _acked_since(self, since_ms: float) -> bool:
        return all(self._acks.acked_since(where, since_ms) for where in self._partitions)

    def _whole(self) -> bool:
        """True if every node runs, every replica is in its ISR, every voter has what the quorum committed. A replica
        that a move adds may lack records."""
        if self._target.running() != sorted(self._target.node_ids):
            return False
        try:
            with Admin(self._target.responsive, **ASK, **self._client_settings()) as admin:
                topics = admin.describe_topics(self.options.topics)
                moves = admin.list_partition_reassignments() if self._works else {}
                quorum = admin.describe_quorum()
                brokers = {node.node_id for node in admin.describe_cluster().nodes if not node.fenced}
        except (StrandlineError, OSError, TimeoutError):
            return False
        added = {(tp.topic, tp.partition): set(move.adding) for tp, move in moves.items()}
        in_sync = all(
            part.leader is not None
            and set(part.isr) >= set(part.replicas) - added.get((topic.name, part.partition), set())
            for topic in topics
            for part in topic.partitions
        )
        voters = all(voter.log_end_offset >= quorum.high_watermark for voter in quorum.voters)
        return in_sync and voters and brokers == set(self._target.broker_ids)

    def _client_settings(self) -> dict[str, Any]:
        return client_settings(self._target.client_properties)

    def _state(self) -> str:
        """The cluster in one line, for a failed run."""
        try:
            with Admin(self._target.bootstrap, **ASK, **self._client_settings()) as admin:
                lines = [
                    f"{topic.name}-{part.partition}: leader {part.leader} epoch {part.leader_epoch} isr {part.isr}"
                    for topic in admin.describe_topics(self.options.topics)
                    for part in topic.partitions
                ]
        except (StrandlineError, OSError, TimeoutError) as error:
            lines = [f"no answer: {error}"]
        return f"running {self._target.running()}; " + "; ".join(lines)

    # --- the end ---

    def _sum_up(self) -> None:
        history = self._load.history
        outcome = self._outcome
        outcome.faults = table(self._windows, self._acks, self._partitions) if self._windows else []
        never = [name for name in self.options.schedule if not any(row["fault"] == name for row in outcome.faults)]
        outcome.faults += [{"fault": name, "times": 0} for name in never]
        outcome.operations = [] if self._operator is None else rows(self._operator.counts)
        outcome.errors = self._load.errors()
        outcome.figures = {**_counts(history), "faults": len(outcome.struck), **outcome.figures}
        outcome.figures["seconds"] = round(time.monotonic() - self._began)
        if not outcome.held:
            document = {"options": asdict(self.options), **asdict(outcome)}
            (self._directory / "run.json").write_text(json.dumps(document, indent=2))
            write_history(history, self._directory / "history.jsonl")

    def _say(self, what: str) -> None:
        self._tell(f"{time.monotonic() - self._began:7.1f} s  {what}")


def _counts(history: History) -> dict[str, int]:
    return {
        "sent": len(history.sends),
        "acked_all": sum(send.acked for send in history.sends),
        "unknown": sum(send.status in (Status.INFO, Status.INVOKED) for send in history.sends),
        "failed": sum(send.status is Status.FAIL for send in history.sends),
        "committed": sum(one.status is Status.OK for one in history.transactions),
        "aborted": sum(one.status is Status.FAIL for one in history.transactions),
        "unknown_ends": sum(one.status in (Status.INFO, Status.INVOKED) for one in history.transactions),
        "read": sum(len(poll.records) for poll in history.polls if not poll.final),
        "read_finally": sum(len(poll.records) for poll in history.polls if poll.final),
    }


def _now_ms() -> float:
    return time.monotonic() * 1000


def check_schedule(names: list[str], target: ChaosTarget) -> tuple[list[str], dict[str, str]]:
    """The faults of a schedule that can be done here, and why the others cannot. Raises ValueError for an unknown."""
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        raise ValueError(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    without = {name: why for name, why in target.unsupported().items() if name in names}
    return [name for name in names if name not in without], without
