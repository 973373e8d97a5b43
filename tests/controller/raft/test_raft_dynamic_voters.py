"""Rules A36 to A38 (KIP-853, KIP-1186): voters that come and go, by single messages to one core."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from raft_bench import CLUSTER, Bench, key

from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import (
    Batch,
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    OffsetAndEpoch,
    RequestFailed,
    VoteRequest,
    VoteResponse,
    VotersChange,
)
from strandline.controller.raft.node import Standing
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.transitions import RoleKind
from strandline.controller.raft.voters import VoterSet
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId


def at(node: int) -> Endpoint:
    return Endpoint(f"n{node}", 9)


def said(*nodes: int) -> VotersChange:
    """A voter set of kraft.version 1."""
    return VotersChange(tuple(key(node) for node in nodes), 1, tuple(at(node) for node in nodes))


def log_with(*sets: VotersChange, end: int = 10) -> LogSummary:
    """A log with these sets, two offsets each, from offset 1 on."""
    voters = tuple((1 + 2 * place, one) for place, one in enumerate(sets))
    return LogSummary(end_offset=end, epochs=((1, 0),), voters=voters)


def bench(*sets: VotersChange, node: int = 1, **standing: object) -> Bench:
    stands = Standing(may_vote=True, listens_at=at(node), **standing)  # type: ignore[arg-type]
    return Bench(node=node, log=log_with(*sets), saved=ElectionState(1), standing=stands)


def leading(*nodes: int) -> Bench:
    """Node 1 leads these voters, and has committed in its epoch."""
    one = bench(said(*nodes))
    one.lead()
    follow(one, *nodes)
    return one


def follow(one: Bench, *nodes: int, **over: object) -> None:
    """These nodes fetch all there is, twice."""
    one.flush()
    for _ in range(2):
        for node in nodes:
            if node != 1:
                fields = {"replica": key(node), "listens_at": at(node), "max_wait_ms": 0} | over
                one.fetch(node, one.core.log.end_offset, **fields)


def refused(one: Bench, node: int, *, add: bool, endpoint: Endpoint | None = None) -> KafkaError:
    change: Callable[[], object] = lambda: one.core.remove_voter(NodeId(node), UUID(int=node), one.now)  # noqa: E731
    if add:
        change = lambda: one.core.add_voter(NodeId(node), UUID(int=node), one.now, endpoint)  # noqa: E731
    with pytest.raises(KafkaError) as error:
        change()
    return error.value


def remove(one: Bench, node: int) -> None:
    assert one.core.remove_voter(NodeId(node), UUID(int=node), one.now) is not None
    one.drain()


def add(one: Bench, node: int) -> None:
    assert one.core.add_voter(NodeId(node), UUID(int=node), one.now) is not None
    one.drain()


# --- the leader ------------------------------------------------------------------------------------------------------


def test_kafka_17608_a_leader_that_removes_itself_counts_the_others_alone() -> None:
    """KAFKA-17608: it leads until both that are left have the record, does not resign before, and then does."""
    one = leading(1, 2, 3)
    before = one.core.high_watermark
    remove(one, 1)
    one.flush()
    follow(one, 2)
    assert (one.role, one.core.high_watermark) == (RoleKind.LEADER, before)
    one.wait(5)
    assert one.role is RoleKind.LEADER
    follow(one, 3)
    assert one.core.high_watermark == one.core.log.end_offset
    one.wait(5)
    assert one.role is RoleKind.RESIGNED
    one.wait(5_000)
    assert (one.role, one.core.epoch) == (RoleKind.OBSERVER, 2), "it asks for no election"


def test_a_removed_leader_commits_nothing_more() -> None:
    """Rule A36 (seed 36120825): what it appended once it knew its removal to be committed, and before it resigned."""
    one = leading(1, 2, 3)
    remove(one, 1)
    follow(one, 2, 3)
    committed = one.core.high_watermark
    assert (one.role, committed) == (RoleKind.LEADER, one.core.log.end_offset)
    one.append(1)
    follow(one, 2, 3)
    assert (one.role, one.core.high_watermark) == (RoleKind.LEADER, committed)
    one.wait(0)
    assert one.role is RoleKind.RESIGNED


def test_a_removed_leader_needs_a_majority_of_the_others_to_stay() -> None:
    """Rules A5, A36: of two that are left both have to fetch: it has no vote itself."""
    one = leading(1, 2, 3)
    remove(one, 1)
    for _ in range(4):
        one.wait(900)
        one.fetch(2, 10, listens_at=at(2), max_wait_ms=0)
    assert one.role is not RoleKind.LEADER


def test_a_leader_of_one_that_gets_a_second_voter_is_checked() -> None:
    """Rule A36: a lone leader resigns for nobody's silence; one of two does, and one of one again does not."""
    one = leading(1)
    one.wait(60_000)
    follow(one, 2)
    add(one, 2)
    one.wait(2_000)
    assert one.role is RoleKind.LEADER
    one.wait(1_000)
    assert one.role is RoleKind.RESIGNED


def test_a_leader_of_two_that_is_alone_again_is_not_checked() -> None:
    """As above, the other way."""
    one = leading(1, 2)
    remove(one, 2)
    one.flush()
    assert one.core.high_watermark == one.core.log.end_offset
    one.wait(60_000)
    assert one.role is RoleKind.LEADER


def test_a_voter_is_not_removed_while_those_that_are_left_are_down() -> None:
    """Rule A36: with the two others one of which is silent nothing could be committed; the silent one may go."""
    one = leading(1, 2, 3)
    for _ in range(3):
        one.wait(900)
        follow(one, 2)
    error = refused(one, 2, add=False)
    assert (error.code, "not fetched" in error.message) == (ErrorCode.INVALID_REQUEST, True)
    remove(one, 3)


def test_a_broker_gets_no_vote() -> None:
    """Rule A38: it does not say where it listens, for it is no controller, and flushes later than it fetches."""
    one = leading(1)
    follow(one, 7, listens_at=None)
    error = refused(one, 7, add=True, endpoint=at(7))
    assert (error.code, "process.roles" in error.message) == (ErrorCode.INVALID_REQUEST, True)


def test_kafka_20661_no_voter_without_an_endpoint() -> None:
    """KAFKA-20661: neither the request nor the node says where it listens; a wildcard is no place either."""
    one = leading(1)
    follow(one, 2, listens_at=Endpoint("0.0.0.0", 9))
    for endpoint in (None, Endpoint("::", 9), Endpoint("n2", 0)):
        error = refused(one, 2, add=True, endpoint=endpoint)
        assert (error.code, "cannot be reached" in error.message) == (ErrorCode.INVALID_REQUEST, True)
    assert one.core.voters.keys == (key(1),)


def test_what_a_newcomer_fetched_in_a_former_life_does_not_count() -> None:
    """Rules A15, A38: a fetch of before its restart comes late. What it held then it may have lost; were it counted, it
    would make the newcomer one that has caught up, and commit what nobody but the leader has."""
    one = leading(1)
    end = one.core.log.end_offset
    one.append(5)
    one.flush()
    fields = {"replica": key(2), "listens_at": at(2), "max_wait_ms": 0}
    one.fetch(2, end, life=2, **fields)
    one.fetch(2, end + 5, life=1, **fields)
    assert refused(one, 2, add=True).code is ErrorCode.REQUEST_TIMED_OUT
    assert one.core.leading is not None
    assert one.core.leading.observers[key(2)].end_offset == end


def test_a_voter_that_listens_elsewhere_is_recorded() -> None:
    """Rule A36: by its own fetches, once what was recorded before is committed; a wildcard is passed over."""
    one = leading(1, 2, 3)
    moved = Endpoint("elsewhere", 9)
    follow(one, 2, listens_at=moved)
    assert one.core.voters.endpoints == {1: at(1), 2: moved, 3: at(3)}
    follow(one, 3, listens_at=Endpoint("0.0.0.0", 9))
    follow(one, 2, listens_at=moved)
    follow(one, 3, listens_at=Endpoint("0.0.0.0", 9))
    assert one.core.voters.endpoints[NodeId(3)] == at(3)


def test_kafka_18979_the_set_of_a_static_quorum_waits_for_all_it_needs() -> None:
    """KAFKA-18979: kraft.version 1 is in the log once each voter's directory and endpoint are known."""
    one = Bench(recorded=False, standing=Standing(may_vote=True, listens_at=at(1), kraft_version=1))
    one.lead()
    one.fetch(2, one.core.log.end_offset, listens_at=at(2), max_wait_ms=0)
    one.flush()
    one.fetch(2, one.core.log.end_offset, listens_at=at(2), max_wait_ms=0)
    assert one.core.node.said.kraft_version == 0, "nobody knows which directory of node 3 votes"
    one.fetch(3, one.core.log.end_offset, listens_at=at(3), max_wait_ms=0)
    for _ in range(3):
        one.flush()
        one.fetch(2, one.core.log.end_offset, listens_at=at(2), max_wait_ms=0)
        one.fetch(3, one.core.log.end_offset, listens_at=at(3), max_wait_ms=0)
    assert one.core.node.said == said(1, 2, 3)


# --- who was removed -------------------------------------------------------------------------------------------------


def test_who_was_removed_stands_until_that_is_committed_without_its_own_vote() -> None:
    """Raft 4.2.2: nodes 1 and 2 voted, node 1 led, removed itself, and died before 2 had that. It alone has a log that
    is long enough. It asks for 2's vote, has none itself, leads, and resigns when 2 has the record."""
    one = bench(said(1, 2), said(2))
    assert one.role is not RoleKind.OBSERVER
    one.wait(400)
    assert one.role is RoleKind.PROSPECTIVE, "it does not vote for itself"
    for _ in range(2):
        sent = one.sent(VoteRequest)[-1]
        assert sent.to == 2
        one.respond(sent, VoteResponse(ErrorCode.NONE, one.core.epoch, None, True))
    assert one.role is RoleKind.LEADER
    one.flush()
    one.fetch(2, one.core.log.end_offset, max_wait_ms=0)
    assert one.core.high_watermark == one.core.log.end_offset
    one.wait(5)
    assert one.role is RoleKind.RESIGNED
    one.wait(5_000)
    assert one.role is RoleKind.OBSERVER


def test_who_was_removed_long_ago_observes() -> None:
    """The set without it is in a snapshot, which is committed."""
    log = log_with(said(1, 2))
    log.reset_to(OffsetAndEpoch(10, 1), said(2, 3))
    one = Bench(node=1, log=log, saved=ElectionState(1), standing=Standing(may_vote=True))
    assert one.role is RoleKind.OBSERVER


def test_kafka_19850_who_was_removed_does_not_ask_again() -> None:
    """KAFKA-19850: auto-join would give it back at once what an operator has just taken."""
    one = bench(said(2), node=1, wants_vote=True)
    one.follow(2, epoch=2)
    fetches = one.sent(FetchRequest)
    assert fetches[-1].request.wants_vote  # type: ignore[union-attr]
    joined = said(1, 2)
    one.fetched(Batch(10, 12, 1, joined, joined), high_watermark=12)
    assert one.core.is_voter
    one.flush()
    gone = said(2)
    one.fetched(Batch(12, 14, 1, gone, gone), high_watermark=14)
    one.flush()
    assert one.role is RoleKind.OBSERVER
    assert not one.sent(FetchRequest)[-1].request.wants_vote  # type: ignore[union-attr]


# --- whom a node does not know ---------------------------------------------------------------------------------------


def test_a_leader_that_is_not_in_the_own_set_is_followed() -> None:
    """Rule A37: the set of this node is an old one; the leader is of a newer one, which only it can send."""
    one = bench(said(1, 2, 3))
    one.ask(BeginQuorumEpochRequest(CLUSTER, NodeId(9), 4, key(1), at(9)))
    assert (one.role, one.core.leader_id) == (RoleKind.FOLLOWER, 9)


def test_a_node_without_any_set_follows_whom_it_is_told_with_an_address() -> None:
    """Rule A37: it was formatted for a quorum of configured nodes, of which none is left; without the address the
    name is of no use, and of a peer that does not know better."""
    for leader_at, leader in ((None, None), (at(9), 9)):
        one = Bench(node=3, directory=33, voteless=True, standing=Standing(may_vote=True))
        [sent] = one.sent(FetchRequest)
        one.respond(sent, FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, 4, NodeId(9), leader_at=leader_at))
        assert one.core.leader_id == leader


def test_a_node_without_any_set_reads_one_of_kraft_version_0() -> None:
    """A log begins with such a set: the first leader records the directories before it raises the version."""
    empty = VoterSet((), dynamic=True)
    assert empty.filled(VotersChange((key(1), key(2)))).keys == (key(1), key(2))
    assert empty.filled(VotersChange((key(1),))).believes(NodeId(9))


def test_an_observer_asks_the_bootstrap_addresses_too() -> None:
    """Rule A37: everybody whom its set names is gone."""
    log = LogSummary()
    log.reset_to(OffsetAndEpoch(10, 1), said(2))
    one = Bench(node=1, log=log, standing=Standing(may_vote=True, bootstrap=(NodeId(-2), NodeId(-3))))
    one.wait(1_000)
    for _ in range(40):
        one.core.step(RequestFailed(one.sent(FetchRequest)[-1].request_id, True), one.now)
        one.wait(1_000)
    assert {sent.to for sent in one.sent(FetchRequest)} == {2, -2, -3}


def test_a_candidate_that_is_not_in_the_own_set_gets_a_vote() -> None:
    """KIP-853: by its log, as any other; its set may be a newer one, or this node's one that is never committed."""
    one = bench(said(1, 2, 3))
    request = one.vote_request(candidate=9, epoch=4, last=(20, 3), candidate_key=key(9))
    assert one.ask(request).granted  # type: ignore[union-attr]
    static = Bench(node=1, log=LogSummary(end_offset=1, epochs=((1, 0),)), saved=ElectionState(1))
    assert static.ask(request).error is ErrorCode.INVALID_VOTER_KEY  # type: ignore[union-attr]


def test_a_follower_that_is_no_voter_has_a_place_in_no_line() -> None:
    """A resigned leader that was removed hears of its successor: a place among voters it has none (KAFKA-17608)."""
    voters = bench(said(2, 3)).core.voters
    assert voters.succession(NodeId(2), NodeId(1)) == 1


def test_a_voter_tells_where_it_listens() -> None:
    """KIP-853 (UpdateRaftVoter): recorded once, in force at once; what its fetches say counts, and it knows the
    level."""
    one = leading(1, 2, 3)
    moved, known = Endpoint("elsewhere", 9), range(2)
    leader = one.core.leading
    assert leader is not None
    leader.voters[NodeId(2)].listens_at = None  # a voter whose fetches say nothing of it

    def told(number: int, endpoint: Endpoint | None, levels: range = known) -> int | None:
        return one.core.update_voter(key(number), endpoint, levels, one.now)

    assert told(2, at(2)) is None
    assert told(2, moved) is not None
    assert one.core.voters.endpoints == {1: at(1), 2: moved, 3: at(3)}
    codes = {}
    for name, asked in {
        "while a change is not committed": (2, at(2), known),
        "elsewhere than its fetches": (3, moved, known),
        "no endpoint": (2, None, known),
        "another level": (2, at(2), range(1)),
        "no voter": (4, at(4), known),
    }.items():
        with pytest.raises(KafkaError) as caught:
            told(*asked)
        codes[name] = caught.value.code
    assert codes == {
        "while a change is not committed": ErrorCode.REQUEST_TIMED_OUT,
        "elsewhere than its fetches": ErrorCode.INVALID_REQUEST,
        "no endpoint": ErrorCode.INVALID_REQUEST,
        "another level": ErrorCode.INVALID_UPDATE_VERSION,
        "no voter": ErrorCode.VOTER_NOT_FOUND,
    }


def test_no_voter_of_a_static_quorum_tells_where_it_listens() -> None:
    """kraft.version 0: where voters are is configured."""
    one = Bench(recorded=False, standing=Standing(may_vote=True, listens_at=at(1)))
    one.lead()
    with pytest.raises(KafkaError) as caught:
        one.core.update_voter(key(2), at(2), range(2), one.now)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
