"""Mutants of the quorum, rules A1 to A6: durable state, votes, pre-votes, check-quorum, the start of an epoch."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed, value

_RAFT = "tests/controller/raft"
_VOTES = f"{_RAFT}/test_raft_votes.py"
_LEADER = f"{_RAFT}/test_raft_leader.py"
_ROLES = f"{_RAFT}/test_raft_roles.py"
_FILES = "tests/controller/quorum/test_quorum_files.py"
_SCHEDULES = "tests/schedules/quorum"

DURABLE_STATE: tuple[Mutant, ...] = (
    one_change(
        "vote-not-durable",
        "A1: epochs, votes and leaders are durable before anyone hears of them",
        removed(),
        f"{_FILES}::test_quorum_state_comes_back",
        f"{_SCHEDULES}/test_durable_state.py::test_a1_a_vote_survives_the_loss_of_power",
    ),
    one_change(
        "small-file-not-synced",
        "A1: a small file is synced before its rename",
        removed(),
        f"{_SCHEDULES}/test_durable_state.py::test_a1_a_vote_survives_the_loss_of_power",
    ),
    one_change(
        "small-file-name-not-synced",
        "A1: the directory is synced after the rename",
        removed(),
        f"{_SCHEDULES}/test_durable_state.py::test_a1_a_vote_survives_the_loss_of_power",
    ),
    one_change(
        "small-file-written-in-place",
        "A1: a small file is replaced by rename, never written over",
        part("path + '.tmp'", "path"),
        f"{_SCHEDULES}/test_durable_state.py::test_a1_a_power_cut_at_any_instant_leaves_the_old_state_or_the_new",
    ),
    one_change(
        "vote-sent-before-it-is-durable",
        "A1: the vote is durable before its answer leaves",
        part(
            "self._durable.memory.remember(ready.persist, self._held())",
            "self._loop.call_later(0.005, self._durable.memory.remember, ready.persist, self._held())",
        ),
        f"{_SCHEDULES}/test_durable_state.py::test_a1_a_vote_survives_the_loss_of_power",
    ),
    one_change(
        "vote-not-persisted",
        "A1: a vote given is part of the durable state",
        instead("if role.voted_for is None:\n    ..."),
        f"{_VOTES}::test_a1_a_vote_is_persisted_in_the_very_ready_that_sends_it",
    ),
    one_change(
        "leader-not-persisted",
        "A1: the known leader of an epoch is part of the durable state",
        instead("if role.leader_id is None:\n    ..."),
        f"{_VOTES}::test_a1_every_change_of_epoch_vote_or_leader_is_persisted",
    ),
    one_change(
        "damaged-state-is-no-state",
        "A1: a damaged quorum-state file stops the node",
        instead("return None\n..."),
        f"{_FILES}::test_a_damaged_quorum_state_is_refused_with_file_and_advice",
    ),
    one_change(
        "restarted-leader-forgets-that-it-led",
        "A2: who led comes back as Resigned in the same epoch",
        part("Event.STARTED_AS_LEADER", "Event.STARTED"),
        f"{_VOTES}::test_a2_restart",
        f"{_VOTES}::test_a2_no_second_vote_after_a_restart",
    ),
    one_change(
        "restarted-candidate-only-waits",
        "A2: who voted for itself comes back as Candidate in the same epoch",
        never(),
        f"{_VOTES}::test_a2_restart",
    ),
    one_change(
        "restart-forgets-the-vote",
        "A2: a vote given before a restart still counts",
        value("None"),
        f"{_VOTES}::test_a2_no_second_vote_after_a_restart",
    ),
    one_change(
        "restart-forgets-a-leader-of-old",
        "A2: a leader that is no voter any more still had this node's epoch",
        removed(),
        f"{_VOTES}::test_a2_no_second_vote_after_a_restart",
    ),
    one_change(
        "restart-in-an-epoch-before-the-logs",
        "A2: a quorum state older than the log counts for nothing",
        never(),
        f"{_VOTES}::test_a2_restart",
    ),
)

VOTES: tuple[Mutant, ...] = (
    one_change(
        "stale-candidate-is-heard",
        "A3: a vote of an older epoch is fenced",
        never(),
        f"{_VOTES}::test_a3_errors_of_vote",
    ),
    one_change(
        "candidate-with-records-of-its-own-epoch",
        "A3: a candidate's log cannot hold records of the epoch it stands for",
        dropped("request.last.epoch > last_epoch_max"),
        f"{_VOTES}::test_a3_errors_of_vote",
    ),
    one_change(
        "vote-for-any-log",
        "A3: a vote goes to a candidate whose log is not behind",
        value("True"),
        f"{_VOTES}::test_a3_only_a_candidate_with_a_log_not_behind_ours",
        f"{_SCHEDULES}/test_elections.py::test_a3_the_longer_of_two_logs_is_elected",
    ),
    one_change(
        "vote-by-length-of-log",
        "A3: logs are compared by epoch first, then by length",
        part("(self.epoch, self.offset) >= (other.epoch, other.offset)", "self.offset >= other.offset"),
        f"{_VOTES}::test_a3_only_a_candidate_with_a_log_not_behind_ours",
    ),
    one_change(
        "two-votes-an-epoch",
        "A3: one vote an epoch",
        value("True"),
        f"{_VOTES}::test_a3_one_vote_an_epoch_and_again_to_the_same_candidate",
    ),
    one_change(
        "no-vote-again-for-the-same",
        "A3: the same candidate is granted again",
        dropped("self._voted_for == request.candidate"),
        f"{_VOTES}::test_a3_one_vote_an_epoch_and_again_to_the_same_candidate",
    ),
    one_change(
        "vote-for-an-id-not-a-directory",
        "A3: a vote is for an id and its directory",
        part("self._voted_for == request.candidate", "self._voted_for.node_id == request.candidate.node_id"),
        f"{_SCHEDULES}/test_elections.py::test_a3_a_vote_is_for_one_directory",
    ),
    one_change(
        "prospective-forgets-the-leader",
        "A3: no vote where the epoch's leader is known (Prospective)",
        never(),
        f"{_VOTES}::test_a3_nor_does_a_prospective_that_knows_the_epochs_leader",
    ),
    one_change(
        "prospective-forgets-its-vote",
        "A3: one vote an epoch (Prospective)",
        value("True"),
        f"{_VOTES}::test_a3_nor_does_a_prospective_that_knows_the_epochs_leader",
    ),
    one_change(
        "follower-votes-in-its-leaders-epoch",
        "A3: no vote where the epoch's leader is known (Follower)",
        dropped("request.pre_vote"),
        f"{_VOTES}::test_a4_a_follower_never_gives_a_real_vote_in_its_leaders_epoch",
    ),
    one_change(
        "candidate-votes-for-another",
        "A3: one vote an epoch (Candidate)",
        dropped("request.pre_vote"),
        f"{_VOTES}::test_a2_no_second_vote_after_a_restart",
    ),
    one_change(
        "resigned-votes-in-the-epoch-it-led",
        "A3: no vote in an epoch that this node led (Resigned)",
        dropped("request.pre_vote"),
        f"{_VOTES}::test_a2_no_second_vote_after_a_restart",
    ),
    Mutant(
        "a-minority-elects",
        "A3: a leader has the votes of a majority",
        (
            always(),
            part("not (self.won and self.lost)", "True"),
            part("len(granting) >= self.node.voters.majority", "True"),
        ),
        (
            f"{_VOTES}::test_a4_no_epoch_is_opened_without_a_majority_of_pre_votes",
            f"{_SCHEDULES}/test_elections.py::test_a3_a_minority_elects_nobody",
        ),
    ),
    one_change(
        "second-leader-of-an-epoch-is-borne",
        "A3: an epoch has one leader: who names another is refused",
        never(),
        f"{_ROLES}::test_another_leader_in_an_epoch_is_not_believed",
    ),
    one_change(
        "stale-leader-is-followed",
        "A3: BeginQuorumEpoch of an older epoch is fenced",
        never(),
        f"{_ROLES}::test_begin_and_end_of_an_epoch_are_judged",
    ),
    one_change(
        "stale-resignation-is-heard",
        "A3: EndQuorumEpoch of an older epoch is fenced",
        never(),
        f"{_ROLES}::test_begin_and_end_of_an_epoch_are_judged",
    ),
    one_change(
        "higher-epoch-restarts-the-election-timer",
        "A3: a higher epoch keeps the running election timer",
        value("None"),
        f"{_VOTES}::test_a3_a_higher_epoch_keeps_the_election_timer_and_a_vote_resets_it",
    ),
    one_change(
        "vote-does-not-reset-the-election-timer",
        "A3: granting a vote resets the election timer",
        part(
            "Move(Event.VOTE_GRANTED, self.epoch, voted_for=request.candidate)",
            "Move(Event.VOTE_GRANTED, self.epoch, voted_for=request.candidate, "
            "election_deadline_ms=self.role.election_deadline_ms())",
        ),
        f"{_VOTES}::test_a3_a_higher_epoch_keeps_the_election_timer_and_a_vote_resets_it",
    ),
    one_change(
        "non-voters-do-not-vote",
        "A3: a non-voter votes too, its voter set may be stale",
        always(),
        f"{_VOTES}::test_a3_an_observer_votes_when_asked_by_its_very_key",
    ),
    one_change(
        "pre-vote-is-a-vote",
        "A4: a pre-vote changes no state",
        dropped("not request.pre_vote"),
        f"{_VOTES}::test_a4_a_pre_vote_changes_no_state",
    ),
    one_change(
        "follower-grants-any-pre-vote",
        "A4: a follower that its leader serves refuses a pre-vote",
        dropped("self._suspects or not self._has_fetched"),
        f"{_VOTES}::test_a4_a_follower_refuses_only_while_its_own_leader_serves_it",
    ),
    one_change(
        "follower-refuses-before-it-has-fetched",
        "A4: a follower that has never fetched refuses no pre-vote",
        dropped("not self._has_fetched"),
        f"{_VOTES}::test_a4_a_follower_refuses_only_while_its_own_leader_serves_it",
    ),
    one_change(
        "leader-grants-pre-votes",
        "A4: a leader grants no pre-vote",
        value("request.pre_vote and up_to_date"),
        f"{_SCHEDULES}/test_elections.py::test_a4_a_leader_grants_no_pre_vote",
    ),
    one_change(
        "no-pre-vote",
        "A4: no epoch is opened without a majority of pre-votes",
        part("self._judge(now_ms)", "Move(Event.PRE_VOTE_WON, self.epoch + 1)"),
        f"{_VOTES}::test_a4_no_epoch_is_opened_without_a_majority_of_pre_votes",
        f"{_SCHEDULES}/test_elections.py::test_28_a_node_that_sends_and_does_not_receive",
    ),
)

LEADERSHIP: tuple[Mutant, ...] = (
    one_change(
        "no-check-quorum",
        "A5: a leader without fetches of a majority resigns",
        instead("self._check_quorum_deadline_ms = math.inf"),
        f"{_LEADER}::test_a5_a_leader_without_fetches_of_a_majority_resigns",
        f"{_SCHEDULES}/test_elections.py::test_27_a_leader_cut_off_from_the_majority",
    ),
    one_change(
        "observers-count-for-check-quorum",
        "A5: only voters count for check-quorum",
        never(),
        f"{_LEADER}::test_a5_a_leader_without_fetches_of_a_majority_resigns",
    ),
    one_change(
        "any-one-voter-is-a-majority",
        "A5: a majority must have fetched, the leader itself counted",
        part("len(self._fetched_voters) >= self._needed", "self._fetched_voters"),
        f"{_LEADER}::test_a5_of_five_two_others_must_fetch",
    ),
    one_change(
        "single-voter-is-not-exempt",
        "A5: a single voter is exempt",
        value("True"),
        f"{_SCHEDULES}/test_elections.py::test_a5_a_single_voter_leads_on_in_its_epoch",
    ),
    one_change(
        "no-leader-change-record",
        "A6: a new leader first appends LeaderChange",
        removed(),
        f"{_LEADER}::test_a6_the_epoch_opens_with_leader_change",
    ),
    Mutant(
        "commit-by-count",
        "A6: nothing commits before a record of the own epoch does",
        (
            part("self.epoch_start_offset", "0"),
            part("self.epoch_start_offset < known <= self.node.log.end_offset", "known <= self.node.log.end_offset"),
        ),
        (
            f"{_LEADER}::test_a6_nothing_of_an_older_epoch_is_committed_by_count",
            f"{_SCHEDULES}/test_commit.py::test_22_figure_8",
            f"{_SCHEDULES}/test_commit.py::test_25_an_entry_of_the_own_epoch_first",
        ),
    ),
    one_change(
        "one-replica-is-enough",
        "A6: the high watermark is what a majority holds",
        part("self.node.voters.majority - 1", "0"),
        f"{_LEADER}::test_a6_nothing_of_an_older_epoch_is_committed_by_count",
        f"{_SCHEDULES}/test_commit.py::test_a6_one_nodes_word_is_no_majority",
    ),
    one_change(
        "leaders-high-watermark-goes-back",
        "A6: a leader's high watermark never decreases",
        always(),
        f"{_LEADER}::test_a6_the_high_watermark_does_not_go_back",
    ),
    one_change(
        "high-watermark-goes-back",
        "A6: a node's high watermark never decreases",
        part("offset > self.high_watermark", "offset != self.high_watermark"),
        f"{_SCHEDULES}/test_commit.py::test_a6_a_followers_high_watermark_does_not_go_back",
    ),
)

TABLE = (*DURABLE_STATE, *VOTES, *LEADERSHIP)
