"""A network of pure cores with disks that forget: virtual time, loss, duplication, reordering, crashes."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable

from raft_node import SimNode, directory, endpoint_of

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.messages import (
    FetchRequest,
    FetchResponse,
    ReplicaKey,
    Request,
    RequestFailed,
    Response,
    ResponseReceived,
    SendRequest,
)
from strandline.controller.raft.node import Standing
from strandline.controller.raft.ready import Ready
from strandline.controller.raft.voters import VoterSet
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId

REQUEST_TIMEOUT_MS = 1000.0


class World:
    """Time, network and chance; subclasses check invariants."""

    def __init__(
        self,
        voters: Iterable[int],
        *,
        seed: int = 0,
        observers: Iterable[int] = (),
        config: RaftConfig | None = None,
        recorded_directories: bool = True,
        controllers: Iterable[int] = (),
        kraft_version: int = 0,
    ) -> None:
        """`controllers`: observers that may be made voters."""
        self.rng = random.Random(seed)
        self.config = config or RaftConfig()
        ids = list(voters)
        self.voters = VoterSet(
            ReplicaKey(NodeId(node), directory(node) if recorded_directories else None) for node in ids
        )
        self.controllers = {*ids, *controllers}
        self.kraft_version = kraft_version
        self.joining: set[int] = set()
        """Controllers that ask for a vote."""
        self.now_ms = 0.0
        self._sequence = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.nodes = {node: SimNode(self, node, node) for node in [*ids, *observers]}
        self.blocked: set[tuple[int, int]] = set()
        self.latency_ms: tuple[float, float] = (1.0, 1.0)
        self.flush_range_ms: tuple[float, float] = (2.0, 2.0)
        self.loss = 0.0
        self.duplication = 0.0
        self.chunk_bytes = 50
        self.batches_max = 5
        self.log: list[str] | None = None
        self.trace_messages = False
        self._received: dict[int, list[Callable[[bool], None]]] = {}
        """How to fail the calls that a node has received: its death breaks their connections."""
        self.sent: list[tuple[float, int, int, Request]] = []

    def standing_of(self, node: int) -> Standing:
        """What a node is beside the voter set."""
        if node not in self.controllers:
            return Standing()
        others = tuple(NodeId(other) for other in sorted(self.controllers)) if self.kraft_version else ()
        return Standing(True, endpoint_of(node), node in self.joining, others, self.kraft_version)

    # --- time --------------------------------------------------------------------------------------------------------

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._sequence, action))

    def run(self, duration_ms: float, *, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; True as soon as `until` holds."""
        end = self.now_ms + duration_ms
        while self._events and self._events[0][0] <= end:
            if until is not None and until():
                return True
            at, _, action = heapq.heappop(self._events)
            self.now_ms = max(self.now_ms, at)
            action()
        if until is not None and until():
            return True
        self.now_ms = end
        return False

    def arm(self, node: SimNode) -> None:
        assert node.core is not None
        deadline = node.core.deadline_ms()
        if deadline == math.inf or node.tick_at <= deadline:
            return
        node.tick_at = at = max(deadline, self.now_ms)
        life = node.life

        def fire() -> None:
            if node.tick_at == at:
                node.tick_at = math.inf
            if node.life == life:
                node.tick()

        self.after(at - self.now_ms, fire)

    def flush_ms(self) -> float:
        return self.rng.uniform(*self.flush_range_ms)

    # --- network -----------------------------------------------------------------------------------------------------

    def reachable(self, source: int, target: int) -> bool:
        return (source, target) not in self.blocked

    def cut(self, a: int, b: int, *, one_way: bool = False) -> None:
        self.blocked.add((a, b))
        if not one_way:
            self.blocked.add((b, a))

    def isolate(self, node: int) -> None:
        for other in self.nodes:
            if other != node:
                self.cut(node, other)

    def heal(self) -> None:
        self.blocked.clear()

    def _lost(self) -> bool:
        return self.loss > 0 and self.rng.random() < self.loss

    def send_request(self, sender: SimNode, message: SendRequest) -> None:
        self.sent.append((self.now_ms, sender.id, message.to, message.request))
        if self.trace_messages:
            self.trace(f"{sender.id} -> {message.to} {describe_request(message.request)}")
        life = sender.life
        target = self.nodes[message.to]

        def conclude(outcome: ResponseReceived | RequestFailed) -> None:
            if sender.life == life:
                sender.conclude(message.request_id, outcome)

        def fail(broken: bool) -> None:
            conclude(RequestFailed(message.request_id, broken))

        self.after(REQUEST_TIMEOUT_MS, lambda: fail(False))
        copies = 2 if self.duplication and self.rng.random() < self.duplication else 1
        for _ in range(copies):
            if self._lost() or not self.reachable(sender.id, message.to):
                continue
            self.after(
                self.rng.uniform(*self.latency_ms), lambda: self._arrive(sender, target, message, conclude, fail)
            )

    def _arrive(
        self,
        sender: SimNode,
        target: SimNode,
        message: SendRequest,
        conclude: Callable[[ResponseReceived | RequestFailed], None],
        fail: Callable[[bool], None],
    ) -> None:
        if not target.up:
            if self.reachable(target.id, sender.id):
                self.after(self.rng.uniform(*self.latency_ms), lambda: fail(True))
            return

        def reply(response: Response) -> None:
            if self.trace_messages:
                self.trace(f"{target.id} => {sender.id} {describe_response(response)}")
            if self._lost() or not self.reachable(target.id, sender.id):
                return
            outcome = ResponseReceived(message.request_id, response)
            self.after(self.rng.uniform(*self.latency_ms), lambda: conclude(outcome))

        target.receive(message.request, reply)
        self._received.setdefault(target.id, []).append(fail)

    def crash(self, node_id: int, *, keep: float | None = None, silent: bool = False) -> None:
        """Kill a node; unless `silent`, its peers notice their connections break."""
        node = self.nodes[node_id]
        node.crash(keep=keep)
        self.trace(f"{node_id} dies")
        calls = self._received.pop(node_id, [])
        if not silent:
            for fail in calls[-20:]:
                self.after(self.rng.uniform(*self.latency_ms), lambda fail=fail: fail(True))  # type: ignore[misc]

    # --- hooks -------------------------------------------------------------------------------------------------------

    def trace(self, line: str) -> None:
        if self.log is not None:
            self.log.append(f"{self.now_ms:7.1f}  {line}")

    def after_ready(self, node: SimNode, ready: Ready) -> None:
        """Called at every drain, before it is carried out."""
        assert node.core is not None
        role = f"{node.core.role.kind.value} of epoch {node.core.epoch}"
        if node.core.leader_id is not None and node.core.leading is None:
            role += f", leader {node.core.leader_id}"
        if role != node.role_seen:
            node.role_seen = role
            self.trace(f"{node.id} is {role}")

    def applied(self, node: SimNode, entry: tuple[int, int, str]) -> None:
        """Called for each committed batch handed over."""

    def leaders(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.core is not None and node.core.leading is not None]

    def established(self) -> SimNode | None:
        """The leader of the highest epoch, once it knows its high watermark."""
        leaders = sorted(self.leaders(), key=lambda node: node.core.epoch if node.core else -1)
        if leaders:
            core = leaders[-1].core
            assert core is not None
            assert core.leading is not None
            if core.leading.epoch_high_watermark is not None:
                return leaders[-1]
        return None


def describe_request(request: Request) -> str:
    name = type(request).__name__.removesuffix("Request")
    if isinstance(request, FetchRequest):
        return f"Fetch epoch {request.epoch} from {request.fetch_offset}@{request.last_fetched_epoch}"
    epoch = getattr(request, "epoch", None)
    if epoch is None:
        epoch = request.candidate_epoch  # type: ignore[union-attr]
        name = "PreVote" if request.pre_vote else name  # type: ignore[union-attr]
        return f"{name} epoch {epoch}, log {request.last}"  # type: ignore[union-attr]
    return f"{name} epoch {epoch}"


def describe_response(response: Response) -> str:
    name = type(response).__name__.removesuffix("Response")
    parts = [f"{name} answer, epoch {response.epoch}"]
    if response.error is not ErrorCode.NONE:
        parts.append(response.error.name)
    if getattr(response, "granted", False):
        parts.append("granted")
    if isinstance(response, FetchResponse):
        if response.diverging is not None:
            parts.append(f"diverging {response.diverging}")
        if response.snapshot is not None:
            parts.append(f"snapshot {response.snapshot}")
        if response.batches:
            parts.append(f"{len(response.batches)} batches")
        parts.append(f"high watermark {response.high_watermark}")
    return ", ".join(parts)
