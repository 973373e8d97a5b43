"""Judges what peers ask: the checks that do not depend on the role, in Kafka's order and with Kafka's error codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.controller.raft.config import EPOCH_LEAD_MAX, EPOCH_MAX
from strandline.controller.raft.leader import Leader
from strandline.controller.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Request,
    VoteRequest,
    VoteResponse,
)
from strandline.controller.raft.resigned import Resigned
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark

if TYPE_CHECKING:
    from strandline.controller.raft.core import RaftCore


def handle_request(core: RaftCore, token: int, request: Request, now_ms: float) -> None:
    """Answer a request, or hand it to the role that will."""
    if isinstance(request, VoteRequest):
        error, granted = _on_vote(core, request, now_ms)
        in_doubt = core.doubt is not None and not request.last.at_least(core.doubt)
        core.reply(token, VoteResponse(error, core.epoch, core.leader_id, granted, in_doubt))
    elif isinstance(request, BeginQuorumEpochRequest):
        error = _on_begin(core, request, now_ms)
        core.reply(token, BeginQuorumEpochResponse(error, core.epoch, core.leader_id))
    elif isinstance(request, EndQuorumEpochRequest):
        error = _on_end(core, request, now_ms)
        core.reply(token, EndQuorumEpochResponse(error, core.epoch, core.leader_id))
    elif isinstance(request, FetchRequest):
        error = _judge_fetch(core, request)
        if error is ErrorCode.NONE:
            core.role.on_fetch(token, request, now_ms)
        else:
            core.reply(token, FetchResponse(error, core.epoch, core.leader_id))
    else:
        error = _judge_fetch(core, request)
        if error is ErrorCode.NONE:
            core.role.on_fetch_snapshot(token, request, now_ms)
        else:
            core.reply(token, FetchSnapshotResponse(error, core.epoch, core.leader_id, request.snapshot))


def _unreachable(core: RaftCore, epoch: int, sender: NodeId) -> bool:
    """Whether a request names an epoch that no elections can have reached since this node last had proof (rule A17)."""
    if epoch <= min(core.proven_epoch + EPOCH_LEAD_MAX, EPOCH_MAX):
        return False
    mark("epoch-refused")
    core.notice(
        f"refused: a request in the name of node {sender} claims epoch {epoch}, more than {EPOCH_LEAD_MAX} above "
        f"{core.proven_epoch}, the last that a voter has proven to this node"
    )
    return True


def _judge_fetch(core: RaftCore, request: FetchRequest | FetchSnapshotRequest) -> ErrorCode:
    if request.cluster_id != core.cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if request.epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.epoch > core.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE


def _on_vote(core: RaftCore, request: VoteRequest, now_ms: float) -> tuple[ErrorCode, bool]:
    """Rules A3, A4 and A11."""
    if request.cluster_id != core.cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID, False
    if request.candidate_epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH, False
    last_epoch_max = request.candidate_epoch if request.pre_vote else request.candidate_epoch - 1
    if request.candidate.node_id == core.key.node_id or request.last.epoch > last_epoch_max:
        return ErrorCode.INVALID_REQUEST, False
    if _unreachable(core, request.candidate_epoch, request.candidate.node_id):
        return ErrorCode.INVALID_REQUEST, False
    recorded = core.voters.recorded(request.candidate.node_id)
    asked = request.voter.counts(core.key, voteless=core.voteless)
    # A candidate whose voter set is newer than ours may have been given its vote in it.
    known = recorded is None or recorded.admits(request.candidate) or request.voters_offset > core.voters_offset
    if not asked or not known or request.candidate.node_id not in core.voters.places:
        mark("vote-refused-directory")
        return ErrorCode.INVALID_VOTER_KEY, False
    if request.candidate_epoch > core.epoch:
        core.become_unattached(request.candidate_epoch, now_ms)
    up_to_date = request.last.at_least(core.log.end)
    granted = core.role.may_grant(request, up_to_date)
    if not up_to_date:
        mark("vote-refused-log-behind")
    elif request.pre_vote and not granted:
        mark("pre-vote-refused")
    if granted and not request.pre_vote and core.role.voted_for != request.candidate:
        core.vote_for(request.candidate, now_ms)
    return ErrorCode.NONE, granted


def _on_begin(core: RaftCore, request: BeginQuorumEpochRequest, now_ms: float) -> ErrorCode:
    if request.cluster_id != core.cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if request.epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if not request.voter.counts(core.key, voteless=core.voteless):
        return ErrorCode.INVALID_VOTER_KEY
    if request.leader_id == core.key.node_id or request.leader_id not in core.voters.places:
        return ErrorCode.INVALID_REQUEST
    if request.epoch == core.epoch and isinstance(core.role, Leader | Resigned):
        return ErrorCode.INVALID_REQUEST
    return _learned(core, request.epoch, request.leader_id, now_ms)


def _learned(core: RaftCore, epoch: int, leader_id: NodeId, now_ms: float) -> ErrorCode:
    if _unreachable(core, epoch, leader_id) or not core.learn(epoch, leader_id, now_ms):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _on_end(core: RaftCore, request: EndQuorumEpochRequest, now_ms: float) -> ErrorCode:
    if request.cluster_id != core.cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if request.epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.leader_id == core.key.node_id or request.leader_id not in core.voters.places:
        return ErrorCode.INVALID_REQUEST
    if request.epoch == core.epoch and isinstance(core.role, Leader | Resigned):
        return ErrorCode.INVALID_REQUEST
    error = _learned(core, request.epoch, request.leader_id, now_ms)
    if core.role.leader_id == request.leader_id:
        core.role.on_leader_resigned(request, now_ms)
    return error
