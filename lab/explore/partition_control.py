"""Steps of an explored partition in which its controller has a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lab.explore.controllers import Found
from lab.explore.model import FIRST_MESSAGE, NODES, SHARED, State, Step, Violation
from lab.explore.partition_acts import Proposal
from lab.explore.partition_rules import BrokerView
from lab.explore.partition_steps import (
    ANY,
    FAILOVERS,
    FENCES,
    MOVES,
    NETWORK,
    STOPS,
    PartitionSteps,
    with_message,
)
from strandline.proto.ids import NodeId


class ControllerSteps(PartitionSteps):
    """Commands: of brokers that register, report and propose, and of the controller by itself."""

    def _controller_steps(self, state: State, node: NodeId, now: BrokerView) -> Iterator[Step]:
        metadata = self.acts.world(state[SHARED]).metadata
        info = metadata.brokers[node]
        budget = state[0]
        if info.fenced:
            if now.up and now.knows is not None and int(info.broker_epoch) == now.life:
                reported = metadata.counts(now.reported)
                yield from self._command(("unfence", node), state, "unfence", node, now.life, reported)
        elif not now.up:
            yield from self._command(("fence", node), state, "fence", node)
        else:
            if budget // FENCES & ANY:
                yield from self._command(("fence", node), state, "fence", node, cost=FENCES)
            if now.knows is not None and (info.in_controlled_shutdown or budget // STOPS & ANY):
                yield from self._stop(state, node, now, 0 if info.in_controlled_shutdown else STOPS)
        if node == NODES[0]:
            if budget // MOVES & ANY:
                yield from self._command(("move",), state, "prefer", cost=MOVES)
            nobody_leads = not metadata.partition.has_leader
            if nobody_leads and not any(self.acts.look(state[other]).zeroed for other in NODES):
                yield from self._command(("wait out",), state, "wait_out")  # else the honest one is back in time
            if budget // FAILOVERS & ANY:
                yield from self._command(("failover",), state, "failover", cost=FAILOVERS)

    def has_report(self, state: State, node: NodeId, now: BrokerView) -> bool:
        """True if a broker has something to say to the controller that counts now, and was not said yet."""
        metadata = self.acts.world(state[SHARED]).metadata
        info = metadata.brokers[node]
        active = not info.fenced and int(info.broker_epoch) == now.life and now.knows is not None
        reported = metadata.counts(now.reported)
        if not active or reported == metadata.reported[node]:
            return False
        return (
            reported.unserved != metadata.reported[node].unserved
            or reported.leader_epoch == metadata.partition.leader_epoch
        )

    def report(self, state: State, node: NodeId) -> Iterator[Step]:
        """Report with a heartbeat."""
        now = self.acts.look(state[node])
        reported = self.acts.world(state[SHARED]).metadata.counts(now.reported)
        return self._command(("report", node), state, "report", node, now.life, reported)

    def _command(self, event: tuple[Any, ...], state: State, *command: Any, cost: int = 0) -> Iterator[Step]:
        """Steps by a command of the controller that no broker waits for."""
        for name, there, answer in self._commanded(event, state, *command):
            if isinstance(answer, Violation):
                yield Step(name, None, answer)
            elif there[SHARED] != state[SHARED]:
                yield self._after(name, there, {}, state[0] - cost)

    def _stop(self, state: State, node: NodeId, now: BrokerView, cost: int) -> Iterator[Step]:
        """Steps of a broker that asks to be let go; when it may, it ends."""
        newest = self.acts.published(state[SHARED])
        reported = self.acts.world(state[SHARED]).metadata.counts(now.reported)
        late = tuple(other for other in NODES if self.acts.look(state[other]).knows != newest)
        for name, there, answer in self._commanded(("stop", node), state, "stop", node, now.life, reported, late):
            if isinstance(answer, Violation):
                yield Step(name, None, answer)
            elif self.acts.world(there[SHARED]).metadata.brokers[node].fenced:
                yield self._crash(name[:2], there, node, state[0] - cost)
            elif there[SHARED] != state[SHARED]:
                yield self._after(name, there, {}, state[0] - cost)

    def _commanded(
        self, event: tuple[Any, ...], state: State, *command: Any
    ) -> Iterator[tuple[tuple[Any, ...], State, int | Violation]]:
        """Results of a command, within the bounds; and the answers to it."""
        for number, (metadata, answer) in enumerate(self.acts.commands(state[SHARED], *command)):
            partition = self.acts.world(metadata).metadata.partition
            if partition.leader_epoch > self.bounds.leader_epochs or partition.partition_epoch > self.bounds.changes:
                continue
            shared = self.acts.moved(state[SHARED], metadata)
            there = (*state[:SHARED], shared, *state[FIRST_MESSAGE:])
            yield ((*event, "way", number) if number else event), there, answer

    def _register(self, state: State, node: NodeId) -> Iterator[Step]:
        """Steps of a process that starts and registers."""
        info = self.acts.world(state[SHARED]).metadata.brokers[node]
        life, now = int(info.broker_epoch) + 1, self.acts.look(state[node])
        last_epoch = now.entries[-1].epoch if now.entries else -1
        found = Found(now.found, last_epoch, len(now.entries))
        started = self.acts.one(state[node], node, "start", life)
        for way in ("register",) if info.fenced else ("register", "register_unfenced"):
            for name, there, answer in self._commanded((way, node), state, way, node, life, found):
                if isinstance(answer, Violation):
                    yield Step(name, None, answer)
                else:
                    yield self._after(name, there, {node: started}, state[0])

    def _propose(self, state: State, node: NodeId) -> Iterator[Step]:
        """Steps by a leader's proposal: it is judged and answered at once; or it arrives again later, or late, or
        its answer is."""
        asked = self.acts.one(state[node], node, "propose")
        proposal = Proposal(node, self.acts.look(state[node]).life, asked.out)
        there = self._changed(state, {node: asked}, state[FIRST_MESSAGE:])
        yield from self._judged(("propose", node), there, proposal)
        if state[0] & ANY:
            spent = (there[0] - NETWORK, *there[1:])
            again = self.acts.put_message(proposal._replace(heard=False))
            yield from self._judged(("propose twice", node), with_message(spent, again), proposal)
            late = self.acts.put_message(proposal)
            yield self._after(("propose late", node), spent, {}, spent[0], [*state[FIRST_MESSAGE:], late])

    def _judged(self, event: tuple[Any, ...], state: State, proposal: Proposal) -> Iterator[Step]:
        """Steps of the controller that judges a proposal; who waits for the answer has it at once, or late."""
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
            if state[0] & ANY:
                late = self.acts.put_message(proposal._replace(outcome=self.acts.answer(answer), answered=True))
                yield self._after(("held", *name), with_message(there, late), {}, state[0] - NETWORK)
