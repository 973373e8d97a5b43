"""Changes of the directory by which a controller votes, while the quorum runs (KIP-853, rule A11).

A voter that lost its disk, or its metadata log, comes back as another replica. It gets its vote back in two changes:
the lost replica is removed, and the new one is added once it has caught up. Each is one record in the metadata log, in
force from its append on, and the next one waits until it is committed: so any two majorities that can exist at once
meet.

What the leader finds out by itself is which directory votes where the configuration leaves that open: it records the
one that has fetched.
"""

from __future__ import annotations

from uuid import UUID

from strandline.controller.raft.config import CHECK_QUORUM_FACTOR
from strandline.controller.raft.leader import Leader, ReplicaProgress
from strandline.controller.raft.messages import ReplicaKey
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark


def remove_voter(leader: Leader, node_id: NodeId, directory_id: UUID, now_ms: float) -> int | None:
    """Take the vote of a replica that is gone, and leave its place vacant; the record's offset, None if it is done.

    Raises:
        KafkaError: VOTER_NOT_FOUND, no such voter; INVALID_REQUEST, it still fetches, or too few would
            be left; REQUEST_TIMED_OUT, whether it fetches is not known yet, or an earlier change is not committed.
    """
    node = leader.node
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
    return leader.change_voters(rest)


def add_voter(leader: Leader, node_id: NodeId, directory_id: UUID, now_ms: float) -> int | None:
    """Give a vacant place to a replica that has caught up; the record's offset, None if it is done.

    Raises:
        KafkaError: INVALID_REQUEST, the node has no place in the quorum, or the replica does not fetch;
            DUPLICATE_VOTER, another directory of that node votes; REQUEST_TIMED_OUT, the replica lags, or an earlier
            change is not committed yet.
    """
    node = leader.node
    key = ReplicaKey(node_id, directory_id)
    if node_id not in node.voters.places:
        places = ", ".join(str(place) for place in sorted(node.voters.places))
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Only the configured controllers vote: {places}, not {node_id}.")
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
    return leader.change_voters((*node.voters.keys, key))


def record_directories(leader: Leader) -> None:
    """Record the directory of each voter that has fetched in this epoch, where the voter set leaves it open; the
    leader's own is known. From then on a wiped disk under that node's id is no voter (schedule 26)."""
    node = leader.node
    if all(key.directory_id is not None for key in node.voters):
        return
    if leader.epoch_high_watermark is None or node.voters_offset >= leader.epoch_high_watermark:
        return
    keys = tuple(_presented(leader, key) if key.directory_id is None else key for key in node.voters)
    if keys != node.voters.keys:  # rule A11/open-directory-stays-open
        mark("voter-directory-recorded")
        leader.change_voters(keys)


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
