"""Mutants of the quorum, rules A14 to A17: a voter without its log, a tail in doubt, replay first, bounds."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant, Patch, one_change

_ROLES = "tests/controller/raft/test_raft_roles.py"
_MEMORY = "tests/controller/quorum/test_quorum_memory.py"
_LOST_LOG = "tests/schedules/quorum/test_lost_log.py"
_VOTERS = "tests/controller/raft/test_raft_voters.py"
_SIMULATION = "tests/controller/raft/test_raft_simulation.py"
_DOUBT = "tests/schedules/quorum/test_tail_in_doubt.py"
_VOTES = "tests/controller/raft/test_raft_votes.py"
_SNAPSHOTS = "tests/schedules/quorum/test_snapshots.py"
_FILES = "tests/controller/quorum/test_quorum_files.py"
_ONE_MESSAGE = "tests/schedules/quorum/test_one_message.py"
_UNREPLAYABLE = "tests/schedules/quorum/test_unreplayable.py"
_FETCHED = "tests/controller/quorum/test_fetched.py"

LOST_LOG: tuple[Mutant, ...] = (
    one_change(
        "lost-log-keeps-its-vote",
        "A14: a voter that has lost its log goes on as another replica",
        "controller.quorum.memory:Memory.settle",
        "if not lost:",
        "if True:",
        f"{_LOST_LOG}::test_49_a_voter_without_its_log[holds]",
        f"{_MEMORY}::test_row_of_the_table",
    ),
    one_change(
        "promise-not-kept-outside",
        "A14: the proof of a vote lies outside of the metadata directory",
        "controller.quorum.memory:Memory._write",
        "if self._promise is not None:",
        "if False:",
        f"{_LOST_LOG}::test_49_a_voter_without_its_log[holds]",
    ),
    one_change(
        "rotten-batch-is-sent-on",
        "A14: what is read of the metadata log is what was written",
        "controller.quorum.metadata_log:MetadataLog._verify",
        "verify_crc(view)",
        "pass",
        f"{_SNAPSHOTS}::test_31_rot_in_what_was_replayed_reaches_no_other_node",
    ),
    one_change(
        "damaged-latest-snapshot-ends-the-start",
        "A14: the snapshot before the latest stands in for it",
        "controller.quorum.snapshots:SnapshotStore.open_latest",
        "damage = damage or error\n                continue",
        "raise",
        f"{_SNAPSHOTS}::test_31_a_bit_flips_in_the_latest_snapshot_alone",
    ),
    one_change(
        "damaged-recovery-point-is-believed",
        "A14: a recovery point stands under a checksum",
        "controller.quorum.recovery_point:RecoveryPoint.read",
        'if "crc" in values and values.pop("crc") != _crc(values):',
        'if "crc" in values and not values.pop("crc"):',
        f"{_FILES}::test_recovery_point_tells_the_same_boot_from_another",
    ),
    one_change(
        "lone-voter-begins-anew",
        "A14: the only voter that has lost its log does not form an empty cluster",
        "controller.quorum.memory:Memory.settle",
        "if alone:",
        "if False:",
        f"{_MEMORY}::test_the_only_voter_that_lost_its_log_refuses",
    ),
    one_change(
        "older-copy-goes-on",
        "A14: a state older than the promise is an older copy",
        "controller.quorum.memory:Memory.recall",
        "elif state.sequence < promise.sequence:",
        "elif False:",
        f"{_MEMORY}::test_row_of_the_table",
    ),
    one_change(
        "shorter-log-goes-on",
        "A14: a log that ends before what was held is a lost one",
        "controller.quorum.memory:Memory.settle",
        "if not _reaches(log_end, self.now.held):",
        "if False:",
        f"{_MEMORY}::test_row_of_the_table",
    ),
    one_change(
        "held-is-compared-by-epoch-first",
        "A14: what was held was committed: offset and epoch both only rise",
        "controller.quorum.memory:_reaches",
        "return end.offset >= held.offset and end.epoch >= held.epoch",
        "return end.at_least(held)",
        f"{_MEMORY}::test_row_of_the_table",
    ),
    one_change(
        "voteless-counts-where-no-directory-is-recorded",
        "A14: a replica without its log counts only where its directory is named",
        "controller.raft.messages:ReplicaKey.counts",
        "return self.admits(presented) and not (voteless and self.directory_id is None)",
        "return self.admits(presented)",
        f"{_LOST_LOG}::test_49_a_voter_without_its_log[holds]",
    ),
)

DOUBT: tuple[Mutant, ...] = (
    one_change(
        "cut-tail-is-intact",
        "A15: a voter that cut a tail is in doubt",
        "controller.quorum.memory:Memory.doubt",
        "self._write(replace(self.now, election=replace(election, doubt=doubt)))",
        "pass",
        f"{_DOUBT}::test_45_a_rotten_tail_of_the_metadata_log[holds]",
    ),
    one_change(
        "doubt-is-forgotten",
        "A15: the doubt outlives a restart",
        "controller.raft.core:RaftCore._remember",
        "doubt=self.doubt",
        "doubt=None",
        f"{_DOUBT}::test_45_a_rotten_tail_of_the_metadata_log[holds]",
    ),
    one_change(
        "vote-in-doubt-counts-in-full",
        "A15: a majority of votes beyond doubt, or all votes",
        "controller.raft.election:VoteRound.record",
        "self.granted[sent.to] = not vote.in_doubt",
        "self.granted[sent.to] = True",
        f"{_VOTES}::test_a15_a_vote_in_doubt_counts_only_with_all_others",
    ),
    one_change(
        "own-vote-in-doubt-counts-in-full",
        "A15: a candidate in doubt is no better than another voter",
        "controller.raft.election:VoteRound.__init__",
        "core.doubt is None or core.log.end.at_least(core.doubt)",
        "True",
        f"{_VOTES}::test_a15_a_candidate_in_doubt_needs_all_others",
    ),
    one_change(
        "who-has-more-than-was-lost-is-doubted",
        "A15: a candidate whose log reaches beyond what was cut has a vote in full",
        "controller.raft.requests:handle_request",
        "core.doubt is not None and not request.last.at_least(core.doubt)",
        "core.doubt is not None",
        f"{_VOTES}::test_a15_a_candidate_that_has_more_than_was_lost_has_a_vote_in_full",
    ),
    one_change(
        "doubt-is-for-good",
        "A15: all of them together elect in spite of every doubt",
        "controller.raft.election:VoteRound.won",
        "return len(self.granted) == len(voters.keys) >= voters.majority",
        "return False",
        f"{_DOUBT}::test_a15_all_together_elect_in_spite_of_every_doubt",
    ),
    one_change(
        "doubt-ends-before-it-is-durable",
        "A15: the doubt ends when what was lost is durable again",
        "controller.raft.core:RaftCore._end_doubt",
        "and self.log.durable_offset >= self._doubt_ends_at",
        "",
        f"{_VOTES}::test_a15_the_doubt_ends_with_the_flush_that_covers_what_is_committed",
    ),
    one_change(
        "fetch-of-a-former-life-counts",
        "A15: a fetch of an earlier life counts no more, for that life may have held more",
        "controller.raft.leader:Leader.on_fetch",
        "if request.life < progress.life and",
        "if False and",
        f"{_VOTES}::test_a15_a_late_fetch_of_a_former_life_acknowledges_nothing",
    ),
)

VOTER_CHANGES: tuple[Mutant, ...] = (
    one_change(
        "two-voter-changes-at-once",
        "A11: a change of the voters waits until the last one is committed",
        "controller.raft.voter_changes:_one_at_a_time",
        "if known is None or core.voters_offset >= known:",
        "if known is None:",
        f"{_VOTERS}::test_one_change_at_a_time",
    ),
    one_change(
        "voters-changed-before-the-epoch-commits",
        "A11: a change of the voters waits for a commit of the own epoch",
        "controller.raft.voter_changes:_one_at_a_time",
        "if known is None or core.voters_offset >= known:",
        "if known is not None and core.voters_offset >= known:",
        f"{_VOTERS}::test_one_change_at_a_time",
    ),
    one_change(
        "lagging-replica-is-added",
        "A11: the joiner has caught up as an observer",
        "controller.raft.voter_changes:_caught_up",
        "if now_ms - seen.last_caught_up_ms >= core.config.fetch_timeout_ms:",
        "if False:",
        f"{_VOTERS}::test_a_replica_that_lags_or_is_silent_is_not_added",
    ),
    one_change(
        "voter-with-its-log-is-removed",
        "A11: a voter that fetches is not removed",
        "controller.raft.voter_changes:_is_silent",
        "if now_ms - fetched_ms < patience_ms:",
        "if False:",
        f"{_LOST_LOG}::test_49_a_vote_is_not_taken_from_who_has_its_log",
    ),
    one_change(
        "too-few-voters-are-left",
        "A11: a majority of the places stays filled",
        "controller.raft.voter_changes:remove_voter",
        "if len(rest) < core.voters.majority:",
        "if False:",
        f"{_LOST_LOG}::test_49_a_vote_is_not_taken_from_who_has_its_log",
    ),
    one_change(
        "joiner-fetches-before-it-flushes",
        "A8: observers that may be promoted flush before they fetch",
        "controller.raft.observer:Observer.__init__",
        "after_flush=core.key.node_id in core.voters.places",
        "after_flush=False",
        f"{_VOTERS}::test_an_observer_with_a_place_flushes_before_it_fetches",
        f"{_SIMULATION}::test_invariants_hold_over_lost_logs_and_voter_changes[True-1]",
    ),
    one_change(
        "truncated-voters-stay",
        "A11: a voter set that is cut counts no more",
        "controller.raft.log_summary:LogSummary.truncate_to",
        "self._voters.pop()",
        "break",
        f"{_VOTERS}::test_an_observer_becomes_a_voter_where_the_log_names_it",
    ),
    one_change(
        "voters-count-from-their-commit-on",
        "A11: a voter set counts from its append on",
        "controller.raft.core:RaftCore.append_own",
        "self._voters_moved()",
        "pass",
        f"{_VOTERS}::test_a_change_counts_from_its_append_on",
    ),
    one_change(
        "vacant-place-does-not-count",
        "A11: a vacant place counts in the majority",
        "controller.raft.voters:VoterSet.majority",
        "len(self.places) // 2 + 1",
        "len(self.keys) // 2 + 1",
        f"{_VOTERS}::test_places_and_keys",
    ),
    one_change(
        "stale-voter-knows-best",
        "A11: a candidate whose voter set is newer may be a directory that the voter does not know",
        "controller.raft.requests:_on_vote",
        " or request.voters_offset > core.voters_offset",
        "",
        f"{_VOTERS}::test_a_stale_voter_votes_for_a_directory_that_it_does_not_know",
    ),
    one_change(
        "stale-voter-follows-only-whom-it-knows",
        "A11: a leader may have been given its vote in a record that the voter lacks",
        "controller.raft.requests:_on_begin",
        "request.leader_id not in core.voters.places",
        "not core.voters.contains_id(request.leader_id)",
        f"{_VOTERS}::test_a_stale_voter_follows_a_leader_whose_place_is_vacant_to_it",
    ),
    one_change(
        "named-observer-waits-for-a-dead-leader",
        "A11: an observer that is asked by its name grants a pre-vote where its leader serves it no more",
        "controller.raft.observer:Observer.may_grant",
        "return self._leader_id is None or not self._served",
        "return self._leader_id is None",
        f"{_VOTERS}::test_an_observer_that_is_named_elects_another_where_its_leader_is_gone",
    ),
    one_change(
        "stranger-stands-for-election",
        "A17: only configured controllers stand for election",
        "controller.raft.requests:_on_vote",
        " or request.candidate.node_id not in core.voters.places",
        "",
        f"{_VOTERS}::test_a_stranger_gets_no_vote",
    ),
    one_change(
        "open-directory-stays-open",
        "A11: which directory votes is recorded where the configuration leaves it open",
        "controller.raft.voter_changes:record_directories",
        "if keys != core.voters.keys:",
        "if False:",
        f"{_VOTERS}::test_a_directory_that_the_configuration_leaves_open_is_recorded",
    ),
    one_change(
        "snapshot-forgets-the-voters",
        "A11: a snapshot says who voted at its end",
        "controller.quorum.snapshots:encode_snapshot",
        "if voters is not None:",
        "if False:",
        f"{_FILES}::test_a_snapshot_says_who_voted",
        f"{_LOST_LOG}::test_49_a_vote_outlives_the_log_in_a_snapshot",
    ),
)

REPLAY: tuple[Mutant, ...] = (
    one_change(
        "appended-before-it-is-replayed",
        "A16: a command's records are replayed before they are appended",
        "controller.command_queue:CommandQueue._replayed",
        "except (FatalError, ValueError, TypeError) as error:",
        "except FatalError as error:\n            return _Replayed(encoded, 0, MetadataDelta(state.image))",
        f"{_ONE_MESSAGE}::test_61_a_record_that_cannot_be_replayed[holds]",
    ),
    Mutant(
        "topic-id-is-taken-twice",
        "A16: no two topics have one id",
        (
            Patch("controller.machine.topics:_create_topic", "if owner is not None:", "if False:"),
            Patch("controller.metadata.delta:MetadataDelta._topic", "if record.topic_id in by_id:", "if False:"),
        ),
        (f"{_ONE_MESSAGE}::test_61_a_record_that_cannot_be_replayed[holds]",),
    ),
    one_change(
        "batch-of-any-size",
        "A16: what no batch may hold is refused to its caller",
        "controller.command_queue:CommandQueue._replayed",
        "if size + _RECORD_OVERHEAD_BYTES * len(encoded) > self._quorum.max_append_bytes:",
        "if False:",
        f"{_ONE_MESSAGE}::test_61_more_than_a_batch_may_hold_is_refused",
    ),
    one_change(
        "refused-decision-is-tried-again-at-once",
        "A16: a refused decision of the controller's own rests a while",
        "controller.controller:Controller._before_turn",
        "self._hold_off_until_ms = now_ms + HOLD_OFF_MS",
        "pass",
        f"{_ONE_MESSAGE}::test_61_a_decision_of_the_controllers_own_that_is_refused_does_not_spin",
    ),
    one_change(
        "followers-append-what-they-cannot-replay",
        "A16: a voter appends nothing that it could not replay",
        "controller.quorum.fetched:Fetched.judged",
        "if not response.batches or request.fetch_offset != self._log.end_offset:",
        "if True:",
        f"{_UNREPLAYABLE}::test_61_a_leader_appends_what_nobody_can_replay",
        f"{_FETCHED}::test_what_cannot_be_replayed_is_cut_off",
    ),
    one_change(
        "committed-record-is-refused-for-ever",
        "A16: what is committed is not refused any more",
        "controller.quorum.fetched:Fetched.judged",
        "if fetched.next_offset <= response.high_watermark:",
        "if False:",
        f"{_UNREPLAYABLE}::test_61_one_node_that_cannot_replay_what_the_others_can_stops_alone",
        f"{_FETCHED}::test_what_is_committed_is_not_refused",
    ),
    one_change(
        "rehearsal-outlives-a-truncation",
        "A16: records are tried on what the log holds",
        "controller.quorum.fetched:Fetched._stands_at",
        "if self._next == offset:",
        "if self._next >= offset:",
        f"{_FETCHED}::test_after_a_truncation_the_rehearsal_begins_anew",
    ),
    one_change(
        "snapshot-replaces-the-log-untried",
        "A16: a snapshot that cannot be loaded replaces nothing",
        "controller.quorum.driver:Driver._try",
        "if self._fetched is not None:",
        "if False:",
        f"{_FETCHED}::test_a_snapshot_that_cannot_be_loaded_replaces_nothing",
    ),
    one_change(
        "own-snapshot-is-trusted-unread",
        "A10: the log is deleted on the word of a snapshot that was read back",
        "controller.quorum.snapshots:SnapshotStore.write",
        "check(_load(self._disk, part))",
        "pass",
        f"{_FETCHED}::test_the_log_stays_where_the_snapshot_cannot_be_loaded",
        f"{_FILES}::test_an_own_snapshot_is_read_back_before_it_exists",
    ),
)

BOUNDS: tuple[Mutant, ...] = (
    Mutant(
        "any-epoch-is-adopted",
        "A17: no request lifts an epoch beyond what elections can have reached",
        (
            Patch(
                "controller.raft.requests:_unreachable",
                "if epoch <= min(core.proven_epoch + EPOCH_LEAD_MAX, EPOCH_MAX):",
                "if True:",
            ),
            Patch("controller.raft.core:RaftCore.learn", "if epoch > EPOCH_MAX:", "if False:"),
        ),
        (f"{_ONE_MESSAGE}::test_62_an_epoch_near_the_last[holds]",),
    ),
    one_change(
        "epoch-bound-climbs-with-the-claims",
        "A17: the bound stands on what was proven, not on what was claimed",
        "controller.raft.requests:_unreachable",
        "core.proven_epoch + EPOCH_LEAD_MAX",
        "core.epoch + EPOCH_LEAD_MAX",
        f"{_ONE_MESSAGE}::test_62_epochs_that_only_climb_are_bounded_by_what_was_proven",
    ),
    one_change(
        "answers-prove-nothing",
        "A17: an epoch that a voter told when asked is proven",
        "controller.raft.core:RaftCore._on_response",
        "self.proven_epoch = self.epoch",
        "pass",
        f"{_ROLES}::test_a17_who_is_far_behind_learns_by_asking",
    ),
    one_change(
        "another-leader-of-the-epoch-kills",
        "A17: another leader in an equal epoch is refused, and kills nobody",
        "controller.raft.core:RaftCore.learn",
        'mark("second-leader-refused")',
        'raise FatalError("two leaders in one epoch")',
        f"{_ONE_MESSAGE}::test_62_another_leader_in_an_equal_epoch[holds]",
    ),
    one_change(
        "state-that-cannot-be-read-back-is-written",
        "A17: nothing is made durable that cannot be read back",
        "controller.quorum.state_file:StateFile.write",
        "if not _reads_back(data, state):",
        "if False:",
        f"{_FILES}::test_a17_a_state_that_could_not_be_read_back_is_not_written",
    ),
    one_change(
        "observers-without-number",
        "A17: a leader remembers a bounded number of observers",
        "controller.raft.leader:Leader._progress",
        "len(self.observers) >= OBSERVERS_MAX",
        "False",
        f"{_ROLES}::test_a17_a_leader_remembers_so_many_observers",
    ),
    one_change(
        "snapshot-bytes-without-limit",
        "A17: an answer holds no more bytes of a snapshot than the setting says",
        "controller.raft.leader:Leader.on_fetch_snapshot",
        "min(request.max_bytes, self.core.config.snapshot_chunk_bytes)",
        "request.max_bytes",
        f"{_ROLES}::test_a17_an_answer_has_so_many_bytes_of_a_snapshot",
    ),
)

TABLE = (*LOST_LOG, *DOUBT, *VOTER_CHANGES, *REPLAY, *BOUNDS)
