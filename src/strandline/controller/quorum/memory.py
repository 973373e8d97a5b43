"""Memory of the quorum on a node's disk, kept in two places, and what follows when they or the log disagree (rule A14).

`quorum-state` lies beside the log. `quorum-promise` lies in the root of the data directory: where the metadata
directory is lost, moved away or replaced by an older copy, it proves that this node voted and held a log. A voter
that finds the proof and not the log goes on under a directory id drawn anew, which no voter set names: to the others it
is another replica, an observer, until a voter change gives it a vote (`raft.voter_changes`).

| quorum-state | quorum-promise         | the log               | the node                                |
|--------------|------------------------|-----------------------|-----------------------------------------|
| none         | none                   | empty                 | is new                                  |
| none         | none                   | has records           | has lost its log: how it voted is gone  |
| there        | none, or damaged       | any                   | goes on; the promise is written anew    |
| damaged      | there                  | reaches what was held | goes on; the state is written anew      |
| there        | there, not newer       | reaches what was held | goes on                                 |
| there        | newer                  | any                   | has lost its log: this is an older copy |
| any          | there                  | ends before that      | has lost its log                        |
| none         | there, ever written to | any                   | has lost its log                        |
| damaged      | none, or damaged       | any                   | does not start                          |
| none         | damaged                | any                   | does not start                          |
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import structlog

from strandline.controller.quorum.state_file import PROMISE, Remembered, StateFile
from strandline.controller.raft.log_summary import EMPTY
from strandline.controller.raft.messages import OffsetAndEpoch
from strandline.controller.raft.ready import ElectionState
from strandline.log.disk import Disk, DiskFull
from strandline.proto.errors import ConfigError, CorruptLogError
from strandline.proto.marks import mark
from strandline.proto.ports import Rng

log = structlog.get_logger("strandline.quorum")

LONE_ADVICE = (
    "This is the only controller: nobody else has the metadata. Put the directory back as it was. If it is gone, "
    "topics, settings and whose data the directories hold are gone with it: this cluster cannot go on. To begin a new "
    "one, move the whole data directory away and run `strandline format`"
)
RESTORE_ADVICE = (
    "It has no vote, and fetches everything from the other controllers. Once it has caught up, `strandline quorum "
    "restore-vote` with its node id gives it its vote back"
)


class Memory:
    """The two files of one node.

    Invariants:
    - the state is written before the promise, and both before anything that rests on them leaves this node: so the
      promise is never newer than the state, unless an older state was put back;
    - `held` never says more than the log has durably, and never goes back while the node keeps its log.
    """

    def __init__(self, disk: Disk, data_dir: str, directory: str, *, directory_id: UUID, promises: bool) -> None:
        """`promises`: this node's id is a voter's. Others have nothing to prove, and no second file."""
        self._directory = directory
        self._state = StateFile(disk, directory)
        self._promise = StateFile(disk, data_dir, PROMISE) if promises else None
        self._found: Remembered | None = None
        self.lost = ""
        """Reason why the log counts as lost, as far as the two files show; "": it does not."""
        self.now = Remembered(ElectionState(0), directory_id=directory_id)
        """Content of both files; before `settle`, what they said."""

    @property
    def saved(self) -> ElectionState | None:
        """State that the core is to go on from; None for a node that never voted, or votes no more under its old
        name."""
        return None if self._found is None else self.now.election

    @property
    def directory_id(self) -> UUID:
        """Directory id under which this node presents itself to the quorum."""
        if self.now.directory_id is None:
            raise ValueError("a memory has a directory id from the start")
        return self.now.directory_id

    def recall(self) -> None:
        """Read both files, before the log is opened.

        Raises:
            CorruptLogError: neither can be read.
        """
        damage: CorruptLogError | None = None
        state = promise = None
        try:
            state = self._state.read()
        except CorruptLogError as error:
            damage = error
        try:
            promise = None if self._promise is None else self._promise.read()
        except CorruptLogError as error:
            if state is None:
                raise  # of what it promised there is no other copy
            log.warning("the quorum's promise is damaged; it is written anew from the quorum's state", error=str(error))
        if damage is not None:
            if promise is None and self._promise is not None:
                raise damage
            log.warning("the quorum's state is damaged; it is written anew", error=str(damage))
            mark("quorum-state-restored")
            state = promise  # an observer has none: it starts as a new one
        self._found = state if promise is None or (state is not None and state.sequence > promise.sequence) else promise
        if self._found is not None:
            self.now = replace(self._found, directory_id=self._found.directory_id or self.now.directory_id)
        if promise is not None and promise.sequence:
            if state is None:
                self.lost = "its metadata directory is not there, or has no quorum-state"
            elif state.sequence < promise.sequence:  # rule A14/older-copy-goes-on
                self.lost = "its metadata directory is an older copy: its quorum-state is from before the last promise"

    def doubt(self, end_offset: int) -> None:
        """A tail of the log is about to be cut that ended before `end_offset`: it may have been acknowledged, and this
        node must know that from now on (rule A15). Raises DiskError."""
        if self._promise is None or self._found is None or self.lost:
            return  # no voter counts on it, or it is about to start as one on which none does
        mark("tail-in-doubt")
        log.warning(
            "the end of the metadata log is cut: a torn write, or damage, they look alike. Until this node has caught "
            "up, its vote for who may lack that end counts only together with those of all other controllers"
        )
        election = self.now.election
        # Of an epoch in which it knew no leader it has no records: it wrote the leader down before it fetched.
        epoch = election.epoch if election.leader_id is not None else max(0, election.epoch - 1)
        doubt = OffsetAndEpoch(end_offset, epoch)
        if election.doubt is not None and election.doubt.at_least(doubt):
            doubt = election.doubt
        self._write(replace(self.now, election=replace(election, doubt=doubt)))  # rule A15/cut-tail-is-intact

    def settle(self, log_end: OffsetAndEpoch, *, alone: bool, rng: Rng) -> None:
        """The log is open and ends at `log_end`: decide what the node is, and make both files say so.

        Raises:
            CorruptLogError: the only voter has lost its log.
            DiskError
        """
        lost = self.lost
        if self._found is None and self._promise is not None and log_end != EMPTY:
            lost = "its log has records, and neither quorum-state nor quorum-promise says how it voted"
        if not _reaches(log_end, self.now.held):  # rule A14/shorter-log-goes-on
            lost = lost or f"its log ends at {log_end}, and held everything before {self.now.held}"
        if not lost:  # rule A14/lost-log-keeps-its-vote
            self._write(self.now)
            return
        if alone:  # rule A14/lone-voter-begins-anew
            raise CorruptLogError(self._directory, 0, log_end.offset, f"the metadata log was lost: {lost}", LONE_ADVICE)
        mark("lost-log-observes")
        log.error(f"this node has lost its metadata log: {lost}. {RESTORE_ADVICE}")
        before = self.now
        former = (before.directory_id, before.election.epoch)
        if not before.has_vote:
            former = (before.former_id, before.former_epoch)
        fresh = UUID(int=rng.getrandbits(128), version=4)
        self._found = None
        self._write(Remembered(ElectionState(0), fresh, False, *former, sequence=before.sequence))

    def remember(self, election: ElectionState, held: OffsetAndEpoch) -> None:
        """Make a vote, an epoch or a leader durable. Raises DiskError."""
        furthest = held if _reaches(held, self.now.held) else self.now.held
        self._write(replace(self.now, election=election, held=furthest))

    def hold(self, held: OffsetAndEpoch) -> None:
        """Note that all before `held` is committed and durable here. A full disk leaves both files behind. Raises
        DiskError."""
        if held != self.now.held and _reaches(held, self.now.held):
            try:
                self._write(replace(self.now, held=held))
            except DiskFull:
                return

    def gain_vote(self, voters: int = 0) -> None:
        """Note that the voter set names this very directory, and of how many it is where voters come and go. Written
        when there is room for it. Raises DiskError."""
        if not self.now.has_vote or self.now.voters != voters:
            try:
                self._write(replace(self.now, has_vote=True, former_id=None, former_epoch=0, voters=voters))
            except DiskFull:
                return

    def force_vote(self) -> bool:
        """Take the vote back under the former name although the log was lost, or in full although it is in doubt: an
        operator's last resort, who accepts that committed metadata may be lost. After `recall`, on a node that does not
        run. False: it has its vote.

        Raises:
            ConfigError: it has no former name: it never voted.
            DiskError
        """
        before = self.now
        if before.has_vote and before.election.doubt is not None:
            self._write(replace(before, election=replace(before.election, doubt=None)))
            return True
        if before.has_vote:
            return False
        if before.former_id is None:
            allowed = "a node that has voted once; this one was formatted without a vote, and has to be given one"
            raise ConfigError("quorum-promise", self._directory, allowed)
        # An epoch in which neither the former voter nor this observer can have voted.
        epoch = max(before.former_epoch, before.election.epoch) + 1
        self._write(Remembered(ElectionState(epoch), before.former_id, held=before.held, sequence=before.sequence))
        return True

    def _write(self, remembered: Remembered) -> None:
        remembered = replace(remembered, sequence=self.now.sequence + 1)
        self._state.write(remembered)
        if self._promise is not None:  # rule A14/promise-not-kept-outside
            self._promise.write(remembered)
        self.now = remembered


def _reaches(end: OffsetAndEpoch, held: OffsetAndEpoch) -> bool:
    """Whether a log that ends so has what was held. That was committed, so both numbers only ever rise."""
    return end.offset >= held.offset and end.epoch >= held.epoch  # rule A14/held-is-compared-by-epoch-first
