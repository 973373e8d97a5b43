"""The one function that makes the next voter set of kraft.version 1 out of the one before (KIP-853, rule A36).

It knows of no leader, no log and no time: when a change may be made, `voter_changes` judges. A set and the one after it
differ in one voter, so that any majority of the one meets any majority of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from strandline.controller.raft.messages import ReplicaKey, VotersChange
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import WILDCARDS, Endpoint


class ChangeKind(Enum):
    """Kind of change of a voter."""

    ADD = "add"
    REMOVE = "remove"
    UPDATE = "update"
    """The voter listens at another address."""


@dataclass(frozen=True, slots=True)
class VoterChange:
    """A change of one voter; `endpoint` says where one that is added, or updated, has its internal listener."""

    kind: ChangeKind
    key: ReplicaKey
    endpoint: Endpoint | None = None


def changed(said: VotersChange, change: VoterChange) -> VotersChange | None:
    """The set after a change; None if it is as asked for already.

    Raises:
        KafkaError: UNSUPPORTED_VERSION, the set is not one of kraft.version 1; DUPLICATE_VOTER, another directory of
            the node votes; VOTER_NOT_FOUND; INVALID_REQUEST, the last voter is to go, the directory is not named, or
            there is no endpoint at which others can reach it.
    """
    if said.kraft_version == 0:  # rule A36/voters-of-a-static-quorum-come-and-go
        _refuse(
            ErrorCode.UNSUPPORTED_VERSION,
            "Which nodes vote is configured (kraft.version 0), and stays so: only the directory of a configured "
            "controller changes. `strandline upgrade finalize kraft.version=1` lets voters come and go.",
        )
    endpoints = dict(zip(said.voters, said.endpoints, strict=True))
    if change.kind is ChangeKind.REMOVE:
        _known(said, change.key)
        if len(endpoints) == 1:  # rule A36/the-last-voter-goes
            _refuse(
                ErrorCode.INVALID_REQUEST,
                f"Node {change.key.node_id} is the only voter: without it nothing could be committed. Add another one "
                "first.",
            )
        del endpoints[change.key]
    else:
        (_free if change.kind is ChangeKind.ADD else _known)(said, change.key)
        endpoint = _reachable(change)
        if endpoints.get(change.key) == endpoint:
            return None
        endpoints[change.key] = endpoint
    keys = tuple(sorted(endpoints, key=lambda key: key.node_id))
    return VotersChange(keys, said.kraft_version, tuple(endpoints[key] for key in keys))


def can_be_reached_at(endpoint: Endpoint | None) -> bool:
    """Whether other machines could be told this address: 0.0.0.0 is theirs there, port 0 is nobody's."""
    return endpoint is not None and endpoint.host not in WILDCARDS and endpoint.port > 0


def _reachable(change: VoterChange) -> Endpoint:
    endpoint = change.endpoint
    if change.key.directory_id is None:
        _refuse(ErrorCode.INVALID_REQUEST, f"Say which directory of node {change.key.node_id} is to vote.")
    if endpoint is None or not can_be_reached_at(endpoint):  # rule A36/any-address-is-an-endpoint
        _refuse(
            ErrorCode.INVALID_REQUEST,
            f"Node {change.key.node_id} cannot be reached at {endpoint or 'no endpoint'}: name the host and the port "
            "at which the other controllers reach its INTERNAL listener (advertised.listeners).",
        )
    return endpoint


def _free(said: VotersChange, key: ReplicaKey) -> None:
    for voter in said.voters:
        if voter.node_id == key.node_id and voter != key:  # rule A36/two-directories-of-a-node-vote
            _refuse(
                ErrorCode.DUPLICATE_VOTER,
                f"Node {key.node_id} votes with directory {voter.directory_id}: remove that voter first.",
            )


def _known(said: VotersChange, key: ReplicaKey) -> None:
    if key not in said.voters:  # rule A36/a-voter-goes-by-its-node-id
        recorded = next((voter for voter in said.voters if voter.node_id == key.node_id), None)
        what = (
            f"Node {key.node_id} is no voter of this cluster."
            if recorded is None
            else f"Node {key.node_id} votes with directory {recorded.directory_id}, not {key.directory_id}."
        )
        _refuse(ErrorCode.VOTER_NOT_FOUND, what)


def _refuse(code: ErrorCode, message: str) -> NoReturn:
    raise KafkaError(code, message)
