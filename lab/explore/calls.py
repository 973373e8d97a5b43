"""The calls between explored voters: what is under way, and what becomes of it."""

from __future__ import annotations

from typing import NamedTuple

from lab.explore.parts import Parts
from strandline.controller.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    Request,
    Response,
    VoteRequest,
)
from strandline.proto.ids import NodeId

BROKEN = "broken"
"""Value in place of an answer: the connection broke."""


class Call(NamedTuple):
    """A call between two voters.

    Attributes:
        response: the answer on its way back; None while there is none.
        parked: the target holds the request.
        heard: the caller waits for the answer.
        current: and the role waits that asked: otherwise the answer only tells epoch and leader.
        copy: tells a request from a second one of the same caller, while both are held.
    """

    caller: NodeId
    target: NodeId
    request: Request
    response: Response | str | None = None
    parked: bool = False
    heard: bool = True
    current: bool = True
    copy: int = 0


class Calls:
    """Calls by digest; every change of one is computed once."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._calls: dict[int, Call] = {}
        self._digests: dict[Call, int] = {}
        self._over: dict[int, int] = {}
        self._given_up: dict[int, int] = {}
        self._arriving: dict[int, int] = {}
        self._broken: dict[tuple[int, NodeId], int] = {}

    def get(self, digest: int) -> Call:
        """The call of a digest."""
        call = self._calls.get(digest)
        if call is None:
            call = self._calls[digest] = self._parts.get(digest)
        return call

    def put(self, call: Call) -> int:
        """The digest of a call."""
        digest = self._digests.get(call)
        if digest is None:
            digest = self._digests[call] = self._parts.put(call)
            self._calls[digest] = call
        return digest

    def over(self, digest: int) -> int:
        """The call when the role that made it is over."""
        found = self._over.get(digest)
        if found is None:
            found = self._over[digest] = self.put(self.get(digest)._replace(current=False))
        return found

    def given_up(self, digest: int) -> int:
        """The call when its caller does not wait any more."""
        found = self._given_up.get(digest)
        if found is None:
            found = self._given_up[digest] = self.put(self.get(digest)._replace(heard=False, current=False))
        return found

    def arriving(self, digest: int, others: tuple[int, ...]) -> int:
        """The call as its target holds it; with another number where it holds one of the same caller already."""
        found = self._arriving.get(digest)
        if found is None:
            found = self._arriving[digest] = self.put(self.get(digest)._replace(parked=True))
        caller = self.get(digest).caller
        for other in others:
            held = self.get(other)
            if held.parked and held.caller == caller and not held.copy:
                return self.put(self.get(found)._replace(copy=1))
        return found

    def broken(self, digest: int, node: NodeId) -> int:
        """The call when the process of `node` ends: what it was asked is not answered, what it asked is not heard."""
        key = (digest, node)
        found = self._broken.get(key)
        if found is None:
            call = self.get(digest)
            if call.caller == node:
                call = call._replace(heard=False)
            elif call.target == node and call.response is None and call.heard:
                call = call._replace(response=BROKEN, parked=False, copy=0)
            found = self._broken[key] = self.put(call)
        return found


def kind_of(request: Request) -> str:
    """Kind of a call, for the name of a step."""
    if isinstance(request, VoteRequest):
        return "prevote" if request.pre_vote else "vote"
    kinds: dict[type, str] = {
        FetchRequest: "fetch",
        FetchSnapshotRequest: "snapshot",
        BeginQuorumEpochRequest: "begin",
        EndQuorumEpochRequest: "end",
    }
    return kinds[type(request)]
