"""Mutants of the quorum, rules A14 to A17: a voter without its log, a tail in doubt, replay first, bounds."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed, value

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
_ANY_MESSAGE = "tests/schedules/quorum/test_any_message.py"
_UNREPLAYABLE = "tests/schedules/quorum/test_unreplayable.py"
_FETCHED = "tests/controller/quorum/test_fetched.py"

LOST_LOG: tuple[Mutant, ...] = (
    one_change(
        "lost-log-keeps-its-vote",
        "A14: a voter that has lost its log goes on as another replica",
        always(),
        f"{_LOST_LOG}::test_49_a_voter_without_its_log[holds]",
        f"{_MEMORY}::test_row_of_the_table",
    ),
    one_change(
        "promise-not-kept-outside",
        "A14: the proof of a vote lies outside of the metadata directory",
        never(),
        f"{_LOST_LOG}::test_49_a_voter_without_its_log[holds]",
    ),
    one_change(
        "rotten-batch-is-sent-on",
        "A14: what is read of the metadata log is what was written",
        part("intact_end(data, header.base_offset, log.epochs, log.log_start_offset)", "(len(data), next_offset)"),
        f"{_SNAPSHOTS}::test_31_rot_in_what_was_replayed_reaches_no_other_node",
    ),
    Mutant(
        "damaged-latest-snapshot-ends-the-start",
        "A14: the snapshot before the latest stands in for it",
        (
            instead("raise"),
            removed(),
        ),
        (f"{_SNAPSHOTS}::test_31_a_bit_flips_in_the_latest_snapshot_alone",),
    ),
    one_change(
        "damaged-recovery-point-is-believed",
        "A14: a recovery point stands under a checksum",
        part("values.pop('crc') != _crc(values)", "not values.pop('crc')"),
        f"{_FILES}::test_recovery_point_tells_the_same_boot_from_another",
    ),
    one_change(
        "lone-voter-begins-anew",
        "A14: the only voter that has lost its log does not form an empty cluster",
        never(),
        f"{_MEMORY}::test_the_only_voter_that_lost_its_log_refuses",
    ),
    one_change(
        "older-copy-goes-on",
        "A14: a state older than the promise is an older copy",
        never(),
        f"{_MEMORY}::test_row_of_the_table",
    ),
    one_change(
        "shorter-log-goes-on",
        "A14: a log that ends before what was held is a lost one",
        never(),
        f"{_MEMORY}::test_row_of_the_table",
    ),
    one_change(
        "held-is-compared-by-epoch-first",
        "A14: what was held was committed: offset and epoch both only rise",
        part("end.offset >= held.offset and end.epoch >= held.epoch", "end.at_least(held)"),
        f"{_MEMORY}::test_row_of_the_table",
    ),
    one_change(
        "voteless-counts-where-no-directory-is-recorded",
        "A14: a replica without its log counts only where its directory is named",
        dropped("not (voteless and self.directory_id is None)"),
        f"{_LOST_LOG}::test_49_a_voter_without_its_log[holds]",
    ),
)

DOUBT: tuple[Mutant, ...] = (
    one_change(
        "cut-tail-is-intact",
        "A15: a voter that cut a tail is in doubt",
        removed(),
        f"{_DOUBT}::test_45_a_rotten_tail_of_the_metadata_log[holds]",
    ),
    one_change(
        "doubt-is-forgotten",
        "A15: the doubt outlives a restart",
        part("self.doubt", "None"),
        f"{_DOUBT}::test_45_a_rotten_tail_of_the_metadata_log[holds]",
    ),
    one_change(
        "vote-in-doubt-counts-in-full",
        "A15: a majority of votes beyond doubt, or all votes",
        value("True"),
        f"{_VOTES}::test_a15_a_vote_in_doubt_counts_only_with_all_others",
    ),
    one_change(
        "own-vote-in-doubt-counts-in-full",
        "A15: a candidate in doubt is no better than another voter",
        part("not node.is_in_doubt(node.log.end, now_ms)", "True"),
        f"{_VOTES}::test_a15_a_candidate_in_doubt_needs_all_others",
    ),
    one_change(
        "who-has-more-than-was-lost-is-doubted",
        "A15: a candidate whose log reaches beyond what was cut has a vote in full",
        dropped("not last.at_least(self.doubt)"),
        f"{_VOTES}::test_a15_a_candidate_that_has_more_than_was_lost_has_a_vote_in_full",
    ),
    one_change(
        "doubt-is-for-good",
        "A15: all of them together elect in spite of every doubt",
        value("False"),
        f"{_DOUBT}::test_a15_all_together_elect_in_spite_of_every_doubt",
    ),
    one_change(
        "doubt-ends-before-it-is-durable",
        "A15: the doubt ends when what was lost is durable again",
        dropped("self.log.durable_offset >= self._doubt_ends_at"),
        f"{_VOTES}::test_a15_the_doubt_ends_with_the_flush_that_covers_what_is_committed",
    ),
    one_change(
        "fetch-of-a-former-life-counts",
        "A15: a fetch of an earlier life counts no more, for that life may have held more",
        part("request.life < progress.life", "False"),
        f"{_VOTES}::test_a15_a_late_fetch_of_a_former_life_acknowledges_nothing",
    ),
)

VOTER_CHANGES: tuple[Mutant, ...] = (
    one_change(
        "two-voter-changes-at-once",
        "A11: a change of the voters waits until the last one is committed",
        dropped("node.voters_offset >= known"),
        f"{_VOTERS}::test_one_change_at_a_time",
    ),
    one_change(
        "voters-changed-before-the-epoch-commits",
        "A11: a change of the voters waits for a commit of the own epoch",
        part("known is None or node.voters_offset >= known", "known is not None and node.voters_offset >= known"),
        f"{_VOTERS}::test_one_change_at_a_time",
    ),
    one_change(
        "lagging-replica-is-added",
        "A11: the joiner has caught up as an observer",
        never(),
        f"{_VOTERS}::test_a_replica_that_lags_or_is_silent_is_not_added",
    ),
    one_change(
        "voter-with-its-log-is-removed",
        "A11: a voter that fetches is not removed",
        never(),
        f"{_LOST_LOG}::test_49_a_vote_is_not_taken_from_who_has_its_log",
    ),
    one_change(
        "too-few-voters-are-left",
        "A11: a majority of the places stays filled",
        never(),
        f"{_LOST_LOG}::test_49_a_vote_is_not_taken_from_who_has_its_log",
    ),
    one_change(
        "joiner-fetches-before-it-flushes",
        "A8: observers that may be promoted flush before they fetch",
        part("node.standing.may_vote", "False"),
        f"{_VOTERS}::test_an_observer_with_a_place_flushes_before_it_fetches",
        f"{_SIMULATION}::test_invariants_hold_over_lost_logs_and_voter_changes[True-1]",
    ),
    one_change(
        "truncated-voters-stay",
        "A11: a voter set that is cut counts no more",
        instead("break"),
        f"{_VOTERS}::test_an_observer_becomes_a_voter_where_the_log_names_it",
    ),
    one_change(
        "voters-count-from-their-commit-on",
        "A11: a voter set counts from its append on",
        removed(),
        f"{_VOTERS}::test_a_change_counts_from_its_append_on",
    ),
    one_change(
        "vacant-place-does-not-count",
        "A11: a vacant place counts in the majority",
        part("self.places", "self.keys"),
        f"{_VOTERS}::test_places_and_keys",
    ),
    one_change(
        "stale-voter-knows-best",
        "A11: a candidate whose voter set is newer may be a directory that the voter does not know",
        dropped("request.voters_offset > node.voters_offset"),
        f"{_VOTERS}::test_a_stale_voter_votes_for_a_directory_that_it_does_not_know",
    ),
    one_change(
        "stale-voter-follows-only-whom-it-knows",
        "A11: a leader may have been given its vote in a record that the voter lacks",
        part("not node.voters.believes(leader_id)", "not node.voters.contains_id(leader_id)"),
        f"{_VOTERS}::test_a_stale_voter_follows_a_leader_whose_place_is_vacant_to_it",
    ),
    one_change(
        "named-observer-waits-for-a-dead-leader",
        "A11: an observer that is asked by its name grants a pre-vote where its leader serves it no more",
        dropped("not self._served"),
        f"{_VOTERS}::test_an_observer_that_is_named_elects_another_where_its_leader_is_gone",
    ),
    one_change(
        "stranger-stands-for-election",
        "A17: only configured controllers stand for election",
        dropped("not node.voters.believes(request.candidate.node_id)"),
        f"{_VOTERS}::test_a_stranger_gets_no_vote",
    ),
    one_change(
        "open-directory-stays-open",
        "A11: which directory votes is recorded where the configuration leaves it open",
        never(),
        f"{_VOTERS}::test_a_directory_that_the_configuration_leaves_open_is_recorded",
    ),
    one_change(
        "snapshot-forgets-the-voters",
        "A11: a snapshot says who voted at its end",
        never(),
        f"{_FILES}::test_a_snapshot_says_who_voted",
        f"{_LOST_LOG}::test_49_a_vote_outlives_the_log_in_a_snapshot",
    ),
)

REPLAY: tuple[Mutant, ...] = (
    Mutant(
        "appended-before-it-is-replayed",
        "A16: a command's records are replayed before they are appended",
        (
            part("(FatalError, ValueError, TypeError)", "FatalError"),
            instead("return _Replayed(encoded, 0, MetadataDelta(state.image))\n..."),
        ),
        (f"{_ONE_MESSAGE}::test_61_a_record_that_cannot_be_replayed[holds]",),
    ),
    Mutant(
        "topic-id-is-taken-twice",
        "A16: no two topics have one id",
        (
            never(),
            part("_new_topic_id(state, topic.topic_id)", "topic.topic_id"),
            never(),
        ),
        (f"{_ONE_MESSAGE}::test_61_a_record_that_cannot_be_replayed[holds]",),
    ),
    one_change(
        "topic-id-is-used-again",
        "A16: no topic has the id of a deleted one",
        instead("if proposed != ZERO_UUID:\n    return proposed\nif True:\n    return UUID(int=drawn, version=4)"),
        "tests/controller/machine/test_topics.py::test_a_late_copy_of_a_creation_makes_another_topic",
        "tests/schedules/replication/test_topic_ids.py::test_69_a_creation_comes_again_after_the_deletion[holds]",
    ),
    one_change(
        "batch-of-any-size",
        "A16: what no batch may hold is refused to its caller",
        never(),
        f"{_ONE_MESSAGE}::test_61_more_than_a_batch_may_hold_is_refused",
    ),
    one_change(
        "refused-decision-is-tried-again-at-once",
        "A16: a refused decision of the controller's own rests a while",
        removed(),
        f"{_ONE_MESSAGE}::test_61_a_decision_of_the_controllers_own_that_is_refused_does_not_spin",
    ),
    one_change(
        "followers-append-what-they-cannot-replay",
        "A16: a voter appends nothing that it could not replay",
        always(),
        f"{_UNREPLAYABLE}::test_61_a_leader_appends_what_nobody_can_replay",
        f"{_FETCHED}::test_what_cannot_be_replayed_is_cut_off",
    ),
    one_change(
        "committed-record-is-refused-for-ever",
        "A16: what is committed is not refused any more",
        never(),
        f"{_UNREPLAYABLE}::test_61_one_node_that_cannot_replay_what_the_others_can_stops_alone",
        f"{_FETCHED}::test_what_is_committed_is_not_refused",
    ),
    one_change(
        "rehearsal-of-another-log",
        "A16: records are tried on what the log holds",
        part("self._end == end", "self._end is not None and self._end.offset == end.offset"),
        f"{_FETCHED}::test_the_rehearsal_begins_anew_where_the_log_took_another_way",
    ),
    one_change(
        "snapshot-replaces-the-log-untried",
        "A16: a snapshot that cannot be loaded replaces nothing",
        never(),
        f"{_FETCHED}::test_a_snapshot_that_cannot_be_loaded_replaces_nothing",
    ),
    one_change(
        "own-snapshot-is-trusted-unread",
        "A10: the log is deleted on the word of a snapshot that was read back",
        removed(),
        f"{_FETCHED}::test_the_log_stays_where_the_snapshot_cannot_be_loaded",
        f"{_FILES}::test_an_own_snapshot_is_read_back_before_it_exists",
    ),
)

BOUNDS: tuple[Mutant, ...] = (
    Mutant(
        "any-epoch-is-adopted",
        "A17: no request lifts an epoch beyond what elections can have reached",
        (
            always(),
            never(),
        ),
        (f"{_ONE_MESSAGE}::test_62_an_epoch_near_the_last[holds]",),
    ),
    one_change(
        "epoch-bound-climbs-with-the-claims",
        "A17: the bound stands on what was proven, not on what was claimed",
        part("node.proven_epoch", "node._saved.epoch"),
        f"{_ONE_MESSAGE}::test_62_epochs_that_only_climb_are_bounded_by_what_was_proven",
    ),
    one_change(
        "answers-prove-nothing",
        "A17: an epoch that a voter told when asked is proven",
        removed(),
        f"{_ROLES}::test_a17_who_is_far_behind_learns_by_asking",
    ),
    one_change(
        "every-answer-proves",
        "A17: an epoch counts as proven anew only now and then",
        removed(),
        f"{_ANY_MESSAGE}::test_62_nobody_climbs_by_having_the_voters_ask_each_other",
    ),
    one_change(
        "claimed-life-shuts-a-voter-out",
        "A17: who claims a later start of a living voter does not shut it out",
        removed(),
        f"{_ROLES}::test_a17_a_claimed_life_shuts_nobody_out",
        f"{_ANY_MESSAGE}::test_62_a_later_start_is_claimed_of_a_living_voter",
    ),
    one_change(
        "one-late-fetch-ends-a-leadership",
        "A17: a late fetch of an earlier life is only refused",
        removed(),
        f"{_ROLES}::test_a17_a_claimed_life_shuts_nobody_out",
    ),
    one_change(
        "another-leader-of-the-epoch-kills",
        "A17: another leader in an equal epoch is refused, and kills nobody",
        value("ensure(False, 'MonotonicEpoch')"),
        f"{_ONE_MESSAGE}::test_62_another_leader_in_an_equal_epoch[holds]",
    ),
    one_change(
        "state-that-cannot-be-read-back-is-written",
        "A17: nothing is made durable that cannot be read back",
        never(),
        f"{_FILES}::test_a17_a_state_that_could_not_be_read_back_is_not_written",
    ),
    one_change(
        "numbers-below-zero-reach-the-core",
        "A17: an epoch, an offset or an id below zero is refused where it is read",
        never(),
        "tests/proto/messages/test_mapper.py::test_what_is_no_such_message_is_refused",
    ),
    one_change(
        "the-zero-id-is-a-directory",
        "A11: a wiped directory has an id of its own, and zeros are none",
        dropped("data == ZERO_UUID.bytes"),
        "tests/proto/messages/test_mapper.py::test_what_is_no_such_message_is_refused",
    ),
    one_change(
        "observers-without-number",
        "A17: a leader remembers a bounded number of observers",
        part("len(self.observers) >= OBSERVERS_MAX", "False"),
        f"{_ROLES}::test_a17_a_leader_remembers_so_many_observers",
    ),
    one_change(
        "snapshot-bytes-without-limit",
        "A17: an answer holds no more bytes of a snapshot than the setting says",
        part("min(request.max_bytes, self.node.config.snapshot_chunk_bytes)", "request.max_bytes"),
        f"{_ROLES}::test_a17_an_answer_has_so_many_bytes_of_a_snapshot",
    ),
)

TABLE = (*LOST_LOG, *DOUBT, *VOTER_CHANGES, *REPLAY, *BOUNDS)
