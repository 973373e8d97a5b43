"""Coverage marks: production code says that a rare branch was reached, and tests and simulator runs ask whether.

A fault injector that never reaches the dangerous branches proves nothing. `mark` stands where a rare decision is taken
(a refused vote, a truncation, an election from the eligible leader replicas), never on the path of a record. Counts are
those of this process since the last `reset`; all nodes of a simulated cluster share them.
"""

from __future__ import annotations

MARKS: dict[str, str] = {
    # the metadata quorum
    "pre-vote-refused": "a voter that has heard of its leader lately refused a pre-vote",
    "vote-refused-log-behind": "a voter refused a candidate whose log is behind its own",
    "vote-refused-directory": "a vote was refused because the node has another directory id than the voter set says",
    "epoch-refused": "a request was refused because no elections can have reached the epoch that it names",
    "second-leader-refused": "a peer named another leader in an epoch that has one, and was not believed",
    "committed-stays": "a quorum node kept committed records that its leader would have had it cut",
    "lost-log-observes": "a voter that had lost its log started as an observer, under a new directory id",
    "quorum-state-restored": "a damaged quorum-state file was written anew from the promise outside its directory",
    "voters-changed": "a quorum node took over another voter set from its log, or went back to an older one",
    "voter-removed": "a voter whose log was lost was taken out of the voter set",
    "voter-added": "a replica that had caught up was given a vacant place in the voter set",
    "voter-directory-recorded": "a leader recorded which directory votes where the configuration leaves it open",
    "tail-in-doubt": "a voter cut a tail of its metadata log that it may have acknowledged",
    "vote-in-doubt": "a vote was granted by a voter in doubt: it counted only together with those of all",
    "doubt-ended": "a voter in doubt had caught up with a leader, and its vote counted in full again",
    "snapshot-damaged-dropped": "a damaged metadata snapshot was dropped at the start, an older one being whole",
    "metadata-rot-found": "a quorum node met a rotten batch in its own metadata log, and stopped",
    "snapshot-not-kept": "a quorum node wrote a metadata snapshot that could not be loaded, and kept its log instead",
    "unreplayable-not-appended": "a voter did not append what its leader sent, because it could not have replayed it",
    "check-quorum-resign": "a quorum leader resigned because a majority of voters had not fetched",
    "false-life-resign": "a quorum leader resigned because a later start of a living voter had been claimed",
    "restarted-as-leader": "a quorum node that had led came back as resigned in its epoch",
    "quorum-diverging": "a quorum leader found a follower's log diverging",
    "quorum-truncated": "a quorum node cut records that an older leader had appended",
    "quorum-snapshot-taken": "a quorum node wrote a snapshot of its metadata",
    "quorum-snapshot-installed": "a quorum node that was too far behind installed its leader's snapshot",
    "sync-not-waited-for": "a sync outlasted the wait of the event loop, and the next ones are not waited for",
    "quorum-disk-busy": "a quorum node held its vote back because a sync under way took long",
    "quorum-disk-full": "a quorum node held its vote back because its disk had no room to make it durable",
    # the controller
    "unreplayable-refused": "a command was refused, because no node could have replayed its records",
    "elected-from-isr": "an election moved a partition's leadership to another in-sync replica",
    "elected-from-elr": "the ISR being empty, an eligible leader replica was elected",
    "elected-in-doubt": "every member of the last ISR whose log was cut being back, the greatest log was elected",
    "elected-last-known-leader": "ISR and ELR being empty, the last known leader was elected (flush.policy=replicate)",
    "elected-unclean": "an unclean election was held: committed records may be lost",
    "partition-leaderless": "a partition was left without a leader: no acceptable replica was eligible",
    "elr-grew": "the ISR fell below min.insync.replicas, and those who left it stayed eligible",
    "members-in-doubt-wait": "nobody was elected: a member of the last ISR in doubt is away, or has not reported",
    "empty-log-in-doubt-waits": "nobody was elected: the greatest log in doubt is empty, others may hold more",
    "member-in-doubt": "a broker registered again with a log that was cut, or gone: it left ISR and ELR, and waits",
    "member-lost": "a broker registered again without what it had: it counts for nothing before it has caught up",
    "disk-lost": "a broker registered again with another data directory: it has nothing of what it had",
    "older-copy": "a broker registered again with an older copy of its data directory",
    "directory-away": "a broker registered again while one of its directories, with a replica in it, was offline",
    "records-of-no-leader": "a broker registered again with records of a leader epoch that there has not been",
    "registration-of-the-past": "a registration named another incarnation than is registered, and changed nothing",
    "disk-without-room": "a broker found its disk full",
    "replica-without-room": "a broker said that the directory of a replica, one of several, is full, or has room again",
    "directory-offline": "a log directory, one of several, could not be opened, or failed: the node went on without it",
    "main-directory-by-content": "the directory with a node's metadata stood behind others in log.dirs, and counted",
    "replica-away": "a replica was offline from the start, because its directory was",
    "replica-of-lost-directory": "a replica counted as lost, because another directory is where its directory was",
    "replica-moved": "a replica was moved to another log directory of its node",
    "move-begun-anew": "a copy of a replica for another directory began anew, because its log was cut meanwhile",
    "move-given-up": "a replica on its way to another directory stayed where it was",
    "move-refused": "a replica could not be moved to another directory: it is not there, or that is offline or full",
    "move-cancelled": "a replica on its way to another directory was told to stay",
    "read-again-after-a-move": "a read waited for the disk while its replica was moved, and was begun anew",
    "replica-in-two-directories": "a replica was found in two directories, and one of them was renamed aside",
    "older-copy-of-one-directory": "one of several directories was an older copy, and its replicas counted as lost",
    "cut-without-room": "a log could not be cut yet: there was no room to lower the checkpoints",
    "checkpoint-overtaken": "a checkpoint was gathered anew: what it said was taken back while it was being synced",
    "batch-packed-off-the-loop": "a batch of another codec than its topic's was packed anew in a thread",
    "logs-made-in-turns": "there were more logs to make than a turn of the event loop has time for",
    "log-made-with-room": "a replica whose log could not be made on a full disk got one, without a restart",
    "replica-rotten": "a broker said that a replica has rotted, or is whole again",
    "replica-unserved": "a broker said that it cannot serve a replica, which left the ISR",
    "broker-without-room": "a broker said that its disk is full, and left the ISRs where others have room",
    "broker-has-room-again": "a broker that had said that its disk is full has room again",
    "duplicate-registration": "a registration was refused, because another process of that id has a live session",
    "another-process-answers": "a probe of a broker whose stream is open was answered by another process of it",
    "registration-displaced": "a fenced broker was registered no more, and registered once more",
    "controlled-shutdown": "a broker handed its leaderships over before it stopped",
    "broker-fenced": "a broker that was silent too long, or whose process was gone, was fenced",
    "silent-broker-fenced": "a broker that answered no probe in time was fenced before its session ended",
    "alter-partition-fenced": "an ISR change of a leader of an older leader epoch was refused",
    "alter-partition-stale": "an ISR change based on an older partition epoch was refused",
    "alter-partition-ineligible": "an ISR change with a fenced or stopping broker, or one registered anew, was refused",
    "alter-partition-newer": "an ISR change that knows more than this controller was refused: the controller is stale",
    # replicas
    "isr-shrunk": "a leader saw its ISR shrink",
    "isr-expanded": "a leader saw its ISR grow",
    "isr-change-withdrawn": "a leader withdrew a proposed ISR change: the controller found a member ineligible",
    "not-enough-replicas": "an append was refused because the ISR was below min.insync.replicas: nothing was written",
    "not-enough-replicas-after-append": "a batch was committed while the ISR was below min.insync.replicas",
    "leadership-lost-while-waiting": "leadership was lost while a batch waited for the high watermark",
    "fenced-zombie": "a replica that asks in another leader epoch than the leader's was refused",
    "replica-diverging": "a leader found that a follower's log is no prefix of its own",
    "diverged-over-epochs": "a follower had to ask more than once to find where its log diverges",
    "truncated": "a follower cut a diverging log",
    "truncated-below-high-watermark": "a follower cut below its high watermark, as an unclean election allows",
    "truncation-refused": "a follower kept its log rather than cut committed records that its leader lacks",
    "batch-in-pieces": "a leader sent a follower a batch in pieces, since it is larger than a chunk",
    "restarted-at-log-start": "a follower dropped its whole log, since the leader's begins after it",
    "stray-set-aside": "the directory of a partition that is assigned here no longer was renamed aside at a start",
    "rot-found": "a batch that was read from a log was not the one that was written, and went to nobody",
    "rotten-log-set-aside": "a log that recovery had refused was set aside and fetched again",
    "scrubbed": "a broker has read all its logs and looked for rot",
    "healed-before-a-cut": "a log was to be cut inside of what has rotted, or behind it, which is healed first",
    "rot-healed": "a log that had rotted is whole again",
    "replication-throttled-at-the-follower": "a replica out of the ISR was fetched no more until the quota had room",
    "replication-throttled-at-the-leader": "a replica out of the ISR was sent nothing until the quota had room",
    "rot-stays": "a leader could not give a replica what had rotted there",
    "rot-mended": "what had rotted in a log was written anew with the leader's batches",
    "log-offline": "a partition went offline because its log cannot be used",
    "unclean-election-asked-for": "an operator asked for an unclean election of a partition that nobody led",
    "vote-forced": "an operator let a controller vote whose log had been cut: nobody was elected otherwise",
    # the log
    "log-begins-inside-a-batch": "an empty log took a batch that begins before its start and reaches beyond it",
    "log-start-to-be-made-durable-again": "a log began inside a batch, before a start that was durable",
    "tier-rot-found": "an object of the object store was not what was written, and went to nobody",
    "torn-tail-cut": "recovery cut a torn batch off the end of a log",
    "log-lacking": "a log ends below what the directory's own checkpoints prove, or its directory is missing",
    "written-again": "recovery wrote batches again that another process of this boot had left, and synced them",
    "damage-refused": "recovery found damage that is no torn tail, and refused to use the log",
    "time-index-rotten": "a time index made a segment look older than its batches say, and was built anew",
    "recovery-point-damaged": "a quorum node found its metadata log's recovery point damaged, and did without",
    "checkpoint-damaged": "a start found an offset checkpoint damaged, and went by its copy or by the logs",
    "checkpoint-copy-damaged": "a start found the copy of its checkpoints damaged, and wrote it anew",
    "checkpoints-differ": "a checkpoint and its copy differed at a start: the lower offsets counted",
    "log-start-not-believed": "one file alone said where a log begins, and was not believed",
    "epochs-rotten": "a leader epoch checkpoint contradicted the log's batches, and was built anew",
    "clean-start": "logs were opened after a clean shutdown, without recovery",
    "segment-rolled": "a log began a new segment",
    "records-expired": "retention took records from the front of a log",
    "local-records-expired": "retention took records from the disks that are in the object store",
    "segment-tiered": "a leader copied a segment to the object store, and the controller added it to the tier",
    "tier-copy-failed": "a segment was not copied to the object store, and is tried again",
    "tier-change-refused": "the controller refused a segment that a leader had copied, and the reaper has it",
    "tier-delete-failed": "objects of a segment that was forgotten were not deleted, and were left to the reaper",
    "tier-read-takes-long": "a fetch was answered without what the object store had not given yet",
    "tier-read-failed": "the object store did not give what a client wanted to read",
    "unclean-leader-begins-at-the-tier": "a new leader lacked what is in the object store, and began anew behind it",
    "producers-from-the-tier": "a log that begins behind what is in the object store learned its producers from there",
    "producers-wait-for-the-tier": "a replica waited to learn the producers of what lies before its log",
    "deleted-topic-reaped": "the objects of a deleted topic were deleted",
    "orphans-reaped": "objects that no metadata name were found in the object store",
    "timestamp-of-the-future": "retention went by when a segment was written, its newest time being of no use",
    "gap-from-its-middle": "a follower took the rest of a gap that its leader's compaction had left",
    "log-compacted": "segments of a log were replaced by what compaction left of them",
    "log-uncleanable": "compaction met what it cannot read, and leaves the log alone",
    "swap-finished-at-start": "a start finished the swap of compacted segments that was cut short",
    "swap-given-up": "a swap of compacted segments was given up, or finished, because the log was cut meanwhile",
    "tombstone-removed": "compaction took a tombstone whose time was over",
    "wall-clock-jumped-ahead": "the wall clock was set ahead, and retention did not believe it",
    "no-room-to-begin-anew": "all records of a log were deleted, and its last segment stayed for want of room",
    "producer-state-from-snapshot": "producer state was taken from a snapshot",
    "producer-state-rolled-back": "a truncation rolled the state of producers back",
    "disk-full": "an append was refused because the disk is full",
    "sync-hung": "a sync did not end, and the node that waited for it gave up what it led",
    "sync-failed": "a sync failed, and the log was closed to writes",
    "write-failed": "a write failed with an I/O error",
    "read-failed": "a read failed with an I/O error",
    # groups and clients
    "offsets-of-deleted-topic-dropped": "a coordinator dropped offsets of a topic that went while it did not serve",
    "topic-made-anew": "a consumer found that another topic has the name of the one that it had read",
    # idempotence
    "duplicate-batch": "a batch that was in the log already was answered with its original offsets",
    "behind-a-refusal": "a batch was refused because an earlier one of its producer was, and has not come again yet",
    "refused-before-there-was-a-log": "a batch came for a partition whose broker had refused one before it knew of it",
    "out-of-order-sequence": "a batch was refused because batches of its producer before it are missing",
}
"""name -> what it says that a run reached."""

_counts: dict[str, int] = dict.fromkeys(MARKS, 0)


def mark(name: str) -> None:
    """Count one arrival.

    Raises:
        KeyError: no such mark is declared in `MARKS`.
    """
    _counts[name] += 1


def counts() -> dict[str, int]:
    """How often each mark was reached since the last `reset`; those that never were are there with 0."""
    return dict(_counts)


def reset() -> None:
    """Begin counting anew."""
    _counts.update(dict.fromkeys(MARKS, 0))
