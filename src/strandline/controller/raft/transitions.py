"""The roles of a quorum node, the events that move it between them, and the one table of its transitions.

docs/states.md draws the table; `RaftCore` makes no other move (`proto.transitions.next_state`).
"""

from __future__ import annotations

from enum import Enum

from strandline.proto.transitions import Transitions


class RoleKind(Enum):
    """Roles of a quorum node."""

    UNATTACHED = "Unattached"
    """A voter that knows no leader it could fetch from; it may have voted."""
    PROSPECTIVE = "Prospective"
    """A voter that asks whether an election would be won (KIP-996)."""
    CANDIDATE = "Candidate"
    """A voter that raised the epoch, voted for itself, and asks for votes."""
    FOLLOWER = "Follower"
    """A voter that fetches from the leader."""
    LEADER = "Leader"
    """Appends and answers fetches."""
    RESIGNED = "Resigned"
    """Led this epoch and will not again."""
    OBSERVER = "Observer"
    """Not a voter: fetches, and counts for nothing (rule A12)."""


class Event(Enum):
    """Events that move a quorum node from role to role; docs/states.md shows the words."""

    STARTED = "starts, and knows no leader"
    STARTED_AS_LEADER = "starts after it led this epoch (rule A2)"
    STARTED_AS_CANDIDATE = "starts after it voted for itself (rule A2)"
    STARTED_AS_FOLLOWER = "starts, and knows the leader"
    STARTED_WITHOUT_VOTE = "starts, and is no voter"
    HIGHER_EPOCH = "a higher epoch, its leader unknown"
    LEADER_FOUND = "the leader of this epoch or of a higher one is known"
    VOTE_GRANTED = "grants a vote"
    ELECTION_TIMEOUT = "the election timeout passed"
    FETCH_TIMEOUT = "no fetch succeeded in time"
    PRE_VOTE_WON = "a majority would vote for it"
    PRE_VOTE_LOST = "too few would vote for it, and no leader is known"
    LEADER_TRIED_AGAIN = "too few would vote for it, or its leader answers"
    ELECTED = "a majority voted for it"
    RESIGN_REQUESTED = "is asked to resign"
    NO_QUORUM = "no majority fetched in time (rule A5)"
    WRITE_FAILED = "its own write failed (schedule 24)"
    CONFLICTING_STARTS = "two starts of one voter fetch"
    VOTE_REMOVED = "the voter set does not name this replica"
    VOTE_ADDED = "the voter set names this replica, and no leader is known"
    VOTE_ADDED_WITH_LEADER = "the voter set names this replica, and the leader is known"


_U, _P, _C, _F = RoleKind.UNATTACHED, RoleKind.PROSPECTIVE, RoleKind.CANDIDATE, RoleKind.FOLLOWER
_L, _R, _O = RoleKind.LEADER, RoleKind.RESIGNED, RoleKind.OBSERVER

TRANSITIONS: Transitions[RoleKind, Event] = {
    (None, Event.STARTED): _U,
    (None, Event.STARTED_AS_LEADER): _R,
    (None, Event.STARTED_AS_CANDIDATE): _C,
    (None, Event.STARTED_AS_FOLLOWER): _F,
    (None, Event.STARTED_WITHOUT_VOTE): _O,
    (_U, Event.HIGHER_EPOCH): _U,
    (_U, Event.VOTE_GRANTED): _U,
    (_U, Event.ELECTION_TIMEOUT): _P,
    (_U, Event.LEADER_FOUND): _F,
    (_U, Event.VOTE_REMOVED): _O,
    (_P, Event.HIGHER_EPOCH): _U,
    (_P, Event.VOTE_GRANTED): _U,
    (_P, Event.PRE_VOTE_LOST): _U,
    (_P, Event.PRE_VOTE_WON): _C,
    (_P, Event.LEADER_FOUND): _F,
    (_P, Event.LEADER_TRIED_AGAIN): _F,
    (_C, Event.HIGHER_EPOCH): _U,
    (_C, Event.ELECTION_TIMEOUT): _P,
    (_C, Event.ELECTED): _L,
    (_C, Event.LEADER_FOUND): _F,
    (_F, Event.HIGHER_EPOCH): _U,
    (_F, Event.FETCH_TIMEOUT): _P,
    (_F, Event.LEADER_FOUND): _F,
    (_F, Event.VOTE_REMOVED): _O,
    (_L, Event.HIGHER_EPOCH): _U,
    (_L, Event.LEADER_FOUND): _F,
    (_L, Event.RESIGN_REQUESTED): _R,
    (_L, Event.NO_QUORUM): _R,
    (_L, Event.WRITE_FAILED): _R,
    (_L, Event.CONFLICTING_STARTS): _R,
    (_L, Event.VOTE_REMOVED): _R,
    (_R, Event.HIGHER_EPOCH): _U,
    (_R, Event.ELECTION_TIMEOUT): _U,
    (_R, Event.LEADER_FOUND): _F,
    (_R, Event.VOTE_REMOVED): _O,
    (_O, Event.HIGHER_EPOCH): _O,
    (_O, Event.LEADER_FOUND): _O,
    (_O, Event.VOTE_GRANTED): _O,
    (_O, Event.VOTE_ADDED): _U,
    (_O, Event.VOTE_ADDED_WITH_LEADER): _F,
}
