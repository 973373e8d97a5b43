"""Acts of one broker or one command of the explored partition: computed once, in digests."""

from __future__ import annotations

from typing import Any, NamedTuple

from lab.explore import controllers
from lab.explore import partition_rules as rules
from lab.explore.broker_codec import broker_codec
from lab.explore.brokers import CLUSTER, Broker, no_loop
from lab.explore.controllers import as_replicas_see_it, carried_out
from lab.explore.model import FIRST_NODE, RENAMINGS, SHARED, State, Violation, refused
from lab.explore.partition_rules import BrokerView, World, look
from lab.explore.parts import Parts
from strandline.controller.broker_api import AlterPartitionReply
from strandline.controller.metadata.records import PartitionRecord
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError, ProtocolError
from strandline.proto.ids import NodeId
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.replica import frames


class Frame(NamedTuple):
    """Frame that a follower has said, and its leader not heard."""

    follower: NodeId
    leader: NodeId
    life: int
    """The follower's broker epoch."""
    frame: bytes


class Proposal(NamedTuple):
    """A change of the ISR under way.

    `answered`: its answer is on the way back (outcome None: the request as a whole was refused); `heard`: the leader
    waits for it.
    """

    leader: NodeId
    broker_epoch: int
    item: AlterPartitionItem
    outcome: AlterPartitionOutcome | None = None
    answered: bool = False
    heard: bool = True


class Outcome(NamedTuple):
    """Result of one broker's act; `out` is what it says."""

    broker: int
    out: Any
    violation: Violation | None


class Acts:
    """The steps of single brokers, and the commands of the controller."""

    def __init__(self) -> None:
        codec = broker_codec()
        for name in ("replicas", "isr", "eligible_leader_replicas", "last_known_elr"):
            codec.unordered[PartitionRecord, name] = _itself
        codec.unordered[controllers.Metadata, "unproven"] = _itself
        codec.unordered[AlterPartitionOutcome, "isr"] = _itself
        self.parts = Parts(codec, RENAMINGS)
        self._start_anew()

    def _start_anew(self) -> None:
        """Nothing is computed yet."""
        self._outcomes: dict[tuple[Any, ...], tuple[Outcome, ...]] = {}
        self._slowed: dict[tuple[int, str], int] = {}
        self._looks: dict[int, BrokerView] = {}
        self._places: dict[int, tuple[Any, ...]] = {}
        self._worlds: dict[int, World] = {}
        self._published: dict[int, Any] = {}
        self._judged: dict[tuple[int, ...], int | Violation] = {}
        self._commanded: dict[tuple[Any, ...], tuple[tuple[int, int | Violation], ...]] = {}
        self._answers: dict[int, AlterPartitionOutcome | None] = {0: None}
        self._moved: dict[tuple[int, int], int] = {}
        self._bare: dict[int, int] = {}
        self._messages: dict[int, Frame | Proposal] = {}
        self._put_messages: dict[Frame | Proposal, int] = {}

    def forget(self, but: set[int]) -> None:
        """Forget every part that is not named, and all that was computed from it."""
        self.parts.forget(but)
        self._start_anew()

    # Brokers

    def of(self, digest: int, node: NodeId, *event: Any) -> tuple[Outcome, ...]:
        """Results of an event at a broker: one, or one for each order in which a leader may look at its followers."""
        key = (digest, event)
        known = self._outcomes.get(key)
        if known is None:
            known = self._outcomes[key] = self._compute(digest, node, event)
        return known

    def one(self, digest: int, node: NodeId, *event: Any) -> Outcome:
        """The same, where no order matters."""
        return self.of(digest, node, *event)[0]

    def slow(self, digest: int, kind: str, *, is_slow: bool) -> int:
        """A broker that is slow at something, or is so no more."""
        now = self.look(digest)
        if (kind in now.slow) is is_slow:
            return digest
        key = (digest, kind)
        known = self._slowed.get(key)
        if known is None:
            others = {one for one in now.slow if one != kind}
            kinds = tuple(sorted({*others, kind} if is_slow else others))
            known = self._slowed[key] = self.parts.changed(digest, "slow", kinds)
            self._looks.setdefault(known, now._replace(slow=kinds))
        return known

    def _compute(self, digest: int, node: NodeId, event: tuple[Any, ...]) -> tuple[Outcome, ...]:
        found: dict[tuple[int, str], Outcome] = {}
        now = self.look(digest)
        for backwards in (False, True) if now.leads >= 0 and len(now.isr) == 1 else (False,):
            broker: Broker = self.parts.get(digest)
            if backwards:
                core = broker.core
                core._followers = core._followers[::-1]
            outcome = self._act(digest, broker, node, event)
            found[outcome.broker, str(outcome.violation)] = outcome
        return tuple(found.values())

    def _act(self, digest: int, broker: Broker, node: NodeId, event: tuple[Any, ...]) -> Outcome:
        before, pending = self.look(digest), broker.pending
        try:
            with no_loop():
                out = self._do(broker, node, event)
        except (AssertionError, FatalError, ProtocolError) as error:
            return Outcome(0, None, refused(node, error))
        broker.settle(pending)
        after = look(broker)
        broken = rules.judge_step(node, before, after, broker.trouble)
        digest = self.parts.put(broker)
        self._looks.setdefault(digest, after)
        return Outcome(digest, out, broken)

    def _do(self, broker: Broker, node: NodeId, event: tuple[Any, ...]) -> Any:
        kind, *args = event
        if kind == "learn":
            broker.apply(*as_replicas_see_it(node, self.world(args[0]).metadata))
        elif kind == "accept":
            follower, leader, life = args
            return broker.accept(frames.Hello(frames.PROTOCOL_VERSION, follower, leader, life, CLUSTER))
        elif kind == "answered":
            broker.proposal_answered(self._answers[args[0]])
        else:
            return getattr(broker, kind)(*args)
        return None

    # The controller

    def commands(self, shared: int, *command: Any) -> tuple[tuple[int, int | Violation], ...]:
        """Results of a command: the metadata after it, and for a proposal the digest of its answer."""
        key = (self.bare(shared), command)
        known = self._commanded.get(key)
        if known is None:
            metadata = self.world(shared).metadata
            known = self._commanded[key] = tuple(
                (self.put_world(World(after)), self._put_answer(answer))
                for after, answer in carried_out(metadata, self._command(*command))
            )
        return known

    def _command(self, kind: str, *args: Any) -> controllers.Command:
        if kind != "alter":
            found: controllers.Command = getattr(controllers, kind)(*args)
            return found
        proposal = self.message(args[0])
        assert isinstance(proposal, Proposal)
        return controllers.alter(proposal.leader, proposal.broker_epoch, proposal.item)

    def _put_answer(self, answer: Any) -> int | Violation:
        if isinstance(answer, FatalError):
            return Violation("MetadataCanBeReplayed", str(answer))
        return self.put_outcome(_outcome_of(answer) if isinstance(answer, AlterPartitionReply) else None)

    def put_outcome(self, outcome: AlterPartitionOutcome | None) -> int:
        """The digest of an answer; 0 for none."""
        digest = 0 if outcome is None else self.parts.put(outcome)
        self._answers[digest] = outcome
        return digest

    def answer(self, digest: int) -> AlterPartitionOutcome | None:
        """The answer of a digest."""
        return self._answers[digest]

    # What digests stand for

    def look(self, digest: int) -> BrokerView:
        """A broker at one instant."""
        known = self._looks.get(digest)
        if known is None:
            known = self._looks[digest] = look(self.parts.get(digest))
        return known

    def place(self, digest: int) -> tuple[Any, ...]:
        """Rank of a broker's turn."""
        known = self._places.get(digest)
        if known is None:
            known = self._places[digest] = self.look(digest).place
        return known

    def world(self, digest: int) -> World:
        """World that all brokers share."""
        known = self._worlds.get(digest)
        if known is None:
            known = self._worlds[digest] = self.parts.get(digest)
        return known

    def put_world(self, world: World) -> int:
        """The digest of a world."""
        digest = self.parts.put(world)
        self._worlds[digest] = world
        return digest

    def published(self, shared: int) -> Any:
        """Knowledge of a broker that has heard of everything committed."""
        known = self._published.get(shared)
        if known is None:
            known = self._published[shared] = rules.published(self.world(shared).metadata)
        return known

    def bare(self, shared: int) -> int:
        """A world of the same metadata in which no record is committed."""
        known = self._bare.get(shared)
        if known is None:
            known = self._bare[shared] = self.put_world(World(self.world(shared).metadata))
        return known

    def moved(self, shared: int, metadata: int) -> int:
        """The same world under other metadata."""
        key = (shared, metadata)
        known = self._moved.get(key)
        if known is None:
            world = self.world(shared)._replace(metadata=self.world(metadata).metadata)
            known = self._moved[key] = self.put_world(world)
        return known

    def message(self, digest: int) -> Frame | Proposal:
        """A message."""
        known = self._messages.get(digest)
        if known is None:
            known = self._messages[digest] = self.parts.get(digest)
        return known

    def put_message(self, message: Frame | Proposal) -> int:
        """The digest of a message."""
        digest = self._put_messages.get(message)
        if digest is None:
            digest = self._put_messages[message] = self.parts.put(message)
            self._messages[digest] = message
        return digest

    # Invariants

    def judge(self, state: State) -> int | Violation:
        """The world of a state, with what is committed by now; or what is broken."""
        key = state[FIRST_NODE : SHARED + 1]
        judged = self._judged.get(key)
        if judged is None:
            judged = self._judged[key] = self._judge(state)
        return judged

    def _judge(self, state: State) -> int | Violation:
        world = self.world(state[SHARED])
        judged = rules.judge(world, tuple([self.look(digest) for digest in state[FIRST_NODE:SHARED]]))
        if isinstance(judged, Violation):
            return judged
        return state[SHARED] if judged is world else self.put_world(judged)


def _itself(node: Any) -> Any:
    return node


def _outcome_of(reply: AlterPartitionReply) -> AlterPartitionOutcome:
    """The answer in the replicas' own values."""
    found = reply.outcomes[0]
    return AlterPartitionOutcome(
        found.topic_id,
        found.partition,
        found.error,
        "",
        found.leader,
        found.leader_epoch,
        found.partition_epoch,
        found.isr if found.error is ErrorCode.NONE else (),
        found.recovering,
    )
