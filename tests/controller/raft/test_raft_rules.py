"""The rules A1 to A13 one by one, by single messages to one core. Each test fails without its rule."""

from __future__ import annotations

import random
from itertools import pairwise, product
from uuid import UUID

import pytest

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import (
    Batch,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderChange,
    OffsetAndEpoch,
    ReadSnapshot,
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
from strandline.controller.raft.ready import (
    Append,
    ElectionState,
    InstallSnapshot,
    Ready,
    StoreSnapshotChunk,
    TruncateTo,
)
from strandline.controller.raft.state import LEGAL, TRANSITIONS, RoleKind
from strandline.controller.raft.voters import VoterSet
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError
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
    ) -> None:
        self.now = 0.0
        self.core = RaftCore(
            key=key(node, directory),
            cluster_id=CLUSTER,
            voters=VoterSet(key(voter) for voter in range(1, voters + 1)),
            config=RaftConfig(),
            rng=random.Random(1),
            log=log or LogSummary(),
            saved=saved,
            now_ms=0.0,
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
        **over: object,
    ) -> VoteRequest:
        fields: dict[str, object] = {
            "cluster_id": CLUSTER,
            "candidate": key(candidate),
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


# --- A1, A2: durable state -------------------------------------------------------------------------------------------


def test_a1_a_vote_is_persisted_in_the_very_ready_that_sends_it() -> None:
    """A1: durable before reply. The Ready that carries the answer carries the vote, and persist stands before send."""
    bench = Bench()
    assert bench.ask(bench.vote_request(epoch=5)) == VoteResponse(ErrorCode.NONE, 5, None, True)
    ready = next(ready for ready in bench.outputs if any(isinstance(m, Reply) for m in ready.send))
    assert ready.persist == ElectionState(5, voted_for=key(2))


def test_a1_every_change_of_epoch_vote_or_leader_is_persisted() -> None:
    """A1 along a life: new epoch, vote, leader, own candidacy, own leadership."""
    bench = Bench()
    bench.ask(bench.vote_request(epoch=3, last=(0, 0), candidate=2))
    bench.follow(2, epoch=3)
    bench.follow(3, epoch=4)
    bench.wait(2500)
    for sent in bench.sent(VoteRequest):
        bench.respond(sent, VoteResponse(ErrorCode.NONE, 4, None, True))
    states = [ready.persist for ready in bench.outputs if ready.persist is not None]
    assert states[0] == ElectionState(0)
    assert ElectionState(3, voted_for=key(2)) in states
    assert ElectionState(3, leader_id=NodeId(2)) in states
    assert ElectionState(4, leader_id=NodeId(3)) in states
    assert states[-1] == ElectionState(5, voted_for=key(1))


@pytest.mark.parametrize(
    ("saved", "role", "epoch"),
    [
        (None, RoleKind.UNATTACHED, 0),
        (ElectionState(4, leader_id=NodeId(1)), RoleKind.RESIGNED, 4),
        (ElectionState(4, voted_for=key(1)), RoleKind.CANDIDATE, 4),
        (ElectionState(4, voted_for=key(2)), RoleKind.UNATTACHED, 4),
        (ElectionState(4, leader_id=NodeId(2)), RoleKind.FOLLOWER, 4),
        (ElectionState(4), RoleKind.UNATTACHED, 4),
        (ElectionState(4, leader_id=NodeId(77)), RoleKind.UNATTACHED, 4),
        (ElectionState(1, leader_id=NodeId(1)), RoleKind.UNATTACHED, 3),
    ],
)
def test_a2_restart(saved: ElectionState | None, role: RoleKind, epoch: int) -> None:
    """A2: the role follows from the quorum-state file; one that is older than the log counts for nothing."""
    log = LogSummary(end_offset=7, epochs=((1, 0), (3, 5))) if saved else None
    bench = Bench(saved=saved, log=log)
    assert (bench.role, bench.core.epoch) == (role, epoch)


@pytest.mark.parametrize(
    "saved",
    [
        ElectionState(4, leader_id=NodeId(1)),
        ElectionState(4, voted_for=key(1)),
        ElectionState(4, voted_for=key(3)),
        ElectionState(4, leader_id=NodeId(3)),
        ElectionState(4, leader_id=NodeId(77)),
        ElectionState(4, voted_for=key(1, 99)),
    ],
)
def test_a2_no_second_vote_after_a_restart(saved: ElectionState) -> None:
    """A2: whatever a node did in an epoch (led, stood, voted, followed), it votes for no other in it."""
    bench = Bench(saved=saved)
    response = bench.ask(bench.vote_request(candidate=2, epoch=4, last=(0, 0)))
    assert isinstance(response, VoteResponse)
    assert not response.granted


def test_a2_a_restarted_leader_never_leads_its_epoch_again() -> None:
    """A2: it leads the epoch after next at the earliest, so that no (offset, epoch) is used twice."""
    bench = Bench(voters=1, saved=ElectionState(4, leader_id=NodeId(1)), log=LogSummary(end_offset=3, epochs=((4, 0),)))
    bench.wait(10)
    assert bench.core.leading is not None
    assert bench.core.epoch > 4
    appends = [action.batch for ready in bench.outputs for action in ready.log if isinstance(action, Append)]
    assert [entry.epoch for entry in appends] == [bench.core.epoch]


# --- A3, A4: votes and pre-votes -------------------------------------------------------------------------------------


def test_a3_errors_of_vote() -> None:
    """A3: stale epoch, a log too new for its epoch, a foreign cluster, the wrong voter, our own candidacy."""
    bench = Bench(saved=ElectionState(5))
    cases = [
        (bench.vote_request(epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (bench.vote_request(epoch=6, last=(3, 6)), ErrorCode.INVALID_REQUEST),
        (bench.vote_request(epoch=6, last=(3, 7), pre_vote=True), ErrorCode.INVALID_REQUEST),
        (bench.vote_request(epoch=6, candidate=1), ErrorCode.INVALID_REQUEST),
        (bench.vote_request(epoch=6, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (bench.vote_request(epoch=6, voter=key(3)), ErrorCode.INVALID_VOTER_KEY),
    ]
    for request, error in cases:
        response = bench.ask(request)
        assert isinstance(response, VoteResponse)
        assert (response.error, response.granted) == (error, False)
    assert bench.core.epoch == 5


@pytest.mark.parametrize(
    ("last", "granted"), [((9, 2), False), ((5, 3), True), ((4, 3), False), ((1, 4), True), ((100, 2), False)]
)
def test_a3_only_a_candidate_with_a_log_not_behind_ours(last: tuple[int, int], granted: bool) -> None:
    """A3: (last epoch, end offset) >= own, by epoch first."""
    bench = Bench(saved=ElectionState(4), log=LogSummary(end_offset=5, epochs=((1, 0), (3, 2))))
    for pre_vote in (True, False):
        response = bench.ask(bench.vote_request(epoch=6, last=last, pre_vote=pre_vote))
        assert isinstance(response, VoteResponse)
        assert response.granted is granted


def test_a3_one_vote_an_epoch_and_again_to_the_same_candidate() -> None:
    """A3: no vote for another (id, directory id); the same candidate may ask again."""
    bench = Bench()
    answers = [bench.ask(bench.vote_request(candidate=candidate, epoch=1)) for candidate in (2, 3, 2)]
    assert [answer.granted for answer in answers if isinstance(answer, VoteResponse)] == [True, False, True]


def test_a3_a_higher_epoch_keeps_the_election_timer_and_a_vote_resets_it() -> None:
    """A3: else candidates with poor logs could put off everyone's election for ever."""
    bench = Bench(log=LogSummary(end_offset=5, epochs=((1, 0),)))
    before = bench.core.deadline_ms()
    bench.now = 10.0
    bench.ask(bench.vote_request(epoch=7, last=(0, 0)))
    assert (bench.core.epoch, bench.core.deadline_ms()) == (7, before)
    bench.ask(bench.vote_request(epoch=7, last=(9, 2)))
    assert bench.core.deadline_ms() >= 10.0 + bench.core.config.election_timeout_ms


def test_a3_an_observer_votes_when_asked_by_its_very_key() -> None:
    """A3: a non-voter's voter set may be stale; its vote is durable like any other."""
    bench = Bench(node=9)
    assert bench.role is RoleKind.OBSERVER
    first = bench.ask(bench.vote_request(candidate=2, epoch=3))
    second = bench.ask(bench.vote_request(candidate=3, epoch=3))
    assert isinstance(first, VoteResponse)
    assert isinstance(second, VoteResponse)
    assert (first.granted, second.granted) == (True, False)
    assert bench.outputs[-2].persist == ElectionState(3, voted_for=key(2))


def test_a4_a_pre_vote_changes_no_state() -> None:
    """A4, KIP-996: granted, and yet nothing is persisted, and others may still be granted."""
    bench = Bench(saved=ElectionState(5))
    deadline = bench.core.deadline_ms()
    for candidate in (2, 3):
        response = bench.ask(bench.vote_request(candidate=candidate, epoch=5, pre_vote=True))
        assert response == VoteResponse(ErrorCode.NONE, 5, None, True)
    assert all(ready.persist is None for ready in bench.outputs)
    assert (bench.core.epoch, bench.core.deadline_ms(), bench.role) == (5, deadline, RoleKind.UNATTACHED)


def test_a4_a_follower_refuses_only_while_its_own_leader_serves_it() -> None:
    """A4: never fetched -> grants (else two roles livelock); fetched -> refuses; connection broken -> grants."""
    bench = Bench()
    bench.follow(2, epoch=1)

    def granted() -> bool:
        response = bench.ask(bench.vote_request(candidate=3, epoch=1, pre_vote=True, last=(0, 0)))
        assert isinstance(response, VoteResponse)
        return response.granted

    assert granted()
    bench.fetched()
    assert not granted()
    bench.fail(bench.sent(FetchRequest)[-1], broken=True)
    assert granted()


def test_a4_a_follower_never_gives_a_real_vote_in_its_leaders_epoch() -> None:
    """A3: no known leader in the epoch."""
    bench = Bench()
    bench.follow(2, epoch=1)
    response = bench.ask(bench.vote_request(candidate=3, epoch=1))
    assert response == VoteResponse(ErrorCode.NONE, 1, NodeId(2), False)


def test_a3_nor_does_a_prospective_that_knows_the_epochs_leader() -> None:
    """A3: it forgets neither the leader nor its own vote of the epoch it is still in."""
    bench = Bench()
    bench.follow(2, epoch=1)
    bench.wait(2500)
    assert bench.role is RoleKind.PROSPECTIVE
    response = bench.ask(bench.vote_request(candidate=3, epoch=1))
    assert response == VoteResponse(ErrorCode.NONE, 1, NodeId(2), False)
    voted = Bench()
    voted.ask(voted.vote_request(candidate=2, epoch=1))
    voted.wait(2500)
    assert voted.role is RoleKind.PROSPECTIVE
    response = voted.ask(voted.vote_request(candidate=3, epoch=1))
    assert response == VoteResponse(ErrorCode.NONE, 1, None, False)


def test_a4_no_epoch_is_opened_without_a_majority_of_pre_votes() -> None:
    """A4, D-28: a node that hears nobody stays in its epoch for as long as that lasts."""
    bench = Bench(voters=3)
    for _ in range(20):
        bench.wait(500)
        for sent in bench.sent(VoteRequest):
            bench.fail(sent, broken=False)
    assert bench.core.epoch == 0


# --- A5: check-quorum ------------------------------------------------------------------------------------------------


def test_a5_a_leader_without_fetches_of_a_majority_resigns() -> None:
    """A5, D-27 (KAFKA-15489): after 1.5 fetch timeouts; fetches of one of the others of three put it off."""
    bench = Bench()
    bench.lead()
    bench.wait(2900)
    assert bench.role is RoleKind.LEADER
    bench.fetch(2, 1)
    bench.wait(2900)
    assert bench.role is RoleKind.LEADER
    bench.fetch(9, 1)  # an observer does not count
    bench.wait(200)
    assert bench.role is RoleKind.RESIGNED


def test_a5_a_single_voter_is_exempt() -> None:
    """A5: it is its own majority."""
    bench = Bench(voters=1)
    bench.wait(1)
    bench.wait(100_000)
    assert bench.role is RoleKind.LEADER


def test_a5_of_five_two_others_must_fetch() -> None:
    """A5: a majority with the leader itself counted."""
    bench = Bench(voters=5)
    bench.lead()
    for _ in range(4):
        bench.wait(1000)
        if bench.role is RoleKind.LEADER:
            bench.fetch(2, 1)
    assert bench.role is RoleKind.RESIGNED


# --- A6, A7, A9: the high watermark ----------------------------------------------------------------------------------


def test_a6_the_epoch_opens_with_leader_change() -> None:
    """A6: the first append of an epoch, in Kafka's terms with voters and granting voters."""
    bench = Bench()
    bench.lead()
    (first,) = [action.batch for ready in bench.outputs for action in ready.log if isinstance(action, Append)]
    assert isinstance(first.data, LeaderChange)
    assert first.data.leader_id == 1
    assert first.data.voters == (key(1), key(2), key(3))
    assert len(first.data.granting_voters) >= 2


def test_a6_nothing_of_an_older_epoch_is_committed_by_count() -> None:
    """A6, D-22: the majority's offset must lie beyond the epoch's start; until then the high watermark is unknown."""
    bench = Bench(saved=ElectionState(1), log=LogSummary(end_offset=5, epochs=((1, 0),)))
    bench.lead()
    assert bench.core.leading is not None
    for node, offset in ((2, 5), (3, 5)):
        bench.fetch(node, offset)
    assert bench.core.leading.epoch_high_watermark is None
    assert bench.core.high_watermark == 0
    bench.fetch(2, 6)
    assert bench.core.leading.epoch_high_watermark == 6


def test_a6_the_high_watermark_does_not_go_back() -> None:
    """A6: a follower that lost its tail fetches from further back."""
    bench = Bench()
    bench.lead()
    bench.append(5)
    bench.flush()
    bench.fetch(2, 6)
    assert bench.core.leading is not None
    assert bench.core.high_watermark == 6
    for lost_tail in (3, 1):
        bench.fetch(2, lost_tail)
        assert (bench.core.high_watermark, bench.core.leading.epoch_high_watermark) == (6, 6)


def test_a7_only_a_valid_fetch_updates_replica_state() -> None:
    """A7: a diverging fetcher's offset says nothing about what it holds of this log."""
    bench = Bench(saved=ElectionState(3), log=LogSummary(end_offset=4, epochs=((1, 0), (3, 2))))
    bench.lead()
    assert bench.core.leading is not None
    response = bench.fetch(2, 5, last_epoch=2)
    assert isinstance(response, FetchResponse)
    assert response.diverging == OffsetAndEpoch(2, 1)
    assert bench.core.leading.voters[NodeId(2)].end_offset == -1
    assert bench.core.leading.epoch_high_watermark is None


def test_a7_errors_of_fetch() -> None:
    """A7: older epoch fenced, newer unknown, no leader here, a foreign cluster, the leader's own id."""
    bench = Bench()
    not_leading = bench.fetch(2, 0, last_epoch=0)
    assert isinstance(not_leading, FetchResponse)
    assert not_leading.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.lead()
    for over, error in (
        ({"epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"replica": key(1)}, ErrorCode.INVALID_REQUEST),
    ):
        response = bench.fetch(2, 0, last_epoch=0, **over)  # type: ignore[arg-type]
        assert isinstance(response, FetchResponse)
        assert response.error is error
        assert response.leader_id == 1


def test_a7_a_parked_fetch_returns_its_original_answer() -> None:
    """A7, KAFKA-15100: when the wait ends without news, what it was worth when it came; not a new judgement."""
    bench = Bench()
    bench.lead()
    assert bench.fetch(2, 1) is not None  # it brings the high watermark
    assert bench.fetch(2, 1, high_watermark=1) is None
    token = bench.tokens
    bench.wait(499)
    assert bench.answer_to(token) is None
    bench.wait(2)
    response = bench.answer_to(token)
    assert response == FetchResponse(ErrorCode.NONE, bench.core.epoch, NodeId(1), 1, 0)


def test_a7_one_parked_fetch_a_replica() -> None:
    """A replica that fetches again has given the first one up: that is answered, and not kept."""
    bench = Bench()
    bench.lead()
    bench.fetch(2, 1)
    assert bench.fetch(2, 1, high_watermark=1) is None
    first = bench.tokens
    assert bench.fetch(2, 1, high_watermark=1) is None
    assert bench.answer_to(first) is not None
    bench.append()
    assert bench.answer_to(bench.tokens) is not None


def test_a7_parked_fetches_learn_at_once_that_the_leader_is_gone() -> None:
    """They are answered with NOT_LEADER_OR_FOLLOWER by the role that follows."""
    bench = Bench()
    bench.lead()
    bench.fetch(9, 1)
    token = bench.tokens
    bench.follow(3, epoch=bench.core.epoch + 1)
    response = bench.answer_to(token)
    assert isinstance(response, FetchResponse)
    assert (response.error, response.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, NodeId(3))


def test_a9_the_leaders_own_end_counts_only_when_flushed() -> None:
    """A9: even where it is the only voter."""
    for voters in (1, 3):
        bench = Bench(voters=voters)
        if voters == 1:
            bench.wait(1)
            bench.flush()
        else:
            bench.lead()
        bench.append()
        bench.fetch(2, 2)
        assert bench.core.high_watermark < 2, f"{voters} voters"
        bench.flush()
        assert bench.core.high_watermark == 2, f"{voters} voters"


def test_a9_a_flush_that_began_before_an_append_does_not_cover_it() -> None:
    """A9 and rule E: a sync covers what was written before it began."""
    bench = Bench(voters=1)
    bench.wait(1)
    bench.append()
    before = bench.core.log.end_offset
    bench.append()
    bench.core.flushed(before, bench.now)
    bench.drain()
    assert bench.core.high_watermark == before


# --- A8: the follower ------------------------------------------------------------------------------------------------


def test_a8_a_voter_flushes_before_it_fetches_again() -> None:
    """A8, D-23, D-30: the next fetch acknowledges what the last one brought."""
    bench = Bench()
    bench.follow(2)
    assert len(bench.sent(FetchRequest)) == 1
    bench.fetched(batch(0, 1))
    assert bench.outputs[-1].flush
    assert len(bench.sent(FetchRequest)) == 1
    bench.flush()
    fetches = bench.sent(FetchRequest)
    assert len(fetches) == 2
    assert isinstance(fetches[-1].request, FetchRequest)
    assert fetches[-1].request.fetch_offset == 1


def test_a8_truncation_to_the_smaller_end() -> None:
    """A8: min(own end of that epoch, the leader's); iterate where the epoch is not known here (D-2)."""
    bench = Bench(saved=ElectionState(5), log=LogSummary(end_offset=10, epochs=((1, 0), (3, 4), (5, 8))))
    bench.follow(2, epoch=6)
    bench.fetched(diverging=OffsetAndEpoch(7, 4))
    assert bench.core.log.end == OffsetAndEpoch(8, 3)
    bench.fetched(diverging=OffsetAndEpoch(6, 3))
    assert bench.core.log.end == OffsetAndEpoch(6, 3)
    truncations = [action for ready in bench.outputs for action in ready.log if isinstance(action, TruncateTo)]
    assert truncations == [TruncateTo(8), TruncateTo(6)]


def test_a8_never_truncates_below_the_high_watermark() -> None:
    """A8, KAFKA-12460: the node stops instead."""
    bench = Bench()
    bench.follow(2)
    bench.fetched(batch(0, 1, 5), high_watermark=4)
    bench.flush()
    with pytest.raises(FatalError, match="below the high watermark 4"):
        bench.fetched(diverging=OffsetAndEpoch(3, 1))


def test_a8_high_watermark_is_the_smaller_of_own_end_and_the_leaders() -> None:
    """A8: a lagging follower has not got all that is committed."""
    bench = Bench()
    bench.follow(2)
    bench.fetched(batch(0, 1, 2), high_watermark=50)
    assert bench.core.high_watermark == 2


def test_a8_an_answer_to_another_question_is_ignored() -> None:
    """D-7 in the quorum: a late answer, of an older leader or offset, changes nothing."""
    bench = Bench()
    bench.follow(2, epoch=1)
    (old,) = bench.sent(FetchRequest)
    bench.follow(3, epoch=2)
    bench.respond(old, FetchResponse(ErrorCode.NONE, 1, NodeId(2), 5, 0, batches=(batch(0, 1, 5),)))
    assert (bench.core.log.end_offset, bench.core.high_watermark) == (0, 0)


@pytest.mark.parametrize("bad", [batch(1, 1), batch(0, 9), Batch(0, 0, 1, b"")])
def test_a8_records_that_do_not_fit_are_refused(bad: Batch) -> None:
    """A gap, an epoch that the leader cannot have written, an empty batch: nothing is appended, and it asks again."""
    bench = Bench()
    bench.follow(2)
    bench.fetched(bad)
    assert bench.core.log.end_offset == 0
    bench.wait(300)
    assert len(bench.sent(FetchRequest)) == 2


# --- A10: snapshots --------------------------------------------------------------------------------------------------


def snapshot_log() -> LogSummary:
    return LogSummary(start=OffsetAndEpoch(10, 2), end_offset=12, epochs=((2, 10),), snapshot=OffsetAndEpoch(10, 2))


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (9, 2), (10, 1), (11, 1)])
def test_a10_what_the_log_cannot_serve_or_judge_is_a_snapshot(offset: int, epoch: int) -> None:
    """A10, KIP-630: below the log's start, or of an epoch before it."""
    bench = Bench(saved=ElectionState(2), log=snapshot_log())
    bench.lead()
    response = bench.fetch(2, offset, last_epoch=epoch)
    assert isinstance(response, FetchResponse)
    assert response.snapshot == OffsetAndEpoch(10, 2)


def test_a10_a_snapshot_fetch_counts_for_check_quorum_not_for_the_high_watermark() -> None:
    """A10."""
    bench = Bench(saved=ElectionState(2), log=snapshot_log())
    bench.lead()
    assert bench.core.leading is not None
    for _ in range(5):
        bench.wait(2000)
        request = FetchSnapshotRequest(CLUSTER, key(2), bench.core.epoch, OffsetAndEpoch(10, 2), 3, 100)
        assert bench.ask(request) is not None
    reply = bench.outputs[-1].send[-1]
    assert isinstance(reply, Reply)
    assert reply.read == ReadSnapshot(OffsetAndEpoch(10, 2), 3, 100)
    assert bench.role is RoleKind.LEADER
    assert bench.core.leading.epoch_high_watermark is None


def pointed_to_snapshot() -> Bench:
    bench = Bench()
    bench.follow(2)
    bench.fetched(snapshot=OffsetAndEpoch(10, 1))
    return bench


def chunk(bench: Bench, position: int, data: bytes, *, size: int = 6, error: ErrorCode = ErrorCode.NONE) -> None:
    sent = bench.sent(FetchSnapshotRequest)[-1]
    response = FetchSnapshotResponse(error, 1, NodeId(2), OffsetAndEpoch(10, 1), size, position, data)
    bench.respond(sent, response)


def test_a10_a_snapshot_is_fetched_in_pieces_and_installed_whole() -> None:
    """A10: positioned; installed only when complete; the log then starts at its end, all of it committed."""
    bench = pointed_to_snapshot()
    chunk(bench, 0, b"abc")
    assert bench.core.log.end_offset == 0
    request = bench.sent(FetchSnapshotRequest)[-1].request
    assert isinstance(request, FetchSnapshotRequest)
    assert request.position == 3
    chunk(bench, 3, b"def")
    actions = [action for ready in bench.outputs for action in ready.log]
    assert actions == [
        StoreSnapshotChunk(OffsetAndEpoch(10, 1), 0, b"abc"),
        StoreSnapshotChunk(OffsetAndEpoch(10, 1), 3, b"def"),
        InstallSnapshot(OffsetAndEpoch(10, 1)),
    ]
    fetches = len(bench.sent(FetchRequest))
    bench.core.snapshot_installed(OffsetAndEpoch(10, 1), bench.now)
    assert len(bench.sent(FetchRequest)) == fetches + 1
    assert (bench.core.log.end, bench.core.high_watermark) == (OffsetAndEpoch(10, 1), 10)


def test_a10_a_snapshot_fetch_resumes_where_it_broke() -> None:
    """A10: a lost answer costs one piece, not the whole."""
    bench = pointed_to_snapshot()
    chunk(bench, 0, b"abc")
    bench.fail(bench.sent(FetchSnapshotRequest)[-1], broken=False)
    bench.wait(300)
    request = bench.sent(FetchSnapshotRequest)[-1].request
    assert isinstance(request, FetchSnapshotRequest)
    assert request.position == 3


def test_a10_a_snapshot_that_is_gone_sends_the_follower_back_to_fetch() -> None:
    """A10: SNAPSHOT_NOT_FOUND."""
    bench = pointed_to_snapshot()
    chunk(bench, 0, b"", error=ErrorCode.SNAPSHOT_NOT_FOUND)
    fetches = len(bench.sent(FetchRequest))
    bench.wait(300)
    assert len(bench.sent(FetchRequest)) == fetches + 1


def test_a10_a_damaged_snapshot_is_fetched_anew() -> None:
    """A10, D-31: nothing of it is used; the log stays as it was."""
    bench = pointed_to_snapshot()
    chunk(bench, 0, b"abcdef")
    bench.core.snapshot_refused(bench.now)
    fetches = len(bench.sent(FetchRequest))
    bench.wait(300)
    assert bench.core.log.end_offset == 0
    assert len(bench.sent(FetchRequest)) == fetches + 1


def test_a10_only_committed_data_goes_into_a_snapshot() -> None:
    """A10."""
    bench = Bench(voters=1)
    bench.wait(1)
    bench.append()
    with pytest.raises(AssertionError, match="committed"):
        bench.core.snapshot_taken(OffsetAndEpoch(2, 1), OffsetAndEpoch(2, 1))


# --- A11, A12: who counts --------------------------------------------------------------------------------------------


def test_a11_a_wiped_voter_observes() -> None:
    """A11, D-26 (KAFKA-12181): another directory id is another replica; it never asks for an election."""
    bench = Bench(node=1, directory=99)
    assert bench.role is RoleKind.OBSERVER
    bench.wait(20_000)
    assert bench.sent(VoteRequest) == []


def test_a11_a_wiped_voter_does_not_vote_in_its_old_name() -> None:
    """A11, D-26: the candidate asks for the recorded directory."""
    bench = Bench(node=1, directory=99)
    response = bench.ask(bench.vote_request(candidate=2, epoch=1, voter=key(1)))
    assert response == VoteResponse(ErrorCode.INVALID_VOTER_KEY, 0, None, False)


def test_a11_a_wiped_voter_is_not_elected_and_its_fetches_do_not_count() -> None:
    """A11, D-26: as candidate refused, as fetcher an observer."""
    bench = Bench(node=2)
    response = bench.ask(VoteRequest(CLUSTER, key(1, 99), 1, key(2), OffsetAndEpoch(0, 0), False))
    assert isinstance(response, VoteResponse)
    assert (response.error, response.granted) == (ErrorCode.INVALID_VOTER_KEY, False)
    bench.lead()
    bench.append()
    bench.flush()
    bench.fetch(1, 2, replica=key(1, 99))
    assert bench.core.high_watermark == 0
    bench.fetch(1, 2)
    assert bench.core.high_watermark == 2


def test_a12_observers_count_for_nothing() -> None:
    """A12: neither for the high watermark nor for check-quorum (see A5)."""
    bench = Bench()
    bench.lead()
    bench.append()
    bench.flush()
    for node in (7, 8, 9):
        bench.fetch(node, 2)
    assert bench.core.high_watermark == 0
    assert [seen.key.node_id for seen in bench.core.leading.described_observers(bench.now)] == [7, 8, 9]  # type: ignore[union-attr]
    bench.wait(100)
    bench.now += 400_000
    assert bench.core.leading is not None
    assert bench.core.leading.described_observers(bench.now) == []


def test_a12_an_observer_finds_the_leader_by_fetching_from_any_voter() -> None:
    """A12: each failure sends it to another voter; a voter's answer names the leader."""
    bench = Bench(node=9)
    asked: list[int] = []
    for _ in range(30):
        sent = bench.sent(FetchRequest)[-1]
        asked.append(sent.to)
        bench.fail(sent, broken=True)
        bench.wait(300)
    assert set(asked) == {1, 2, 3}
    assert all(a != b for a, b in pairwise(asked))
    sent = bench.sent(FetchRequest)[-1]
    bench.respond(sent, FetchResponse(ErrorCode.FENCED_LEADER_EPOCH, 4, NodeId(2)))
    assert (bench.core.epoch, bench.core.leader_id) == (4, 2)
    assert bench.sent(FetchRequest)[-1].to == 2


# --- leaving, failing ------------------------------------------------------------------------------------------------


def test_a_leader_whose_write_failed_steps_down() -> None:
    """D-24 (canonical/raft#320): it must not write another record at an (offset, epoch) that others may hold."""
    bench = Bench()
    bench.lead()
    epoch, end = bench.core.epoch, bench.core.log.end_offset
    bench.append()
    bench.core.append_failed(end, bench.now)
    bench.drain()
    assert bench.role is RoleKind.RESIGNED
    assert bench.core.log.end_offset == end
    assert [sent.to for sent in bench.sent(EndQuorumEpochRequest)] == [2, 3]
    assert bench.core.epoch == epoch


def test_a_resigned_leader_names_the_furthest_first_and_that_one_stands_at_once() -> None:
    """EndQuorumEpoch: preferred candidates in the order of their logs."""
    bench = Bench(node=1)
    bench.lead()
    bench.append()
    bench.fetch(2, 1)
    bench.fetch(3, 2)
    bench.core.resign(bench.now)
    request = bench.sent(EndQuorumEpochRequest)[0].request
    assert isinstance(request, EndQuorumEpochRequest)
    assert [candidate.node_id for candidate in request.preferred_candidates] == [3, 2]

    delays = {}
    for node in (2, 3):
        follower = Bench(node=node)
        follower.follow(1, epoch=request.epoch)
        follower.ask(request)
        delays[node] = follower.core.deadline_ms()
    assert delays[3] == 0
    assert 0 < delays[2] < 500


def test_suspicion_a_broken_connection_shortens_the_wait_and_a_good_fetch_ends_it() -> None:
    """A killed leader must not cost the fetch timeout; a reconnect must not cost an election."""
    bench = Bench(node=3)
    bench.follow(2)
    bench.fetched()
    bench.fail(bench.sent(FetchRequest)[-1], broken=True)
    bench.wait(30)
    bench.fetched()
    bench.wait(1000)
    assert bench.role is RoleKind.FOLLOWER
    bench.fail(bench.sent(FetchRequest)[-1], broken=True)
    bench.wait(150)
    assert bench.role is RoleKind.PROSPECTIVE


def test_suspicion_a_slow_answer_is_none() -> None:
    """Only a broken connection is: a leader that is merely busy keeps its two seconds."""
    bench = Bench(node=3)
    bench.follow(2)
    bench.fail(bench.sent(FetchRequest)[-1], broken=False)
    bench.wait(1500)
    assert bench.role is RoleKind.FOLLOWER
    bench.wait(1000)
    assert bench.role is RoleKind.PROSPECTIVE


def test_suspicion_from_elsewhere_probes_at_once() -> None:
    """`report_unreachable`: a new fetch goes out although one is parked, and its success ends the suspicion."""
    bench = Bench(node=3)
    bench.follow(2)
    bench.fetched()
    before = len(bench.sent(FetchRequest))
    bench.core.suspect(NodeId(2), bench.now)
    assert len(bench.sent(FetchRequest)) == before + 1
    bench.fetched()
    bench.wait(1900)
    assert bench.role is RoleKind.FOLLOWER


def test_two_leaders_in_an_epoch_stop_the_node() -> None:
    """SingleLeader: a broken invariant is fatal, not a reason to choose."""
    bench = Bench()
    bench.follow(2, epoch=1)
    with pytest.raises(FatalError, match="two leaders in epoch 1"):
        bench.ask(BeginQuorumEpochRequest(CLUSTER, NodeId(3), 1, key(1)))


def test_begin_and_end_of_an_epoch_are_judged() -> None:
    """Errors of BeginQuorumEpoch and EndQuorumEpoch."""
    bench = Bench(saved=ElectionState(5))
    begin = [
        (BeginQuorumEpochRequest("x", NodeId(2), 6, key(1)), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (BeginQuorumEpochRequest(CLUSTER, NodeId(2), 4, key(1)), ErrorCode.FENCED_LEADER_EPOCH),
        (BeginQuorumEpochRequest(CLUSTER, NodeId(2), 6, key(3)), ErrorCode.INVALID_VOTER_KEY),
        (BeginQuorumEpochRequest(CLUSTER, NodeId(1), 6, key(1)), ErrorCode.INVALID_REQUEST),
        (BeginQuorumEpochRequest(CLUSTER, NodeId(9), 6, key(1)), ErrorCode.INVALID_REQUEST),
    ]
    for request, error in begin:
        response = bench.ask(request)
        assert isinstance(response, BeginQuorumEpochResponse)
        assert response.error is error
    for end, error in (
        (EndQuorumEpochRequest("x", NodeId(2), 6, ()), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (EndQuorumEpochRequest(CLUSTER, NodeId(2), 4, ()), ErrorCode.FENCED_LEADER_EPOCH),
        (EndQuorumEpochRequest(CLUSTER, NodeId(1), 6, ()), ErrorCode.INVALID_REQUEST),
    ):
        response_end = bench.ask(end)
        assert response_end is not None
        assert response_end.error is error
    assert (bench.core.epoch, bench.role) == (5, RoleKind.UNATTACHED)


# --- the table of transitions ----------------------------------------------------------------------------------------


def test_the_table_is_the_only_way() -> None:
    """Every move that is not in the table raises, and changes nothing."""
    roles: dict[RoleKind, Bench] = {}
    for kind in RoleKind:
        bench = Bench(node=9 if kind is RoleKind.OBSERVER else 1)
        if kind is RoleKind.FOLLOWER:
            bench.follow(2)
        elif kind is RoleKind.PROSPECTIVE:
            bench.wait(400)
        elif kind in (RoleKind.LEADER, RoleKind.RESIGNED):
            bench.lead()
            if kind is RoleKind.RESIGNED:
                bench.core.resign(bench.now)
        elif kind is RoleKind.CANDIDATE:
            bench = Bench(saved=ElectionState(1, voted_for=key(1)))
        assert bench.role is kind
        roles[kind] = bench
    for source, target in product(RoleKind, RoleKind):
        if (source, target) not in LEGAL:
            bench = roles[source]
            before = bench.core.role
            with pytest.raises(FatalError, match="may not go"):
                bench.core._move(roles[target].core.role, bench.now)
            assert bench.core.role is before


def test_the_table_says_each_move_once_with_its_trigger() -> None:
    """One table, a trigger each; only Resigned is in memory alone (A1)."""
    assert len(LEGAL) == len(TRANSITIONS)
    assert all(move.trigger for move in TRANSITIONS)
    assert {move.target for move in TRANSITIONS if not move.durable} == {RoleKind.RESIGNED}
