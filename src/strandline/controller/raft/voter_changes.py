"""Changes of who votes, while the quorum runs (KIP-853, rules A11, A36 and A38).

Each is one record in the metadata log, in force from its append on, and the next one waits until it is committed: so
any two majorities that can exist at once meet.

At kraft.version 0 nodes are configured: a voter that lost its disk, or its metadata log, comes back as another replica,
and gets its vote back in two changes. The lost replica is removed, and the new one is added once it has caught up. From
kraft.version 1 on any controller that has caught up can be added, and any voter removed, the leader too.

What the leader finds out by itself it records: which directory votes where the configuration leaves that open, and
where a voter listens by now.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from strandline.controller.raft.config import CHECK_QUORUM_FACTOR
from strandline.controller.raft.leader import Leader, ReplicaProgress
from strandline.controller.raft.membership import ChangeKind, VoterChange, can_be_reached_at, changed
from strandline.controller.raft.messages import ReplicaKey, VotersChange
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.marks import mark


def remove_voter(leader: Leader, node_id: NodeId, directory_id: UUID, now_ms: float) -> int | None:
    """Take a vote; the record's offset, None if that is done. At kraft.version 0 only of a replica that is gone, and
    its place is left vacant; later on of any, the leader's own included.

    Raises:
        KafkaError: VOTER_NOT_FOUND, no such voter; INVALID_REQUEST, it still fetches, or too few would
            be left; REQUEST_TIMED_OUT, whether it fetches is not known yet, or an earlier change is not committed.
    """
    node = leader.node
    if node.said.kraft_version > 0:
        return _remove(leader, ReplicaKey(node_id, directory_id), now_ms)
    recorded = node.voters.recorded(node_id)
    if recorded is None and node_id in node.voters.places:
        return None
    if recorded is None or recorded.directory_id not in (None, directory_id):
        raise KafkaError(ErrorCode.VOTER_NOT_FOUND, _unknown(node_id, directory_id, recorded))
    if node_id == node.key.node_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node {node_id} leads the quorum: it has lost nothing.")
    rest = node.voters.others(node_id)
    if len(rest) < node.voters.majority:  # rule A11/too-few-voters-are-left
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Without node {node_id} the quorum has {len(rest)} of {len(node.voters)} votes, and nothing can be "
            "committed. Restore the vote of another node first.",
        )
    _is_silent(leader, node_id, now_ms)
    _one_at_a_time(leader)
    mark("voter-removed")
    return leader.change_voters(VotersChange(rest))


def _remove(leader: Leader, key: ReplicaKey, now_ms: float) -> int | None:
    node = leader.node
    _one_at_a_time(leader)
    said = changed(node.said, VoterChange(ChangeKind.REMOVE, key))
    if said is None:
        return None
    rest = node.voters.filled(said)
    patience_ms = node.config.fetch_timeout_ms * CHECK_QUORUM_FACTOR
    gone = [
        voter.node_id
        for voter in rest
        if voter != node.key and now_ms - leader.voters[voter.node_id].last_fetch_ms >= patience_ms
    ]
    if len(rest) - len(gone) < rest.majority:  # rule A36/those-that-are-left-are-down
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Without node {key.node_id} the quorum has {len(rest)} voters, of which these have not fetched for "
            f"{patience_ms:.0f} ms: {', '.join(map(str, gone))}. Nothing could be committed. Start them, or remove "
            "one of them first.",
        )
    mark("voter-removed")
    return leader.change_voters(said)


def add_voter(
    leader: Leader, node_id: NodeId, directory_id: UUID, now_ms: float, endpoint: Endpoint | None = None
) -> int | None:
    """Give a vote to a replica that has caught up; the record's offset, None if it is done. At kraft.version 0 it gets
    a vacant place; later on a new one, for any controller. `endpoint`: where it listens; None: where it says it does.

    Raises:
        KafkaError: INVALID_REQUEST, the node has no place in the quorum, does not fetch, or cannot be reached;
            DUPLICATE_VOTER, another directory of that node votes; REQUEST_TIMED_OUT, the replica lags, or an earlier
            change is not committed yet.
    """
    node = leader.node
    key = ReplicaKey(node_id, directory_id)
    if node.said.kraft_version > 0:
        said = judged_addition(leader, key, endpoint, now_ms)
        if said is None:
            return None
        mark("voter-added")
        return leader.change_voters(said)
    if node_id not in node.voters.places:
        places = ", ".join(str(place) for place in sorted(node.voters.places))
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Only the configured controllers vote: {places}, not {node_id}. `strandline upgrade finalize "
            "kraft.version=1` lets voters come and go.",
        )
    recorded = node.voters.recorded(node_id)
    if recorded == key:
        return None
    if recorded is not None:
        raise KafkaError(
            ErrorCode.DUPLICATE_VOTER,
            f"Node {node_id} votes with directory {recorded.directory_id or 'any'}: remove that voter first.",
        )
    _one_at_a_time(leader)
    _caught_up(leader, key, now_ms)
    mark("voter-added")
    return leader.change_voters(VotersChange(_sorted((*node.voters.keys, key))))


def judged_addition(leader: Leader, key: ReplicaKey, endpoint: Endpoint | None, now_ms: float) -> VotersChange | None:
    """The set of kraft.version 1 with one more voter; None if it votes already. Raises KafkaError as `add_voter`."""
    node = leader.node
    if key in node.voters.keys:
        return None
    _one_at_a_time(leader)
    seen = leader.observers.get(key)
    if seen is None and endpoint is None and not node.voters.contains_id(key.node_id):
        _caught_up(leader, key, now_ms)  # it does not fetch: that is why nobody knows where it is
    said = changed(node.said, VoterChange(ChangeKind.ADD, key, endpoint or (None if seen is None else seen.listens_at)))
    if said is None:
        return None
    _caught_up(leader, key, now_ms)
    if seen is None or seen.listens_at is None:  # rule A38/a-broker-gets-a-vote
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Node {key.node_id} does not fetch as a controller: process.roles must name controller there.",
        )
    return said


def update_voter(leader: Leader, key: ReplicaKey, endpoint: Endpoint | None, levels: range) -> int | None:
    """Record where a voter listens, as it tells by a request of its own; the record's offset, None if it is recorded
    already. Our voters tell it by each fetch (`record_what_is_known`), and what that says counts.

    Raises:
        KafkaError: UNSUPPORTED_VERSION, kraft.version is 0; INVALID_UPDATE_VERSION, the voter's build does not know the
            level of the set; VOTER_NOT_FOUND; INVALID_REQUEST, it cannot be reached there, or its fetches say another
            endpoint; REQUEST_TIMED_OUT, an earlier change is not committed yet.
    """
    node = leader.node
    said = changed(node.said, VoterChange(ChangeKind.UPDATE, key, endpoint))
    if node.said.kraft_version not in levels:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Node {key.node_id} knows kraft.version {levels.start} to {levels.stop - 1}, and the voters are of "
            f"{node.said.kraft_version}: run a build there that knows it.",
        )
    told = _listens_at(leader, key)
    if told not in (None, endpoint):  # rule A36/whoever-asks-moves-a-voter
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Node {key.node_id} says by its fetches that it listens at {told}, not at {endpoint}: its "
            "advertised.listeners counts.",
        )
    if said is None:
        return None
    _one_at_a_time(leader)
    mark("voter-endpoint-recorded")
    return leader.change_voters(said)


def record_what_is_known(leader: Leader) -> None:
    """Record what the leader finds out by itself, one change at a time: directories where the voter set leaves them
    open, the level at which voters come and go once the cluster has it, and where voters listen by then."""
    node = leader.node
    if leader.epoch_high_watermark is None or node.voters_offset >= leader.epoch_high_watermark:
        return
    said = node.said
    if said.kraft_version > 0:
        said = _with_their_endpoints(leader)
    elif any(key.directory_id is None for key in said.voters):
        # From then on a wiped disk under that node's id is no voter (schedule 26).
        keys = (_presented(leader, key) if key.directory_id is None else key for key in said.voters)
        said = VotersChange(tuple(keys))
    elif node.standing.kraft_version > 0:
        said = _raised(leader)
    if said != node.said:  # rule A11/open-directory-stays-open
        if said.kraft_version > node.said.kraft_version:
            mark("kraft-version-raised")
        elif said.kraft_version:
            mark("voter-endpoint-recorded")
        else:
            mark("voter-directory-recorded")
        leader.change_voters(said)


def _raised(leader: Leader) -> VotersChange:
    """The same voters at kraft.version 1; unchanged while an endpoint of a voter is unknown."""
    node = leader.node
    at = [_listens_at(leader, key) or node.voters.endpoints.get(key.node_id) for key in node.said.voters]
    endpoints = tuple(endpoint for endpoint in at if endpoint is not None and can_be_reached_at(endpoint))
    if len(endpoints) < len(at):
        return node.said
    return VotersChange(node.said.voters, node.standing.kraft_version, endpoints)


def _with_their_endpoints(leader: Leader) -> VotersChange:
    said = leader.node.said
    pairs = zip(said.voters, said.endpoints, strict=True)
    now = ((_listens_at(leader, key), recorded) for key, recorded in pairs)
    # rule A36/a-voter-that-moved-is-not-found
    return replace(
        said, endpoints=tuple(at if at is not None and can_be_reached_at(at) else before for at, before in now)
    )


def _listens_at(leader: Leader, key: ReplicaKey) -> Endpoint | None:
    if key == leader.node.key:
        return leader.node.standing.listens_at
    progress = leader.voters.get(key.node_id)
    return None if progress is None else progress.listens_at


def _sorted(keys: tuple[ReplicaKey, ...]) -> tuple[ReplicaKey, ...]:
    return tuple(sorted(keys, key=lambda key: key.node_id))


def _presented(leader: Leader, key: ReplicaKey) -> ReplicaKey:
    if key.node_id == leader.node.key.node_id:
        return leader.node.key
    return leader.voters[key.node_id].presented or key


def _is_silent(leader: Leader, node_id: NodeId, now_ms: float) -> None:
    """A voter that fetches has its log; whether it does, a new leader knows after a while."""
    node = leader.node
    patience_ms = node.config.fetch_timeout_ms * CHECK_QUORUM_FACTOR
    fetched_ms = leader.voters[node_id].last_fetch_ms
    if now_ms - fetched_ms < patience_ms:  # rule A11/voter-with-its-log-is-removed
        observers = [seen for seen in leader.observers.values() if seen.key.node_id == node_id]
        replaced = any(seen.last_fetch_ms > fetched_ms for seen in observers)  # then it may fall silent soon
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT if replaced else ErrorCode.INVALID_REQUEST,
            f"Node {node_id} fetched as a voter {now_ms - fetched_ms:.0f} ms ago: while it does so its log is not "
            "lost, and its vote stays.",
        )
    if now_ms - leader.since_ms < patience_ms:
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"Node {node.key.node_id} leads the quorum for {now_ms - leader.since_ms:.0f} ms only, too short to know "
            f"that node {node_id} is silent. Try again in a few seconds.",
        )


def _one_at_a_time(leader: Leader) -> None:
    """The high watermark of this epoch is known, and lies above the last change (schedule 25)."""
    node = leader.node
    known = leader.epoch_high_watermark
    # rule A11/two-voter-changes-at-once, rule A11/voters-changed-before-the-epoch-commits
    if known is None or node.voters_offset >= known:
        what = "its own first record" if known is None else f"the voter set at offset {node.voters_offset}"
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"The quorum's leader has not committed {what} yet: a majority of the voters must be up. Try again.",
        )


def _caught_up(leader: Leader, key: ReplicaKey, now_ms: float) -> None:
    """Check that the replica is there, and lately had all that the leader had: else the quorum would wait for it. What
    it counts for is not at stake: it acknowledges only what it has, and votes by its log."""
    node = leader.node
    seen = leader.observers.get(key, ReplicaProgress(key))
    if now_ms - seen.last_fetch_ms >= node.config.fetch_timeout_ms:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Node {key.node_id} with directory {key.directory_id} does not fetch. Start it, and try again.",
        )
    if now_ms - seen.last_caught_up_ms >= node.config.fetch_timeout_ms:  # rule A11/lagging-replica-is-added
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"Node {key.node_id} has fetched up to {seen.end_offset} of {node.log.end_offset}. Try again when it has "
            "caught up.",
        )


def _unknown(node_id: NodeId, directory_id: UUID, recorded: ReplicaKey | None) -> str:
    if recorded is None:
        return f"Node {node_id} is no controller of this cluster."
    return f"Node {node_id} votes with directory {recorded.directory_id}, not {directory_id}."
