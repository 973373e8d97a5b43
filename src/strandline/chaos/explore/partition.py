"""The explored partition: three brokers, the controller's metadata, and everything that can happen to either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from strandline.chaos.explore import partition_rules as rules
from strandline.chaos.explore.bounds import PartitionBounds
from strandline.chaos.explore.brokers import Broker, no_loop
from strandline.chaos.explore.controllers import as_replicas_see_it, first_metadata
from strandline.chaos.explore.model import FIRST_MESSAGE, FIRST_NODE, NODES, SHARED, State, Step, View, Violation
from strandline.chaos.explore.partition_acts import Acts, Frame, Outcome, Proposal
from strandline.chaos.explore.partition_rules import Look, World
from strandline.chaos.explore.trace import prelude
from strandline.proto.ids import NodeId
from strandline.replica.states import Role

_NETWORK, _CRASHES, _RECORDS, _FENCES, _MOVES, _LAGS, _DELAYS, _STOPS = (1 << shift for shift in range(0, 32, 4))
"""Units of the packed budget, one number: what is left of each, and how many records were written."""

_ANY = 0xF
_PLENTY = 0xFFFFF0FF


class Internal(NamedTuple):
    """Something that happens by itself: its kind, the broker that may be slow at it, and the steps that it is."""

    kind: str
    node: NodeId
    happen: Callable[[State], Iterator[Step]]


class PartitionModel:
    """What happens by itself (frames, syncs, metadata) happens at once and in one order, unless it is delayed: then it
    is a step of its own, at any later time. What clients, crashes, timers and the controller do are steps."""

    name = "partition"
    subject = "partition t-0"

    def __init__(self, bounds: PartitionBounds, after: Sequence[str] = ()) -> None:
        """The search begins after the steps named `after`, which cost nothing but records."""
        structlog.configure(processors=[_drop], logger_factory=structlog.ReturnLoggerFactory())
        self.bounds = bounds
        self._prelude = tuple(after)
        self.acts = Acts()
        self.parts = self.acts.parts
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
            bounds.network * _NETWORK
            + bounds.crashes * _CRASHES
            + bounds.fences * _FENCES
            + bounds.moves * _MOVES
            + bounds.lags * _LAGS
            + bounds.stops * _STOPS
            + max(bounds.delays, 0) * _DELAYS
        )
        state: State = (0, *brokers, self.parts.put(World(metadata)))
        settled = next(self._settle((), state))
        assert settled.state is not None
        return [prelude(self, (_PLENTY, *settled.state[1:]), self._prelude, _RECORDS, budget)]

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
            yield from self._controller_steps(state, node, now)
        before = -1
        for digest in state[FIRST_MESSAGE:]:
            if digest != before:
                yield from self._message_steps(state, digest)
            before = digest

    def _settle(self, event: tuple[Any, ...], state: State) -> Iterator[Step]:
        """What follows by itself, at once or with delays."""
        for kind, node, happen in self._internals(state):
            if kind in self.acts.look(state[node]).slow:
                continue
            if state[0] // _DELAYS & _ANY:
                slow = self.acts.slow(state[node], kind, is_slow=True)
                there = (state[0] - _DELAYS, *state[FIRST_NODE:node], slow, *state[node + 1 :])
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
        """What can happen by itself now, in the order in which it does."""
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

    def _hung_up(self, state: State, node: NodeId, outcome: Outcome) -> dict[NodeId, Outcome]:
        """What `node` did, and the end of the stream that it has left by that."""
        changed = {node: outcome}
        if outcome.violation is not None:
            return changed
        before, after = self.acts.look(state[node]), self.acts.look(outcome.broker)
        if before.connected and not (after.connected and after.follows == before.follows):
            leader = before.follows
            assert leader is not None
            if not self._held(state, node, leader) and (node, before.life) in self.acts.look(state[leader]).links:
                changed[leader] = self.acts.one(state[leader], leader, "hang_up", node)
        return changed

    def _connect(self, state: State, node: NodeId, leader: NodeId) -> Iterator[Step]:
        """A follower opens a stream, and says where its log ends."""
        life = self.acts.look(state[node]).life
        rest = [one for one in state[FIRST_MESSAGE:] if not self._is_frame(one, node, leader)]
        connected = self.acts.one(state[node], node, "connect")
        accepted = self.acts.one(state[leader], leader, "accept", node, leader, life)
        yield from self._say(self._changed(state, {node: connected, leader: accepted}, rest), node, leader, "connect")

    def _say(self, state: State, node: NodeId, leader: NodeId, name: str = "say") -> Iterator[Step]:
        """What a follower has to say arrives, or is held back."""
        said = self.acts.one(state[node], node, "say")
        event = (name, node, leader)
        for heard in self.acts.of(state[leader], leader, "told_by_follower", node, said.out):
            yield self._after(event, state, {node: said, leader: heard}, state[0])
        if state[0] & _ANY:
            held = self.acts.put_message(Frame(node, leader, self.acts.look(said.broker).life, said.out))
            messages = [*state[FIRST_MESSAGE:], held]
            yield self._after(("held", *event), state, {node: said}, state[0] - _NETWORK, messages)

    def _offer(self, state: State, node: NodeId, follower: NodeId) -> Iterator[Step]:
        """What a leader has for a follower arrives. To hold it back would be to send it later."""
        offered = self.acts.one(state[node], node, "offer", follower)
        for heard in self.acts.of(state[follower], follower, "told_by_leader", offered.out):
            yield self._after(("offer", node, follower), state, {node: offered, follower: heard}, state[0])

    def _held(self, state: State, follower: NodeId, leader: NodeId) -> bool:
        """A frame on that way is held back."""
        return any(self._is_frame(digest, follower, leader) for digest in state[FIRST_MESSAGE:])

    def _is_frame(self, digest: int, follower: NodeId, leader: NodeId) -> bool:
        message = self.acts.message(digest)
        return isinstance(message, Frame) and (message.follower, message.leader) == (follower, leader)

    # Processes

    def _process_steps(self, state: State, node: NodeId, now: Look) -> Iterator[Step]:
        budget = state[0]
        written = budget // _RECORDS & _ANY
        if now.leads >= 0 and written < self.bounds.records:
            yield from self._alone(("append", node), state, node, "append", written, cost=-_RECORDS)
        if now.proposes:
            yield from self._propose(state, node)
        if budget // _LAGS & _ANY:
            for follower in now.lagging:
                yield from self._alone(("lag", node, follower), state, node, "lags", follower, cost=_LAGS)
        if budget // _CRASHES & _ANY:
            for kept in range(now.unsynced + 1):
                yield self._crash(("crash", node, kept), state, node, state[0] - _CRASHES)
            if now.syncing and now.leads < 0 and now.role is not None:
                yield from self._alone(("sync fails", node), state, node, "sync_fails", cost=_CRASHES)
        elif now.role is Role.OFFLINE:
            for kept in range(now.unsynced + 1):
                yield self._crash(("crash", node, kept), state, node, state[0])
        if now.retries and self._would_judge(state, now):
            yield from self._alone(("retry", node), state, node, "retry")
        if now.connected and budget & _ANY:
            leader = now.follows
            assert leader is not None
            changed = {
                node: self.acts.one(state[node], node, "disconnect"),
                leader: self.acts.one(state[leader], leader, "hang_up", node),
            }
            yield self._after(("break", node, leader), state, changed, budget - _NETWORK)

    def _would_judge(self, state: State, now: Look) -> bool:
        """The leader knows the leader epoch in which a refused fetch is to be tried again: it would not refuse it in
        the same way once more."""
        leader = now.follows
        return now.connected and leader is not None and self.acts.look(state[leader]).leads == now.knows[0]

    def _alone(self, event: tuple[Any, ...], state: State, node: NodeId, *what: Any, cost: int = 0) -> Iterator[Step]:
        """A step of one broker by itself."""
        for outcome in self.acts.of(state[node], node, *what):
            yield self._after(event, state, {node: outcome}, state[0] - cost)

    def _crash(self, event: tuple[Any, ...], state: State, node: NodeId, budget: int) -> Step:
        """The process ends, and its streams with it; what it had said may still be on its way."""
        how, _, *kept = event
        changed = self._hung_up(state, node, self.acts.one(state[node], node, how, *kept))
        for other in NODES:
            one = self.acts.look(state[other])
            if one.connected and one.follows == node:
                changed[other] = self.acts.one(state[other], other, "disconnect")
        messages = []
        for digest in state[FIRST_MESSAGE:]:
            message = self.acts.message(digest)
            if message.leader != node:
                messages.append(digest)
            elif isinstance(message, Proposal) and not message.answered:
                messages.append(self.acts.put_message(message._replace(heard=False)))
        return self._after(event, state, changed, budget, messages)

    # The controller

    def _controller_steps(self, state: State, node: NodeId, now: Look) -> Iterator[Step]:
        info = self.acts.world(state[SHARED]).metadata.brokers[node]
        budget = state[0]
        if info.fenced:
            if now.up and now.knows is not None and int(info.broker_epoch) == now.life:
                yield from self._command(("unfence", node), state, "unfence", node, now.life)
        elif not now.up:
            yield from self._command(("fence", node), state, "fence", node)
        else:
            if budget // _FENCES & _ANY:
                yield from self._command(("fence", node), state, "fence", node, cost=_FENCES)
            if now.knows is not None and (info.in_controlled_shutdown or budget // _STOPS & _ANY):
                yield from self._stop(state, node, now, 0 if info.in_controlled_shutdown else _STOPS)
        if node == NODES[0] and budget // _MOVES & _ANY:
            yield from self._command(("move",), state, "prefer", cost=_MOVES)

    def _command(self, event: tuple[Any, ...], state: State, *command: Any, cost: int = 0) -> Iterator[Step]:
        """A command of the controller that no broker waits for."""
        for name, there, answer in self._commanded(event, state, *command):
            if isinstance(answer, Violation):
                yield Step(name, None, answer)
            elif there[SHARED] != state[SHARED]:
                yield self._after(name, there, {}, state[0] - cost)

    def _stop(self, state: State, node: NodeId, now: Look, cost: int) -> Iterator[Step]:
        """A broker asks to be let go; when it may, it ends."""
        newest = self.acts.published(state[SHARED])
        late = tuple(other for other in NODES if self.acts.look(state[other]).knows != newest)
        for name, there, answer in self._commanded(("stop", node), state, "stop", node, now.life, late):
            if isinstance(answer, Violation):
                yield Step(name, None, answer)
            elif self.acts.world(there[SHARED]).metadata.brokers[node].fenced:
                yield self._crash(name[:2], there, node, state[0] - cost)
            elif there[SHARED] != state[SHARED]:
                yield self._after(name, there, {}, state[0] - cost)

    def _commanded(
        self, event: tuple[Any, ...], state: State, *command: Any
    ) -> Iterator[tuple[tuple[Any, ...], State, int | Violation]]:
        """What a command may come to, within the bounds; and the answer to it."""
        for number, (metadata, answer) in enumerate(self.acts.commands(state[SHARED], *command)):
            partition = self.acts.world(metadata).metadata.partition
            if partition.leader_epoch > self.bounds.leader_epochs or partition.partition_epoch > self.bounds.changes:
                continue
            shared = self.acts.moved(state[SHARED], metadata)
            there = (*state[:SHARED], shared, *state[FIRST_MESSAGE:])
            yield ((*event, "way", number) if number else event), there, answer

    def _register(self, state: State, node: NodeId) -> Iterator[Step]:
        """A process starts and registers."""
        info = self.acts.world(state[SHARED]).metadata.brokers[node]
        life, clean = int(info.broker_epoch) + 1, self.acts.look(state[node]).clean
        started = self.acts.one(state[node], node, "start", life)
        for way in ("register",) if info.fenced else ("register", "register_unfenced"):
            for name, there, answer in self._commanded((way, node), state, way, node, life, clean):
                if isinstance(answer, Violation):
                    yield Step(name, None, answer)
                else:
                    yield self._after(name, there, {node: started}, state[0])

    def _propose(self, state: State, node: NodeId) -> Iterator[Step]:
        """A leader's proposal is judged and answered at once; or it arrives again later, or late, or its answer is."""
        asked = self.acts.one(state[node], node, "propose")
        proposal = Proposal(node, self.acts.look(state[node]).life, asked.out)
        there = self._changed(state, {node: asked}, state[FIRST_MESSAGE:])
        yield from self._judged(("propose", node), there, proposal)
        if state[0] & _ANY:
            spent = (there[0] - _NETWORK, *there[1:])
            again = self.acts.put_message(proposal._replace(heard=False))
            yield from self._judged(("propose twice", node), _with(spent, again), proposal)
            late = self.acts.put_message(proposal)
            yield self._after(("propose late", node), spent, {}, spent[0], [*state[FIRST_MESSAGE:], late])

    def _judged(self, event: tuple[Any, ...], state: State, proposal: Proposal) -> Iterator[Step]:
        """The controller judges a proposal; who waits for the answer has it at once, or late."""
        command = self.acts.put_message(proposal._replace(heard=True))
        leader = proposal.leader
        for name, there, answer in self._commanded(event, state, "alter", command):
            if isinstance(answer, Violation):
                yield Step(name, None, answer)
                continue
            if not proposal.heard:
                yield self._after(name, there, {}, state[0])
                continue
            for heard in self.acts.of(there[leader], leader, "answered", answer):
                yield self._after(name, there, {leader: heard}, state[0])
            if state[0] & _ANY:
                late = self.acts.put_message(proposal._replace(outcome=self.acts.answer(answer), answered=True))
                yield self._after(("held", *name), _with(there, late), {}, state[0] - _NETWORK)

    # Messages that were held back

    def _message_steps(self, state: State, digest: int) -> Iterator[Step]:
        message = self.acts.message(digest)
        rest = _without(state, digest)
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
            left = rest if message.answered else _with(rest, copy)
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
        for heard in self.acts.of(state[leader], leader, "told_by_follower", follower, message.frame):
            ended = heard.violation is None and gone
            then = self.acts.one(heard.broker, leader, "hang_up", follower) if ended else heard
            yield self._after(event, state, {leader: then}, state[0])

    # What follows

    def _after(
        self,
        event: tuple[Any, ...],
        state: State,
        changed: dict[NodeId, Outcome],
        budget: int,
        messages: Iterable[int] | None = None,
    ) -> Step:
        """The state after some brokers did something, or what that broke."""
        for outcome in changed.values():
            if outcome.violation is not None:
                return Step(event, None, outcome.violation)
        after = self._changed(state, changed, state[FIRST_MESSAGE:] if messages is None else messages)
        judged = self.acts.judge(after)
        if isinstance(judged, Violation):
            return Step(event, None, judged)
        return Step(event, (budget, after[1], after[2], after[3], judged, *after[FIRST_MESSAGE:]))

    def _changed(self, state: State, changed: dict[NodeId, Outcome], messages: Iterable[int]) -> State:
        one, two, three = (changed[node].broker if node in changed else state[node] for node in NODES)
        return (state[0], one, two, three, state[SHARED], *sorted(messages))

    def forget(self, but: set[int]) -> None:
        """Forget every part that is not named, and all that was computed from it."""
        self.acts.forget(but)

    # What is told

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
        words["held back"] = ", ".join(held) or "nothing"
        replicas = {name: rules.tell_point(one) for name, one in looks.items()}
        return View(replicas, rules.tell_committed(world), words)


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent


def _with(state: State, message: int) -> State:
    return (*state[:FIRST_MESSAGE], *sorted([*state[FIRST_MESSAGE:], message]))


def _without(state: State, message: int) -> State:
    place = state.index(message, FIRST_MESSAGE)
    return state[:place] + state[place + 1 :]
