"""The steps of an explored partition: what all of them have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lab.explore.bounds import PartitionBounds
from lab.explore.model import FIRST_MESSAGE, NODES, SHARED, State, Step, Violation
from lab.explore.partition_acts import Acts, Frame, Outcome, Proposal
from strandline.proto.ids import NodeId

NETWORK, CRASHES, RECORDS, FENCES, MOVES, LAGS, DELAYS, STOPS, ROTS, FAILOVERS = (1 << at for at in range(0, 40, 4))
"""Units of the packed budget, one number: what is left of each, and how many records were written."""

ANY = 0xF
PLENTY = 0xFFFFFFF0FF


class PartitionSteps:
    """Building blocks of the steps of brokers, of the controller and of the network."""

    def __init__(self, bounds: PartitionBounds) -> None:
        self.bounds = bounds
        self.acts = Acts()
        self.parts = self.acts.parts

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

    def _hung_up(self, state: State, node: NodeId, outcome: Outcome) -> dict[NodeId, Outcome]:
        """Result of `node`, and the end of the stream that it has left by that."""
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

    def _held(self, state: State, follower: NodeId, leader: NodeId) -> bool:
        """True if a frame on that way is held back."""
        return any(self._is_frame(digest, follower, leader) for digest in state[FIRST_MESSAGE:])

    def _is_frame(self, digest: int, follower: NodeId, leader: NodeId) -> bool:
        message = self.acts.message(digest)
        return isinstance(message, Frame) and (message.follower, message.leader) == (follower, leader)

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


def with_message(state: State, message: int) -> State:
    """A state in which one more message is held back."""
    return (*state[:FIRST_MESSAGE], *sorted([*state[FIRST_MESSAGE:], message]))


def without_message(state: State, message: int) -> State:
    """A state in which a message is held back no more."""
    place = state.index(message, FIRST_MESSAGE)
    return state[:place] + state[place + 1 :]
