"""The story of a failure: the partition, the record, and their past. Built from a recording and a history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandline.chaos.checkers.anomalies import judge
from strandline.chaos.checkers.history import History, Partition, Send, Status
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.explain.recorder import DOWN, QUORUM, Committed, Recording, Replica

_QUORUM_INVARIANTS = (
    "MonotonicEpoch",
    "SingleLeader",
    "VotedOnce",
    "ConsistentCommittedData",
    "LeaderHasAllCommittedValues",
    "MajorityReachedHighWatermark",
    "SnapshotAtLogStart",
    "LeaderNeverLoadSnapshot",
    "NoLogDivergence",
    "MetadataLogMatching",
)

HELD = "held"
"""The error of a run without one."""


class Step(NamedTuple):
    """One line of a story. `kind`: fault, committed, role, truncated, record, violation, end."""

    at_ms: float
    kind: str
    text: str
    node: str = ""


@dataclass
class Story:
    """Everything that a reader of a failure needs; plain data, so that it can leave the process that ran."""

    seed: int
    error: str
    message: str
    failed_ms: float
    subject: str
    """A partition, or the metadata quorum."""
    record: str = ""
    """Record that was lost or wrong, if one was."""
    record_offset: int = -1
    steps: list[Step] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    replicas: dict[str, list[Replica]] = field(default_factory=dict)
    """node -> changes."""
    committed: list[Committed] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    replay: list[str] = field(default_factory=list)
    """Commands."""
    unit: str = "ms"
    """Unit of its times: milliseconds of a run, or the steps of a path."""

    @property
    def name(self) -> str:
        """Title of the story."""
        return f"Seed {self.seed}" if self.unit == "ms" else "A path through the states"

    def moment(self, at: float) -> str:
        """An instant in words."""
        return f"{at:.0f} ms" if self.unit == "ms" else f"step {at:.0f}"

    def at(self, node: str, at_ms: float) -> Replica | None:
        """State of a node at an instant: the last change that was seen then."""
        last = None
        for point in self.replicas.get(node, ()):
            if point.at_ms > at_ms:
                break
            last = point
        return last

    def committed_at(self, at_ms: float) -> Committed | None:
        """Committed metadata at an instant."""
        last = None
        for point in self.committed:
            if point.at_ms > at_ms:
                break
            last = point
        return last


@dataclass
class _Subject:
    """Subject of the violation."""

    subject: str
    offset: int = -1
    value: str | int | None = None


def tell(
    seed: int, error: BaseException | None, run: Any, recording: Recording, *, options: dict[str, Any] | None = None
) -> Story:
    """The story of a run that ended with `error`; None: that held."""
    history: History | None = getattr(run, "history", None)
    concern = _concern(error, history, recording)
    name = HELD if error is None else error.name if isinstance(error, InvariantViolated) else type(error).__name__
    now_ms = run.world.now_ms
    story = Story(seed, name, str(error or ""), now_ms, concern.subject, options=options or {})
    story.replicas = recording.replicas.get(concern.subject, {})
    story.nodes = sorted(story.replicas)
    story.committed = recording.committed.get(concern.subject, [])
    story.record_offset = concern.offset
    steps = [Step(float(at_ms), "fault", what) for at_ms, what in run.nemesis.events]
    steps += _elections(story.committed)
    for node in story.nodes:
        steps += _roles(node, story.replicas[node], quorum=concern.subject == QUORUM)
    steps += _record_path(story, concern, history)
    if error is None:
        steps.append(Step(now_ms, "end", "everything held"))
    else:
        message = str(error)
        steps.append(Step(now_ms, "violation", _short(message if message.startswith(name) else f"{name}: {message}")))
    story.steps = sorted(steps, key=lambda step: step.at_ms)
    return story


def _short(text: str, limit: int = 240) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


# --- what it is about ---


def _concern(error: BaseException | None, history: History | None, recording: Recording) -> _Subject:
    facts = error.facts if isinstance(error, InvariantViolated) else {}
    partition = facts.get("partition")
    if isinstance(partition, str) and partition in recording.replicas:
        start = facts.get("offset", facts.get("log_end", facts.get("now", -1)))
        offset = start if isinstance(start, int) else -1
        return _Subject(partition, offset, _value_at(history, partition, offset))
    if isinstance(error, InvariantViolated) and history is not None:
        for anomaly in judge(history):
            if anomaly.name == error.name and anomaly.partition is not None:
                offsets = anomaly.facts.get("offsets") or [anomaly.facts.get("offset", anomaly.facts.get("to_offset"))]
                value = anomaly.facts.get("value")
                offset = offsets[0] if isinstance(offsets[0], int) else -1
                return _Subject(str(anomaly.partition), offset, value)
    if _about_the_quorum(error) or len(recording.replicas) <= 1:
        return _Subject(QUORUM)
    return _Subject(_sickest(recording))


def _about_the_quorum(error: BaseException | None) -> bool:
    return isinstance(error, InvariantViolated) and (
        error.name in _QUORUM_INVARIANTS or (error.name == "MonotonicHighWatermark" and "partition" not in error.facts)
    )


def _sickest(recording: Recording) -> str:
    """The partition in the worst state at the end; the first one if all are healthy; the quorum if there is no
    partition."""
    worst = (0, next(iter(recording.committed), QUORUM))
    for name, changes in recording.committed.items():
        missing = len(recording.replicas.get(name, {})) - len(changes[-1].isr) + (changes[-1].leader < 0)
        if missing > worst[0]:
            worst = (missing, name)
    return worst[1]


def _value_at(history: History | None, partition: str, offset: int) -> str | int | None:
    """The value that clients know at or first beyond an offset, acked ones before others."""
    if history is None or offset < 0:
        return None
    there = [
        send
        for send in history.sends
        if str(send.partition) == partition and send.offset is not None and send.offset >= offset
    ]
    there.sort(key=lambda send: (not send.acked, send.offset))
    return there[0].value if there else None


# --- what happened to it ---


def _elections(changes: list[Committed]) -> list[Step]:
    steps = []
    before: Committed | None = None
    for change in changes:
        parts = []
        if before is None or change.leader_epoch != before.leader_epoch or change.leader != before.leader:
            who = f"n{change.leader} is elected" if change.leader >= 0 else "nobody leads"
            parts.append(f"{who}, leader epoch {change.leader_epoch}{', RECOVERING' if change.recovering else ''}")
        if before is None or change.isr != before.isr:
            parts.append(f"ISR {names(change.isr)}")
        if (before is not None and change.elr != before.elr) or (before is None and change.elr):
            parts.append(f"ELR {names(change.elr)}")
        if parts:
            text = f"committed: {'; '.join(parts)} (partition epoch {change.partition_epoch})"
            steps.append(Step(change.at_ms, "committed", text))
        before = change
    return steps


def names(nodes: tuple[int, ...]) -> str:
    """Nodes as the text shows them."""
    return "{" + " ".join(f"n{node}" for node in nodes) + "}"


def _roles(node: str, points: list[Replica], *, quorum: bool) -> list[Step]:
    """Changes of role and epoch, and logs that became shorter."""
    steps = []
    before: Replica | None = None
    for point in points:
        changed = before is None or (point.role, point.epoch) != (before.role, before.epoch)
        if changed and point.role != DOWN:
            what = f"{node} is {point.role} of epoch {point.epoch}"
            steps.append(Step(point.at_ms, "role", f"{what}, log end {_end(point)}, HW {point.high_watermark}", node))
        elif changed:
            steps.append(Step(point.at_ms, "role", f"{node} is down", node))
        elif quorum and before is not None and point.note != before.note and point.note:
            steps.append(Step(point.at_ms, "role", f"{node} casts its {point.note} in epoch {point.epoch}", node))
        if before is not None and 0 <= point.log_end < before.log_end:
            how = "came back with" if before.role == DOWN else "cut its log to"
            steps.append(
                Step(point.at_ms, "truncated", f"{node} {how} log end {_end(point)}; it was {_end(before)}", node)
            )
        before = point
    return steps


def _end(point: Replica) -> str:
    return f"{point.log_end}" + (f"@{point.log_end_epoch}" if point.log_end_epoch >= 0 else "")


def _record_path(story: Story, concern: _Subject, history: History | None) -> list[Step]:
    """Sent, appended where at what offset, replicated, committed, acked, read, gone."""
    send = _send_of(history, concern)
    steps: list[Step] = []
    offset = concern.offset
    if send is not None:
        offset = send.offset if send.offset is not None else offset
        value = str(send.value).rstrip(".")
        story.record = f"record {value!r} of {send.process}, {send.partition} at offset {offset}"
        steps.append(Step(send.invoked_ms, "record", f"{send.process} sends {value!r}"))
        if send.status is not Status.INVOKED:
            text = f"{send.process} gets the answer {send.status.value}"
            text += f", offset {send.offset} (acks={send.acks})" if send.offset is not None else ""
            steps.append(Step(send.completed_ms, "record", text))
    elif offset >= 0:
        story.record = f"the record at offset {offset}"
    if offset < 0:
        return steps
    story.record_offset = offset
    for node in story.nodes:
        steps += _on_node(node, story.replicas[node], offset, send.invoked_ms if send is not None else 0.0)
    if history is not None and send is not None:
        steps += _read(history, send)
    return steps


def _send_of(history: History | None, concern: _Subject) -> Send | None:
    if history is None or concern.value is None:
        return None
    return next((send for send in history.sends if send.value == concern.value), None)


def _on_node(node: str, points: list[Replica], offset: int, since_ms: float) -> list[Step]:
    """Steps at which a replica's log end and high watermark passed the record, and when its log end fell below it."""
    steps = []
    held = committed = False
    for point in points:
        if point.log_end > offset and not held:
            held = True
            if point.at_ms >= since_ms:
                how = "appends it" if point.role == "leader" else "has it"
                epoch = f", epoch {point.log_end_epoch}" if point.log_end_epoch >= 0 else ""
                steps.append(
                    Step(point.at_ms, "record", f"{node} ({point.role}) {how} at offset {offset}{epoch}", node)
                )
        elif 0 <= point.log_end <= offset and held:
            held = committed = False
            steps.append(Step(point.at_ms, "record", f"{node} does not hold it any more", node))
        if held and point.high_watermark > offset and not committed:
            committed = True
            if point.at_ms >= since_ms:
                text = f"{node} ({point.role}) counts it as committed: HW {point.high_watermark}"
                steps.append(Step(point.at_ms, "record", text, node))
    return steps


def _read(history: History, send: Send) -> list[Step]:
    """The first time each consumer was shown it."""
    steps, seen = [], set()
    for poll in history.polls:
        if poll.process in seen:
            continue
        for where, offset, value in poll.records:
            if value == send.value and where == Partition(*send.partition):
                seen.add(poll.process)
                steps.append(Step(poll.completed_ms, "record", f"{poll.process} reads it at offset {offset}"))
    if not seen:
        steps.append(Step(send.completed_ms, "record", "nobody ever reads it"))
    return steps
