"""Mutants of voters that come and go (KIP-853, KIP-1186), rules A36 to A38."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, never, one_change, part, value

_DYNAMIC = "tests/controller/raft/test_raft_dynamic_voters.py"
_SETS = "tests/golden/test_golden_voters.py::test_scenario"
_QUORUM = "tests/controller/quorum/test_quorum_voters.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "voters-of-a-static-quorum-come-and-go",
        "A36: at kraft.version 0 the configured nodes vote",
        never(),
        f"{_SETS}[static]",
    ),
    one_change("the-last-voter-goes", "A36: one voter stays", never(), f"{_SETS}[remove]"),
    one_change(
        "any-address-is-an-endpoint",
        "A36: a voter stands with an address at which others reach it",
        part("not can_be_reached_at(endpoint)", "False"),
        f"{_SETS}[addresses]",
    ),
    one_change(
        "two-directories-of-a-node-vote",
        "A36: a node votes with one directory",
        never(),
        f"{_SETS}[duplicate]",
    ),
    one_change(
        "a-voter-goes-by-its-node-id",
        "A36: a voter is a node id and a directory id",
        part("key not in said.voters", "key.node_id not in [one.node_id for one in said.voters]"),
        f"{_SETS}[update]",
    ),
    one_change(
        "those-that-are-left-are-down",
        "A36: a removal leaves a majority that fetches",
        never(),
        f"{_DYNAMIC}::test_a_voter_is_not_removed_while_those_that_are_left_are_down",
    ),
    one_change(
        "a-voter-that-moved-is-not-found",
        "A36: where a voter listens is recorded",
        value("said"),
        f"{_DYNAMIC}::test_a_voter_that_listens_elsewhere_is_recorded",
    ),
    one_change(
        "a-removed-leader-keeps-itself-in-office",
        "A36: a leader that was removed needs the fetches of a majority without it",
        value("self.node.voters.majority - 1"),
        f"{_DYNAMIC}::test_a_removed_leader_needs_a_majority_of_the_others_to_stay",
    ),
    one_change(
        "a-removed-leader-goes-at-once",
        "A36: a leader that was removed leads until that is committed",
        value("not self.node.is_voter"),
        f"{_DYNAMIC}::test_kafka_17608_a_leader_that_removes_itself_counts_the_others_alone",
    ),
    one_change(
        "whoever-asks-moves-a-voter",
        "A36: what a voter's fetches say of where it listens outdoes a request in its name",
        never(),
        f"{_DYNAMIC}::test_a_voter_tells_where_it_listens",
    ),
    Mutant(
        "a-removed-leader-stays",
        "A36: and resigns then",
        (never(), never()),
        (f"{_DYNAMIC}::test_kafka_17608_a_leader_that_removes_itself_counts_the_others_alone",),
    ),
    one_change(
        "a-removed-leader-commits-on",
        "A36: and commits nothing more until then",
        never(),
        f"{_DYNAMIC}::test_a_removed_leader_commits_nothing_more",
    ),
    one_change(
        "a-removed-leader-counts-itself",
        "A36: what it holds does not count",
        always(),
        f"{_DYNAMIC}::test_kafka_17608_a_leader_that_removes_itself_counts_the_others_alone",
    ),
    one_change(
        "a-removed-leader-stands-again",
        "A36: who was removed asks for no election once that is committed",
        never(),
        f"{_DYNAMIC}::test_kafka_17608_a_leader_that_removes_itself_counts_the_others_alone",
    ),
    one_change(
        "a-quorum-that-grew-is-not-checked",
        "A36: a leader of more than one is checked for a majority",
        value("math.inf"),
        f"{_DYNAMIC}::test_a_leader_of_one_that_gets_a_second_voter_is_checked",
    ),
    one_change(
        "who-is-removed-leaves-at-once",
        "A36: until a removal is committed the removed voter may have to lead",
        value("False"),
        f"{_DYNAMIC}::test_who_was_removed_stands_until_that_is_committed_without_its_own_vote",
    ),
    one_change(
        "who-is-removed-votes-for-itself",
        "A36: and has no vote",
        always(),
        f"{_DYNAMIC}::test_who_was_removed_stands_until_that_is_committed_without_its_own_vote",
    ),
    one_change(
        "a-leader-that-is-not-known-is-not-followed",
        "A37: a leader of a newer voter set is followed",
        part("not known", "leader_id not in self.voters.places"),
        f"{_DYNAMIC}::test_a_leader_that_is_not_in_the_own_set_is_followed",
    ),
    one_change(
        "bootstrap-is-asked-never",
        "A37: bootstrap addresses are asked beside the voters",
        value("sorted(self.node.voters.places)"),
        f"{_DYNAMIC}::test_an_observer_asks_the_bootstrap_addresses_too",
    ),
    one_change(
        "what-was-told-counts-for-ever",
        "A37: the log's newer voter set outdoes what a peer told",
        never(),
        f"{_QUORUM}::test_what_the_log_says_outdoes_what_was_told",
    ),
    one_change(
        "a-removed-leader-is-lost-sight-of",
        "A37: a leader that was removed is fetched from until that is committed",
        never(),
        f"{_QUORUM}::test_one_grows_to_three_and_loses_its_first",
    ),
    one_change(
        "nobody-tells-where-the-leader-is",
        "A37: an answer says where the leader is",
        always(),
        f"{_QUORUM}::test_a_newcomer_that_knows_one_address_finds_a_leader_elsewhere",
    ),
    one_change(
        "a-voter-that-moved-is-looked-for-nowhere",
        "A37: a voter that is not found where it is known to be is looked for at the bootstrap addresses",
        always(),
        f"{_QUORUM}::test_voters_that_have_all_moved_find_each_other",
    ),
    one_change(
        "a-bootstrap-address-stays-the-leaders",
        "A37: and where it is said to be once who answers leads nothing",
        never(),
        f"{_QUORUM}::test_a_leader_that_was_missed_once_is_asked_where_it_is_said_to_be",
    ),
    one_change(
        "who-answers-for-another-is-asked-again",
        "A37: and at the next one where another node answers",
        never(),
        f"{_QUORUM}::test_voters_that_have_all_moved_find_each_other",
    ),
    Mutant(
        "who-was-removed-asks-again",
        "A38: a directory that has had a vote asks for none",
        (never(), dropped("memory.now.voters == 0")),
        (
            f"{_DYNAMIC}::test_kafka_19850_who_was_removed_does_not_ask_again",
            f"{_QUORUM}::test_kafka_19850_auto_join_leaves_out_who_was_removed",
        ),
    ),
    one_change(
        "a-broker-gets-a-vote",
        "A38: a controller alone gets a vote: it flushes before it fetches on",
        never(),
        f"{_DYNAMIC}::test_a_broker_gets_no_vote",
    ),
    one_change(
        "an-observers-former-life-counts",
        "A38: what a newcomer fetched before its restart does not count",
        always(),
        f"{_DYNAMIC}::test_what_a_newcomer_fetched_in_a_former_life_does_not_count",
    ),
    one_change(
        "a-living-voter-is-replaced",
        "A38: auto-join takes no vote of a directory that fetches",
        value("True"),
        f"{_QUORUM}::test_auto_join_replaces_a_lost_disk_and_no_living_one",
    ),
    one_change(
        "a-quorum-of-one-that-grew-refuses",
        "A38: a first voter that lost its log asks the others, if there were some",
        part("(memory.now.voters or len(self._voters)) == 1", "len(self._voters) == 1"),
        f"{_QUORUM}::test_the_first_of_three_that_loses_its_log_comes_back",
    ),
    one_change(
        "nobody-asks-the-newcomer",
        "A38: a newcomer is asked at its address before it votes",
        never(),
        f"{_QUORUM}::test_a_newcomer_that_does_not_answer_gets_no_vote",
    ),
)
