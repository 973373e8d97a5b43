"""The explored partition: three brokers, the controller's metadata, and everything that can happen to either."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from lab.explore import partition_rules as rules
from lab.explore.bounds import PartitionBounds
from lab.explore.brokers import Broker, no_loop
from lab.explore.controllers import as_replicas_see_it, first_metadata
from lab.explore.model import FIRST_MESSAGE, FIRST_NODE, NODES, SHARED, State, Step, View
from lab.explore.partition_acts import Frame
from lab.explore.partition_control import ControllerSteps
from lab.explore.partition_rules import BrokerView, World
from lab.explore.partition_steps import (
    ANY,
    CRASHES,
    DELAYS,
    FAILOVERS,
    FENCES,
    LAGS,
    MOVES,
    NETWORK,
    PLENTY,
    RECORDS,
    ROTS,
    STOPS,
    with_message,
    without_message,
)
from lab.explore.trace import prelude
from strandline.proto.ids import NodeId
from strandline.replica.states import Role


class Internal(NamedTuple):
    """Something that happens by itself: its kind, the broker that may be slow at it, and the steps that it is."""

    kind: str
    node: NodeId
    happen: Callable[[State], Iterator[Step]]


class PartitionModel(ControllerSteps):
    """What happens by itself (frames, syncs, metadata) happens at once and in one order, unless it is delayed: then it
    is a step of its own, at any later time. What clients, crashes, timers and the controller do are steps."""

    name = "partition"
    subject = "partition t-0"

    def __init__(self, bounds: PartitionBounds, after: Sequence[str] = ()) -> None:
        """The search begins after the steps named `after`, which cost nothing but records."""
        structlog.configure(processors=[_drop], logger_factory=structlog.ReturnLoggerFactory())
        super().__init__(bounds)
        self._prelude = tuple(after)
        self._loose = bounds.delays < 0

    # Starts

    def starts(self) -> Sequence[State]:
        """Three brokers, all in sync; the followers have opened their streams, and nothing was written yet."""
        metadata = first_metadata(self.bounds.min_isr)
        brokers = []
        for node in NODES:
            broker = Broker(node)
            with no_loop():
                broker.start(1)
                broker.apply(*as_replicas_see_it(node, metadata))
            brokers.append(self.parts.put(broker))
        bounds = self.bounds
        budget = (
            bounds.network * NETWORK
            + bounds.crashes * CRASHES
            + bounds.fences * FENCES
            + bounds.moves * MOVES
            + bounds.lags * LAGS
            + bounds.stops * STOPS
            + bounds.rots * ROTS
            + bounds.failovers * FAILOVERS
            + max(bounds.delays, 0) * DELAYS
        )
        state: State = (0, *brokers, self.parts.put(World(metadata)))
        settled = next(self._settle((), state))
        assert settled.state is not None
        return [prelude(self, (PLENTY, *settled.state[1:]), self._prelude, RECORDS, budget)]

    # Steps

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that can happen next."""
        for step in self._all(state):
            if step.state is None or self._loose:
                yield step
            else:
                yield from self._settle(step.event, step.state)

    def _all(self, state: State) -> Iterator[Step]:
        for kind, node, happen in self._internals(state):
            for step in happen(state):
                there = step.state
                if there is not None and not self._loose:
                    brisk = self.acts.slow(there[node], kind, is_slow=False)
                    there = (*there[:node], brisk, *there[node + 1 :])
                yield step._replace(state=there)
        for node in NODES:
            now = self.acts.look(state[node])
            if now.up:
                yield from self._process_steps(state, node, now)
            else:
                yield from self._register(state, node)
                yield from self._ruins(state, node, now)
            yield from self._controller_steps(state, node, now)
        before = -1
        for digest in state[FIRST_MESSAGE:]:
            if digest != before:
                yield from self._message_steps(state, digest)
            before = digest

    def _settle(self, event: tuple[Any, ...], state: State) -> Iterator[Step]:
        """Follow with what happens by itself, at once or with delays."""
        for kind, node, happen in self._internals(state):
            if kind in self.acts.look(state[node]).slow:
                continue
            if state[0] // DELAYS & ANY:
                slow = self.acts.slow(state[node], kind, is_slow=True)
                there = (state[0] - DELAYS, *state[FIRST_NODE:node], slow, *state[node + 1 :])
                yield from self._settle((*event, "slow", kind, node), there)
            for step in happen(state):
                if step.state is None:
                    yield Step((*event, *step.event), None, step.violation)
                else:
                    variant = ("held", *step.event) if step.event[0] == "held" else ()
                    yield from self._settle((*event, *variant), step.state)
            return
        yield Step(event, state)

    # What happens by itself

    def _internals(self, state: State) -> Iterator[Internal]:
        """Events that can happen by themselves now, in the order in which they do."""
        newest = self.acts.published(state[SHARED])
        looks = [(self.acts.place(state[node]), node) for node in NODES]
        looks.sort()
        for _, node in looks:
            now = self.acts.look(state[node])
            if not now.up:
                continue
            if now.knows != newest:
                yield Internal("metadata", node, partial(self._learn, node=node))
            if now.syncing:
                yield Internal("sync", node, partial(self._sync, node=node))
            if self.has_report(state, node, now):
                yield Internal("report", node, partial(self.report, node=node))
            leader = now.follows
            if leader is None or not self.acts.look(state[leader]).up:
                continue
            if not now.connected:
                if self.acts.one(state[leader], leader, "accept", node, leader, now.life).out:
                    yield Internal("stream", node, partial(self._connect, node=node, leader=leader))
            elif now.says and not self._held(state, node, leader):
                yield Internal("stream", node, partial(self._say, node=node, leader=leader))
            elif node in self.acts.look(state[leader]).offers:
                yield Internal("fetch", node, partial(self._offer, node=leader, follower=node))

    def _sync(self, state: State, node: NodeId) -> Iterator[Step]:
        """The sync under way ends."""
        return self._alone(("sync", node), state, node, "synced")

    def _learn(self, state: State, node: NodeId) -> Iterator[Step]:
        """The newest metadata arrive. A stream that is given up ends at the other side too."""
        for outcome in self.acts.of(state[node], node, "learn", self.acts.bare(state[SHARED])):
            yield self._after(("learn", node), state, self._hung_up(state, node, outcome), state[0])

    def _connect(self, state: State, node: NodeId, leader: NodeId) -> Iterator[Step]:
        """A follower opens a stream, and says where its log ends."""
        life = self.acts.look(state[node]).life
        rest = [one for one in state[FIRST_MESSAGE:] if not self._is_frame(one, node, leader)]
        connected = self.acts.one(state[node], node, "connect")
        accepted = self.acts.one(state[leader], leader, "accept", node, leader, life)
        yield from self._say(self._changed(state, {node: connected, leader: accepted}, rest), node, leader, "connect")

    def _say(self, state: State, node: NodeId, leader: NodeId, name: str = "say") -> Iterator[Step]:
        """Let what a follower has to say arrive, or hold it back."""
        said = self.acts.one(state[node], node, "say")
        event = (name, node, leader)
        for heard in self.acts.of(state[leader], leader, "receive_requests", node, said.out):
            yield self._after(event, state, {node: said, leader: heard}, state[0])
        if state[0] & ANY:
            held = self.acts.put_message(Frame(node, leader, self.acts.look(said.broker).life, said.out))
            messages = [*state[FIRST_MESSAGE:], held]
            yield self._after(("held", *event), state, {node: said}, state[0] - NETWORK, messages)

    def _offer(self, state: State, node: NodeId, follower: NodeId) -> Iterator[Step]:
        """Let what a leader has for a follower arrive. To hold it back would be to send it later."""
        offered = self.acts.one(state[node], node, "offer", follower)
        for heard in self.acts.of(state[follower], follower, "receive_replies", offered.out):
            yield self._after(("offer", node, follower), state, {node: offered, follower: heard}, state[0])

    # Processes

    def _process_steps(self, state: State, node: NodeId, now: BrokerView) -> Iterator[Step]:
        budget = state[0]
        written = budget // RECORDS & ANY
        if now.leads >= 0 and written < self.bounds.records:
            yield from self._alone(("append", node), state, node, "append", written, cost=-RECORDS)
        if now.proposes:
            yield from self._propose(state, node)
        if budget // LAGS & ANY:
            for follower in now.lagging:
                yield from self._alone(("lag", node, follower), state, node, "lags", follower, cost=LAGS)
        if budget // CRASHES & ANY:
            yield from self._crashes(state, node, now, CRASHES)
            if now.syncing and now.role in (Role.LEADER, Role.FOLLOWER):
                yield from self._alone(("sync fails", node), state, node, "sync_fails", cost=CRASHES)
        elif now.role is Role.OFFLINE:
            yield from self._crashes(state, node, now, 0)
        if now.retries and self._would_judge(state, now):
            yield from self._alone(("retry", node), state, node, "retry")
        if now.connected and budget & ANY:
            leader = now.follows
            assert leader is not None
            changed = {
                node: self.acts.one(state[node], node, "disconnect"),
                leader: self.acts.one(state[leader], leader, "hang_up", node),
            }
            yield self._after(("break", node, leader), state, changed, budget - NETWORK)

    def _crashes(self, state: State, node: NodeId, now: BrokerView, cost: int) -> Iterator[Step]:
        """The process ends, with any part of what was not synced."""
        for kept in range(now.unsynced + 1):
            yield self._crash(("crash", node, kept), state, node, state[0] - cost)
        for kept in now.torn:
            yield self._crash(("crash", node, kept, "torn"), state, node, state[0] - cost)

    def _ruins(self, state: State, node: NodeId, now: BrokerView) -> Iterator[Step]:
        """The disk of a machine on which no process runs loses what was synced."""
        if state[0] // ROTS & ANY and not now.ruined:
            for kept in range(len(now.disk)):
                for what in ("rot", "lose", "zero"):
                    yield from self._alone((what, node, kept), state, node, what, kept, cost=ROTS)

    def _would_judge(self, state: State, now: BrokerView) -> bool:
        """True if the leader knows the leader epoch in which a refused fetch is to be tried again: it would not
        refuse it in the same way once more."""
        leader = now.follows
        return now.connected and leader is not None and self.acts.look(state[leader]).leads == now.knows[0]

    # Messages that were held back

    def _message_steps(self, state: State, digest: int) -> Iterator[Step]:
        message = self.acts.message(digest)
        rest = without_message(state, digest)
        leader = message.leader
        if isinstance(message, Frame):
            yield from self._arrive(rest, message)
            return
        if message.answered:
            answer = self.acts.put_outcome(message.outcome)
            yield from self._alone(("answer", leader), rest, leader, "answered", answer)
        else:
            yield from self._judged(("arrive", leader, "" if message.heard else "again"), rest, message)
        if message.heard:
            # The leader gives up waiting: whether the change was, or will be, committed it does not know.
            copy = self.acts.put_message(message._replace(heard=False))
            left = rest if message.answered else with_message(rest, copy)
            yield from self._alone(("give up", leader), left, leader, "answered", 0)

    def _arrive(self, state: State, message: Frame) -> Iterator[Step]:
        """A frame that was held back arrives; that of a process that has ended, and then the end of its stream."""
        leader, follower = message.leader, message.follower
        event = ("arrive", follower, leader, message.life)
        if (follower, message.life) not in self.acts.look(state[leader]).links:
            yield self._after(event, state, {}, state[0])
            return
        now = self.acts.look(state[follower])
        gone = now.life != message.life or not (now.connected and now.follows == leader)
        for heard in self.acts.of(state[leader], leader, "receive_requests", follower, message.frame):
            ended = heard.violation is None and gone
            then = self.acts.one(heard.broker, leader, "hang_up", follower) if ended else heard
            yield self._after(event, state, {leader: then}, state[0])

    # What is told and forgotten

    def forget(self, but: set[int]) -> None:
        """Forget every part that is not named, and all that was computed from it."""
        self.acts.forget(but)

    def tell(self, state: State, event: tuple[Any, ...]) -> str:
        """The name of a step."""
        words = [str(int(word)) if isinstance(word, int) else str(word) for word in event if word != ""]
        text = " ".join(words)
        happened, *slow = text.split(" slow ")
        return happened + "".join(f" (slow {what})" for what in slow)

    def view(self, state: State) -> View:
        """A state as it is told."""
        world = self.acts.world(state[SHARED])
        looks = {f"n{int(node)}": self.acts.look(state[node]) for node in NODES}
        words = {"controller": rules.tell_metadata(world), "committed": rules.tell(world.committed)}
        words |= {name: rules.tell_broker(one) for name, one in looks.items()}
        held = [rules.tell_message(self.acts.message(digest)) for digest in state[FIRST_MESSAGE:]]
        words["held back"] = ", ".join(sorted(held)) or "nothing"
        replicas = {name: rules.tell_point(one) for name, one in looks.items()}
        return View(replicas, rules.tell_committed(world), words)


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent
