"""The stage of the quorum's scenarios: pure cores on disks that forget, in virtual time (`run`, `until`, `elect`) or,
after `by hand`, message by message (`timeout 1`, `deliver 1->2 vote`, `drop 2->1 fetch`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    Request,
    RequestFailed,
    Response,
    ResponseReceived,
    SendRequest,
    VoteRequest,
)
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId

sys.path.insert(0, str(Path(__file__).parents[1] / "controller" / "raft"))

from raft_invariants import CheckedWorld
from raft_node import SimNode, directory, text
from raft_world import describe_request, describe_response


def named(node: str, directory_id: str) -> tuple[NodeId, UUID]:
    """A replica as commands name it."""
    return NodeId(int(node)), directory(int(directory_id))


@dataclass
class Letter:
    """A request or an answer on its way."""

    source: int
    target: int
    kind: str
    words: str
    arrive: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.source} -> {self.target} {self.words}"


def kind_of(request: Request) -> str:
    """What commands call a message and its answer."""
    if isinstance(request, VoteRequest):
        return "prevote" if request.pre_vote else "vote"
    kinds: tuple[tuple[type, str], ...] = (
        (FetchRequest, "fetch"),
        (FetchSnapshotRequest, "snapshot"),
        (BeginQuorumEpochRequest, "begin"),
        (EndQuorumEpochRequest, "end"),
    )
    return next(kind for one, kind in kinds if isinstance(request, one))


class PostedWorld(CheckedWorld):
    """A checked world whose messages wait for somebody to deliver them, and whose timers for somebody to fire them."""

    by_hand = False

    def __init__(
        self, voters: list[int], *, seed: int, observers: list[int], controllers: list[int], kraft_version: int
    ) -> None:
        super().__init__(voters, seed=seed, observers=observers, controllers=controllers, kraft_version=kraft_version)
        self.mail: list[Letter] = []

    def arm(self, node: SimNode) -> None:
        if not self.by_hand:
            super().arm(node)

    def flush_ms(self) -> float:
        return 0.0 if self.by_hand else super().flush_ms()

    def send_request(self, sender: SimNode, message: SendRequest) -> None:
        if not self.by_hand:
            super().send_request(sender, message)
            return
        life, target, kind = sender.life, self.nodes[message.to], kind_of(message.request)

        def conclude(outcome: ResponseReceived | RequestFailed) -> None:
            if sender.life == life:
                sender.conclude(message.request_id, outcome)

        def answered(response: Response) -> None:
            outcome = ResponseReceived(message.request_id, response)
            self.post(target.id, sender.id, kind, describe_response(response), lambda: conclude(outcome))

        def arrive() -> None:
            if target.up:
                target.receive(message.request, answered)
            else:
                conclude(RequestFailed(message.request_id, True))

        self.post(sender.id, target.id, kind, describe_request(message.request), arrive)

    def post(self, source: int, target: int, kind: str, words: str, arrive: Callable[[], None]) -> None:
        letter = Letter(source, target, kind, words, arrive)
        self.mail.append(letter)
        self.trace(f"posted: {letter}")

    def take(self, link: str, kind: str) -> Letter:
        """The oldest letter of that kind on that way."""
        source, target = (int(end) for end in link.split("->"))
        for place, letter in enumerate(self.mail):
            if (letter.source, letter.target, letter.kind) == (source, target, kind):
                return self.mail.pop(place)
        raise AssertionError(f"no {kind} is on its way {link}; there are: {[str(letter) for letter in self.mail]}")


class QuorumStage:
    """Carries out a scenario's commands on a checked world; every invariant is asserted on the way."""

    def __init__(self) -> None:
        self.voters: list[int] = [1, 2, 3]
        self.observers: list[int] = []
        self.controllers: list[int] = []
        self.kraft_version = 0
        self._world: PostedWorld | None = None

    @property
    def world(self) -> PostedWorld:
        if self._world is None:
            self._world = PostedWorld(
                self.voters,
                seed=1,
                observers=self.observers,
                controllers=self.controllers,
                kraft_version=self.kraft_version,
            )
            self._world.log = []
        return self._world

    def command(self, line: str) -> list[str]:
        name, *words = line.split()
        handler: Callable[..., list[str] | None] = getattr(self, f"do_{name}")
        own = handler(*words) or []
        if self._world is not None and self._world.by_hand:
            self._world.run(0)
        traced = self._world.log or [] if self._world is not None else []
        if self._world is None:
            return own
        self.world.log = []
        return traced + own

    def do_voters(self, *ids: str) -> None:
        self.voters = [int(node) for node in ids]

    def do_observers(self, *ids: str) -> None:
        self.observers = [int(node) for node in ids]

    def do_controllers(self, *ids: str) -> None:
        """Observers that may be made voters."""
        self.controllers = [int(node) for node in ids]
        self.observers += self.controllers

    def do_kraft(self, version: str) -> None:
        """The kraft.version that the cluster has from its beginning."""
        self.kraft_version = int(version)

    def do_quorum(self) -> None:
        """Start all voters and let them elect one, quietly: it is always node 2."""
        self.do_start(*map(str, self.voters))
        self.do_elect()
        self.do_run("50")
        self.world.log = []

    def do_messages(self, state: str) -> None:
        self.world.trace_messages = state == "on"

    def do_start(self, *ids: str) -> None:
        for node in ids:
            self.world.nodes[int(node)].start()

    def do_kill(self, node: str, *options: str) -> None:
        """`unsynced-kept` or (default) `unsynced-lost`; `silent`: no connection breaks."""
        self.world.crash(int(node), keep=1.0 if "unsynced-kept" in options else 0.0, silent="silent" in options)

    def do_wipe(self, node: str, directory: str) -> None:
        self.world.nodes[int(node)].wipe(int(directory))

    def do_lose(self, node: str, directory: str) -> None:
        """Its metadata directory alone is lost, and it knows that: another directory id, and no vote."""
        self.world.nodes[int(node)].wipe(int(directory), voteless=True)

    def do_remove_voter(self, leader: str, node: str, directory: str) -> list[str]:
        return self._change(leader, lambda core: core.remove_voter(*named(node, directory), self.world.now_ms))

    def do_add_voter(self, leader: str, node: str, directory: str) -> list[str]:
        return self._change(leader, lambda core: core.add_voter(*named(node, directory), self.world.now_ms))

    def _change(self, leader: str, change: Callable[[RaftCore], int | None]) -> list[str]:
        node = self.world.nodes[int(leader)]
        assert node.core is not None
        try:
            change(node.core)
        except KafkaError as error:
            code = f"{error.code.name}: " if self.kraft_version else ""
            return [f"{leader} refuses: {code}{error.message}"]
        node.pump()
        return []

    def do_run(self, duration_ms: str) -> None:
        self.world.run(float(duration_ms))

    def do_elect(self) -> None:
        """Run until a leader knows its high watermark."""
        assert self.world.run(20_000, until=lambda: self.world.established() is not None)

    def do_until(self, node: str, role: str) -> None:
        """Run until a node has a role."""

        def there() -> bool:
            core = self.world.nodes[int(node)].core
            return core is not None and core.role.kind.value == role

        assert self.world.run(20_000, until=there)

    def do_batches(self, count: str) -> None:
        """How many batches a fetch brings."""
        self.world.batches_max = int(count)

    def do_cut(self, *links: str) -> None:
        """`1-2` both ways, `1>2` one way."""
        for link in links:
            one_way = ">" in link
            a, b = link.split(">" if one_way else "-")
            self.world.cut(int(a), int(b), one_way=one_way)

    def do_isolate(self, node: str) -> None:
        self.world.isolate(int(node))

    def do_heal(self) -> None:
        self.world.heal()

    def do_append(self, node: str, *values: str) -> list[str]:
        out = []
        for value in values:
            result = self.world.nodes[int(node)].append(value)
            if result is None:
                out.append(f"{node} does not lead")
        return out

    def do_resign(self, node: str) -> None:
        target = self.world.nodes[int(node)]
        assert target.core is not None
        target.core.resign(self.world.now_ms)
        target.pump()

    def do_hold(self, node: str) -> None:
        """Its syncs do not begin until `release`."""
        self.world.nodes[int(node)].hold_flush = True

    def do_release(self, node: str) -> None:
        self.world.nodes[int(node)].release_flush()

    def do_snapshot(self, node: str) -> None:
        self.world.nodes[int(node)].take_snapshot()

    def do_show(self) -> list[str]:
        lines = []
        for node in self.world.nodes.values():
            core = node.core
            if core is None:
                lines.append(f"{node.id}: down")
                continue
            voted = core.role.voted_for
            vote = "" if voted is None else f", vote for {voted.node_id}"
            log = " ".join(f"{b.base_offset}@{b.epoch}" for b in node.written.batches)
            lines.append(
                f"{node.id}: {core.role.kind.value} of epoch {core.epoch}, leader {core.leader_id}{vote}, "
                f"log [{log}], durable to {core.log.durable_offset}, high watermark {core.high_watermark}"
            )
        return lines

    # --- message by message ---

    def do_by(self, hand: str) -> None:
        """`by hand`: from now on nothing is delivered, and no timer fires, unless a command says so."""
        assert hand == "hand"
        self.world.by_hand = True

    def do_timeout(self, node: str) -> None:
        """Time passes until a node's next deadline, and that node alone hears of it."""
        target = self.world.nodes[int(node)]
        assert target.core is not None
        self.world.now_ms = max(self.world.now_ms, target.core.deadline_ms())
        target.tick()

    def do_deliver(self, *words: str) -> None:
        """`deliver 1->2 vote`: the oldest request or answer of that kind on that way arrives. Several may be named."""
        for link, kind in zip(words[::2], words[1::2], strict=True):
            self.world.take(link, kind).arrive()
            self.world.run(0)  # syncs end at once

    def do_drop(self, link: str, kind: str) -> None:
        """It never arrives; its sender hears nothing."""
        self.world.take(link, kind)

    def do_mail(self) -> list[str]:
        """What is on the way."""
        return [str(letter) for letter in self.world.mail]

    # --- what must hold ---

    def do_expect(self, what: str, *words: str) -> None:
        """`leader 1 epoch 2`, `role 3 Prospective`, `hw 1 3`, `log 2 x y` (leader changes left out), `durable 2 3`."""
        if what == "leader":
            known = {node.core.leader_id for node in self.world.nodes.values() if node.core is not None}
            leads = self.world.nodes[int(words[0])].core
            assert leads is not None
            assert leads.leading is not None, f"{words[0]} does not lead; known: {known}"
            assert leads.epoch == int(words[2]), f"it leads epoch {leads.epoch}"
            return
        node = self.world.nodes[int(words[0])]
        assert node.core is not None, f"{words[0]} is down"
        if what == "role":
            assert node.core.role.kind.value == words[1], node.core.role.kind.value
        elif what == "epoch":
            assert node.core.epoch == int(words[1]), node.core.epoch
        elif what == "voters":
            assert [key.node_id for key in node.core.voters] == [int(word) for word in words[1:]], node.core.voters.keys
        elif what == "hw":
            assert node.core.high_watermark == int(words[1]), node.core.high_watermark
        elif what == "log":
            held = [text(batch.data) for batch in node.written.batches]
            assert [value for value in held if value != "leader-change"] == list(words[1:]), held
        else:
            raise AssertionError(f"nobody knows what to expect of {what}")
