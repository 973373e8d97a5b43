"""Liveness of brokers: sessions, suspicions, probes. Soft state of the active controller, pure.

A broker holds a session: one stream to the controller, on which its heartbeats come. Without heartbeats for the session
timeout it is fenced. A broken stream is a suspicion: the controller probes at once and goes on probing. A stream that
is open and silent is none yet: the controller probes after a while, and a process that answers lives, however late it
is with its heartbeats (schedule 60).

| what the probe finds                     | what follows                                                    |
|------------------------------------------|-----------------------------------------------------------------|
| the same process answers                 | suspicion and silence end; the session timeout remains          |
| another process of that node answers     | the one that registered is dead: fence. Where its stream is     |
|                                          | open it is asked for a heartbeat, and fenced if none comes      |
|                                          | within `suspicion_ms` (schedule 71)                             |
| nobody listens (refused)                 | a suspicion in itself; fence once refused `refused_grace_ms` on |
| no answer                                | fence when `suspicion_ms` have passed since the stream broke,   |
|                                          | or `answer_ms` since the first probe that it owes an answer to  |

A heartbeat ends every suspicion, and silence. Where heartbeats come in and no probe was ever answered, it is the way to
the broker that is broken, not the broker: silence is not counted, and the session timeout remains.

A registration that is refused for the sake of the process that registered before is a reason to probe that one at once:
a machine that lost power and is back has a new process at the address, and an open stream that nobody closed.

A new controller grants every broker a full session and probes all of them at once. So its election alone fences no
broker, and yet one that died with the old controller, or was silent under it, is fenced soon. The broker of the node
that led the quorum before is suspected from the start: most likely it lost its leadership for being silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from strandline.proto.ids import NodeId, Offset
from strandline.proto.marks import mark
from strandline.proto.settings import Scope, Settings, milliseconds

NEVER = float("inf")

PROBED_SHARE = 0.4
"""Share of the silence timeout that passes before the first probe; the rest is left for its answer. An event loop under
load is late by tenths of a second, and answers."""


class SessionTimes(Settings, scope=Scope.NODE):
    """When a broker's session ends. The silence that ends it is never longer than its time without heartbeats.

    Attributes:
        suspicion_ms: from a broken stream to fencing, if neither a reconnect nor a probe clears the broker.
        refused_grace_ms: a port that refused every probe for this long means a dead process (a refusal is the kernel's
            own word); longer than one interval, so that a single strange refusal fences no broker.
        probe_interval_ms: between a probe of a suspect and the next.
    """

    session_timeout_ms = milliseconds(
        "broker.session.timeout.ms",
        9000,
        "Time without a heartbeat after which a broker is fenced. (A broker whose process died is noticed by its "
        "broken connection, in well under a second; a broker that does not answer, by broker.silence.timeout.ms.)",
    )
    silence_timeout_ms = milliseconds(
        "broker.silence.timeout.ms",
        2500,
        "Time after which a broker that sends no heartbeats and answers no probes is fenced (Kafka has no such "
        "setting). It is probed after two fifths of this time; a busy broker answers late and stays unfenced. At the "
        "value of broker.session.timeout.ms only heartbeats count.",
        low=100,
    )
    suspicion_ms = 500.0
    refused_grace_ms = 120.0
    probe_interval_ms = 40.0

    @property
    def probe_after_ms(self) -> float:
        """Milliseconds without a heartbeat or an answer after which a broker is probed."""
        return PROBED_SHARE * min(self.silence_timeout_ms, self.session_timeout_ms)

    @property
    def answer_ms(self) -> float:
        """Milliseconds without an owed answer after which a broker counts as silent."""
        return min(self.silence_timeout_ms, self.session_timeout_ms) - self.probe_after_ms


class ProbeFinding(Enum):
    """Findings of a probe of a broker's internal listener."""

    ALIVE = "the process that registered answered"
    OTHER_PROCESS = "another process of the same node answered"
    REFUSED = "no process listens there"
    SILENT = "no answer, or not from that node"


@dataclass(slots=True)
class Session:
    """One registered broker as the active controller sees it. Times are the controller's monotonic milliseconds."""

    last_contact_ms: float
    """The last heartbeat."""
    heard_ms: float
    """The last heartbeat or answer to a probe."""
    fenced: bool
    metadata_offset: Offset = Offset(-1)  # noqa: RUF009  a NewType call is the identity
    controlled_shutdown_offset: int = -1
    streams: int = 0
    granted_ms: float = float("-inf")
    """Time when the session began: what a probe found that was sent before is about another process."""
    suspected_since_ms: float = NEVER
    displaced_since_ms: float = NEVER
    """Time when another process was first found at the broker's address while its stream was open, and no heartbeat
    since."""
    refused_since_ms: float = NEVER
    next_probe_ms: float = NEVER
    asked_ms: float = NEVER
    """Time when the first probe that is not answered yet was due."""
    probed_ms: float = float("-inf")
    """Time when the last probe was sent."""
    probes: int = 0
    """Number of probes under way."""
    in_question: bool = False
    """True: probe once more, whatever probe is under way."""
    answers: bool = False
    """True: the broker has answered a probe of this controller since it was unfenced, so probes reach it."""
    dead: bool = False


class BrokerSessions:
    """All sessions. The caller probes the brokers of `due_probes`, and fences those of `expired`."""

    def __init__(self, times: SessionTimes) -> None:
        self.times = times
        self._sessions: dict[NodeId, Session] = {}
        self._heartbeats_wanted: list[NodeId] = []

    def get(self, node_id: NodeId) -> Session | None:
        """The session of a broker, or None."""
        return self._sessions.get(node_id)

    def grant(self, node_id: NodeId, *, fenced: bool, now_ms: float, probe: bool, suspected: bool = False) -> None:
        """Grant a full session to a broker that registered, or, with `probe`, that a new controller found registered.

        `suspected`: as if its stream had just broken.
        """
        session = Session(last_contact_ms=now_ms, heard_ms=now_ms, fenced=fenced, granted_ms=now_ms)
        if probe and not fenced:
            session.next_probe_ms = now_ms
            if suspected:
                session.suspected_since_ms = now_ms
        self._sessions[node_id] = session

    def renew(self, node_id: NodeId, *, fenced: bool, now_ms: float) -> None:
        """Keep the session of the same process, which registered again."""
        session = self._sessions[node_id]
        session.last_contact_ms = session.heard_ms = now_ms
        session.fenced = fenced
        self._clear(session)

    def drop(self, node_id: NodeId) -> None:
        """Drop a broker that is unregistered."""
        self._sessions.pop(node_id, None)

    def touch(self, node_id: NodeId, *, fenced: bool, metadata_offset: Offset, now_ms: float) -> None:
        """Note that a heartbeat was taken: the broker lives, and is `fenced` or not from now on. Whether probes
        reach it is found out while it lives."""
        session = self._sessions[node_id]
        session.last_contact_ms = session.heard_ms = now_ms
        session.metadata_offset = metadata_offset
        session.fenced = fenced
        self._clear(session)
        if not fenced and not session.answers:
            session.next_probe_ms = now_ms
        if fenced:
            session.controlled_shutdown_offset = -1

    def mark_fenced(self, node_id: NodeId) -> None:
        """Note that the controller fenced the broker."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.fenced = True
            session.answers = False
            session.controlled_shutdown_offset = -1
            self._clear(session)

    def has_valid_session(self, node_id: NodeId, now_ms: float) -> bool:
        """True if the broker sent a heartbeat within its session timeout and is not known to be dead."""
        session = self._sessions.get(node_id)
        return (
            session is not None
            and not session.dead
            and not session.fenced
            and now_ms - session.last_contact_ms < self.times.session_timeout_ms
        )

    def forgive(self, now_ms: float) -> None:
        """Give every broker a full session: this controller itself stood still, and cannot know which were silent.

        Suspicions and silences remain, and count from now.
        """
        for session in self._sessions.values():
            session.last_contact_ms = session.heard_ms = now_ms
            if session.asked_ms != NEVER:
                session.asked_ms = now_ms  # schedule 60/slept-and-blames-the-others
            if session.suspected_since_ms != NEVER:
                session.suspected_since_ms = now_ms
                session.refused_since_ms = NEVER
            if session.displaced_since_ms != NEVER:
                session.displaced_since_ms = now_ms

    # Streams and probes

    def stream_opened(self, node_id: NodeId) -> None:
        """Note that the broker opened a session stream; its first heartbeat follows."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.streams += 1

    def stream_broke(self, node_id: NodeId, now_ms: float) -> None:
        """Note that a session stream of the broker ended; if it was the last one, the broker is suspected."""
        session = self._sessions.get(node_id)
        if session is None:
            return
        session.streams = max(0, session.streams - 1)
        if session.streams == 0 and not session.fenced and session.suspected_since_ms == NEVER:
            session.suspected_since_ms = now_ms
            session.next_probe_ms = now_ms

    def registration_refused(self, node_id: NodeId, now_ms: float) -> None:
        """Ask at once whether this process lives, for whose sake another one of the broker was refused.

        It is asked by a probe and over its stream: a broker that probes do not reach lives by its heartbeats. A probe
        under way may have gone to a machine that has lost power since, and is not waited for.
        """
        session = self._sessions[node_id]
        if not session.in_question:
            session.in_question = True
            again_ms = max(now_ms, session.probed_ms + self._second_probe_ms)
            session.next_probe_ms = min(session.next_probe_ms, again_ms)

    def due_probes(self, now_ms: float) -> list[NodeId]:
        """The brokers to probe now. Each is named once until its finding is given to `probed`, or until another
        process of it is refused."""
        due = []
        for node_id, session in self._sessions.items():
            if session.fenced or self._probe_at_ms(session) > now_ms:
                continue
            session.asked_ms = min(session.asked_ms, now_ms)
            session.next_probe_ms = NEVER
            if session.in_question:
                self._heartbeats_wanted.append(node_id)
            if session.probes == 0 or session.in_question:
                session.in_question = False
                session.probes += 1
                session.probed_ms = now_ms
                due.append(node_id)
        return due

    def due_heartbeats(self) -> list[NodeId]:
        """The brokers to ask for a heartbeat now, over the streams that they hold; each is named once."""
        due, self._heartbeats_wanted = self._heartbeats_wanted, []
        return due

    def probed(self, node_id: NodeId, finding: ProbeFinding, now_ms: float, *, sent_ms: float) -> None:
        """Take note of what the probe that was sent at `sent_ms` found."""
        session = self._sessions.get(node_id)
        # schedule 71/finding-about-the-process-before
        if session is None or session.probes == 0 or sent_ms < session.granted_ms:
            return
        session.probes -= 1
        if session.fenced:
            return
        connected = session.streams > 0 and session.suspected_since_ms == NEVER
        if finding is ProbeFinding.ALIVE:
            session.answers = True
            # schedule 60/answer-of-the-dead-counts
            if NEVER > session.suspected_since_ms > sent_ms:
                # It may have answered, and then died: only a younger probe ends the suspicion.
                session.next_probe_ms = now_ms
                return
            session.heard_ms = now_ms
            self._clear(session)  # schedule 60/answer-to-a-probe-ends-no-silence
        elif connected:
            # Its heartbeats may come: what answers or refuses at that address cannot be believed against them.
            if session.asked_ms != NEVER:
                session.next_probe_ms = now_ms + self._second_probe_ms
            if finding is ProbeFinding.OTHER_PROCESS:
                mark("another-process-answers")
                # schedule 71/other-process-is-not-believed
                session.displaced_since_ms = min(session.displaced_since_ms, now_ms)
                self._heartbeats_wanted.append(node_id)
        elif finding is ProbeFinding.OTHER_PROCESS:
            session.dead = True
        elif finding is ProbeFinding.REFUSED:
            session.refused_since_ms = min(session.refused_since_ms, now_ms)
            session.suspected_since_ms = min(session.suspected_since_ms, now_ms)
            session.next_probe_ms = now_ms + self.times.probe_interval_ms
            session.dead = now_ms - session.refused_since_ms >= self.times.refused_grace_ms
        else:
            session.refused_since_ms = NEVER
            if session.asked_ms != NEVER:
                session.next_probe_ms = now_ms + self.times.probe_interval_ms

    def expired(self, now_ms: float) -> list[NodeId]:
        """Unfenced brokers whose time is over: to be fenced now."""
        return [
            node_id
            for node_id, session in self._sessions.items()
            if not session.fenced and self._deadline_ms(session) <= now_ms
        ]

    def is_displaced(self, node_id: NodeId) -> bool:
        """True if another process answers at the broker's address."""
        session = self._sessions.get(node_id)
        return session is not None and session.displaced_since_ms != NEVER

    def is_silent(self, node_id: NodeId, now_ms: float) -> bool:
        """True if the broker owes an answer to a probe for too long."""
        session = self._sessions.get(node_id)
        return session is not None and not session.fenced and self._silent_at_ms(session) <= now_ms

    def next_event_ms(self) -> float:
        """Time when `due_probes` or `expired` may next name a broker, in monotonic milliseconds; infinity if never."""
        earliest = NEVER
        for session in self._sessions.values():
            if not session.fenced:
                earliest = min(earliest, self._deadline_ms(session), self._probe_at_ms(session))
        return earliest

    def _probe_at_ms(self, session: Session) -> float:
        """Time when the broker owes an answer, or, if it does, when it is to be asked again."""
        if session.asked_ms != NEVER:
            return NEVER if session.probes and not session.in_question else session.next_probe_ms
        return min(session.next_probe_ms, session.heard_ms + self.times.probe_after_ms)

    @property
    def _second_probe_ms(self) -> float:
        """Milliseconds between two probes of a broker whose stream is open."""
        return self.times.probe_after_ms / 4

    def _silent_at_ms(self, session: Session) -> float:
        reachable = session.answers or session.streams == 0  # schedule 60/unreachable-broker-counts-as-silent
        return session.asked_ms + self.times.answer_ms if reachable else NEVER  # schedule 60/silence-is-no-suspicion

    def _deadline_ms(self, session: Session) -> float:
        if session.dead:
            return 0.0
        times = self.times
        return min(
            session.last_contact_ms + times.session_timeout_ms,
            session.suspected_since_ms + times.suspicion_ms,
            session.displaced_since_ms + times.suspicion_ms,
            self._silent_at_ms(session),
        )

    @staticmethod
    def _clear(session: Session) -> None:
        session.suspected_since_ms = NEVER
        session.displaced_since_ms = NEVER  # schedule 71/heartbeat-ends-no-displacement
        session.refused_since_ms = NEVER
        session.next_probe_ms = NEVER
        session.asked_ms = NEVER
        session.in_question = False
        session.dead = False

    # Controlled shutdown

    def begin_controlled_shutdown(self, node_id: NodeId, offset: int) -> None:
        """Remember (once) the offset that all active brokers must reach before the broker may stop."""
        session = self._sessions[node_id]
        if session.controlled_shutdown_offset < 0:
            session.controlled_shutdown_offset = offset

    def may_shut_down(self, node_id: NodeId, active: list[NodeId]) -> bool:
        """True if all `active` brokers have seen the broker's last leadership move away."""
        offset = self._sessions[node_id].controlled_shutdown_offset
        # rule B12/shutdown-before-the-others-know
        return 0 <= offset <= min((self._sessions[node].metadata_offset for node in active), default=NEVER)

    def wanted_offset(self) -> int:
        """The greatest offset that a controlled shutdown waits for; -1 if none does."""
        return max((session.controlled_shutdown_offset for session in self._sessions.values()), default=-1)
