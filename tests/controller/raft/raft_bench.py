"""One core on a bench: single messages in, what it decides out. The rules' tests stand on it."""

from __future__ import annotations

import random
from uuid import UUID

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import (
    Batch,
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    OffsetAndEpoch,
    ReplicaKey,
    Reply,
    Request,
    RequestFailed,
    RequestReceived,
    Response,
    ResponseReceived,
    SendRequest,
    VoteRequest,
    VoteResponse,
)
from strandline.controller.raft.node import Standing
from strandline.controller.raft.ready import ElectionState, Ready
from strandline.controller.raft.transitions import RoleKind
from strandline.controller.raft.voters import VoterSet
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId

CLUSTER = "c"


def key(node: int, directory: int | None = None) -> ReplicaKey:
    return ReplicaKey(NodeId(node), UUID(int=directory or node))


class Bench:
    """One core, and what comes out of it."""

    def __init__(
        self,
        *,
        node: int = 1,
        voters: int = 3,
        directory: int | None = None,
        saved: ElectionState | None = None,
        log: LogSummary | None = None,
        voteless: bool = False,
        recorded: bool = True,
        standing: Standing | None = None,
    ) -> None:
        """`recorded`: the voter set names directories; else any directory of a node is that voter."""
        self.now = 0.0
        self.core = RaftCore(
            key=key(node, directory),
            cluster_id=CLUSTER,
            voters=VoterSet(
                key(voter) if recorded else ReplicaKey(NodeId(voter), None) for voter in range(1, voters + 1)
            ),
            config=RaftConfig(),
            rng=random.Random(1),
            log=log or LogSummary(),
            saved=saved,
            now_ms=0.0,
            voteless=voteless,
            standing=standing,
        )
        self.tokens = 0
        self.outputs: list[Ready] = []
        self.drain()

    def drain(self) -> list[Ready]:
        """All outputs since the last drain, in order."""
        new = []
        while not (ready := self.core.ready()).empty:
            new.append(ready)
        self.outputs += new
        return new

    def ask(self, request: Request) -> Response | None:
        """A peer's request; the answer if there is one at once."""
        self.tokens += 1
        self.core.step(RequestReceived(self.tokens, request), self.now)
        return self.answer_to(self.tokens)

    def answer_to(self, token: int) -> Response | None:
        self.drain()
        for ready in self.outputs:
            for message in ready.send:
                if isinstance(message, Reply) and message.token == token:
                    return message.response
        return None

    def sent(self, kind: type[Request]) -> list[SendRequest]:
        """Requests of a kind sent so far."""
        self.drain()
        return [
            message
            for ready in self.outputs
            for message in ready.send
            if isinstance(message, SendRequest) and isinstance(message.request, kind)
        ]

    def respond(self, sent: SendRequest, response: Response) -> None:
        self.core.step(ResponseReceived(sent.request_id, response), self.now)
        self.drain()

    def fail(self, sent: SendRequest, *, broken: bool) -> None:
        self.core.step(RequestFailed(sent.request_id, broken), self.now)
        self.drain()

    def wait(self, duration_ms: float) -> None:
        """Time passes, ticks at the deadlines."""
        end = self.now + duration_ms
        while self.core.deadline_ms() <= end:
            self.now = max(self.now, self.core.deadline_ms())
            self.core.tick(self.now)
            self.drain()
        self.now = end

    @property
    def role(self) -> RoleKind:
        return self.core.role.kind

    def flush(self) -> None:
        self.core.flushed(self.core.log.end_offset, self.now)
        self.drain()

    # --- ways to a state ---------------------------------------------------------------------------------------------

    def vote_request(
        self,
        *,
        candidate: int = 2,
        epoch: int = 1,
        last: tuple[int, int] = (0, 0),
        pre_vote: bool = False,
        candidate_key: ReplicaKey | None = None,
        **over: object,
    ) -> VoteRequest:
        fields: dict[str, object] = {
            "cluster_id": CLUSTER,
            "candidate": candidate_key or key(candidate),
            "candidate_epoch": epoch,
            "voter": self.core.key,
            "last": OffsetAndEpoch(*last),
            "pre_vote": pre_vote,
        }
        return VoteRequest(**(fields | over))  # type: ignore[arg-type]

    def follow(self, leader: int = 2, epoch: int = 1) -> None:
        self.ask(BeginQuorumEpochRequest(CLUSTER, NodeId(leader), epoch, self.core.key))
        assert self.role in (RoleKind.FOLLOWER, RoleKind.OBSERVER)

    def fetched(self, *batches: Batch, high_watermark: int = -1, **verdict: object) -> None:
        """The leader answers the fetch in flight."""
        sent = self.sent(FetchRequest)[-1]
        leader = self.core.leader_id
        response = FetchResponse(
            ErrorCode.NONE,
            self.core.epoch,
            leader,
            high_watermark,
            0,
            batches=batches,
            **verdict,  # type: ignore[arg-type]
        )
        self.respond(sent, response)

    def lead(self) -> None:
        """Win an election of all voters."""
        self.wait(2500)
        for pre_vote in (True, False):
            for sent in self.sent(VoteRequest):
                request = sent.request
                assert isinstance(request, VoteRequest)
                if request.pre_vote is pre_vote and self.core.epoch == request.candidate_epoch:
                    self.respond(sent, VoteResponse(ErrorCode.NONE, request.candidate_epoch, None, True))
        assert self.core.leading is not None
        self.flush()

    def fetch(self, node: int, offset: int, last_epoch: int | None = None, **over: object) -> Response | None:
        """A replica fetches from this leader."""
        fields: dict[str, object] = {
            "cluster_id": CLUSTER,
            "replica": key(node),
            "epoch": self.core.epoch,
            "fetch_offset": offset,
            "last_fetched_epoch": self.core.log.epoch_before(offset) if last_epoch is None else last_epoch,
            "high_watermark": 0,
            "max_wait_ms": 500,
            "max_bytes": 1000,
        }
        return self.ask(FetchRequest(**(fields | over)))  # type: ignore[arg-type]

    def append(self, count: int = 1) -> None:
        base = self.core.log.end_offset
        self.core.append(Batch(base, base + count, self.core.epoch, b"x"), self.now)
        self.drain()


def batch(base: int, epoch: int, count: int = 1) -> Batch:
    return Batch(base, base + count, epoch, b"y")
