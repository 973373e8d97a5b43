"""Mutants of levels: what may be written, who may be in the cluster, and what can be left again."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, never, one_change, removed, value

_LEVELS = "tests/controller/metadata/test_features.py"
_CRASHES = "tests/schedules/recovery/test_crash_of_all.py"
_MACHINE = "tests/controller/machine/test_features.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "records-of-a-level-that-is-not-finalized",
        "A32: a record of a level that is not finalized is replayed by nobody",
        never(),
        f"{_LEVELS}::test_a_record_of_a_level_that_is_not_finalized_is_refused",
        f"{_LEVELS}::test_a_field_of_a_level_that_is_not_finalized_is_refused",
    ),
    one_change(
        "a-level-of-a-newer-build-is-replayed",
        "A32: a node that meets a level that its build does not know halts",
        never(),
        f"{_LEVELS}::test_an_older_build_halts_at_the_first_record_of_a_newer_level",
    ),
    one_change(
        "snapshot-without-levels",
        "A32: a snapshot holds the levels of all features",
        value("level_records(image.metadata_version, {})"),
        f"{_LEVELS}::test_levels_survive_a_snapshot",
    ),
    one_change(
        "nodes-are-not-asked",
        "A33: a level is given only when every broker and every voter says that it knows it",
        never(),
        f"{_MACHINE}::test_every_node_has_to_know_the_level",
        "tests/controller/test_rolling_upgrade.py::test_a_node_that_is_down_keeps_the_level_as_it_is",
    ),
    one_change(
        "a-level-that-cannot-be-left",
        "A33: a level that cannot be left is not, however it is asked for",
        never(),
        f"{_MACHINE}::test_a_level_that_cannot_be_left_is_not[SAFE_DOWNGRADE]",
        f"{_MACHINE}::test_a_level_that_cannot_be_left_is_not[UNSAFE_DOWNGRADE]",
    ),
    one_change(
        "a-level-in-use-is-left",
        "A33: a level of which something is written is not left",
        value("False"),
        f"{_MACHINE}::test_a_level_of_which_something_is_written_is_not_left[SAFE_DOWNGRADE]",
    ),
    one_change(
        "a-level-that-is-needed-is-left",
        "A33: a level that the metadata need is not left",
        never(),
        f"{_MACHINE}::test_a_level_that_the_metadata_need_is_not_left[SAFE_DOWNGRADE]",
        f"{_MACHINE}::test_a_level_that_the_metadata_need_is_not_left[UNSAFE_DOWNGRADE]",
    ),
    one_change(
        "an-unsafe-downgrade-leaves-any-level",
        "A33: an unsafe downgrade of metadata.version leaves no level that cannot be left",
        value("()"),
        f"{_MACHINE}::test_a_level_of_which_something_is_written_is_not_left[UNSAFE_DOWNGRADE]",
    ),
    one_change(
        "a-safe-downgrade-loses-levels",
        "A33: a safe downgrade loses nothing",
        never(),
        f"{_MACHINE}::test_a_safe_downgrade_loses_nothing_and_an_unsafe_one_says_what",
    ),
    one_change(
        "a-build-that-does-not-know-a-level-registers",
        "A34: a broker whose build does not know a finalized level is not registered",
        never(),
        f"{_MACHINE}::test_a_build_that_does_not_know_a_level_cannot_register",
    ),
    one_change(
        "misrouted-connections-are-served",
        "B42: a broker refuses clients that wanted to reach another",
        value("ErrorCode.NONE"),
        "tests/cluster/broker/test_kafka_metadata.py::test_whom_a_client_wants_to_reach_is_checked[another broker]",
    ),
    one_change(
        "clients-take-whom-they-reach",
        "B42: a client says whom it wants to reach",
        value("None"),
        "tests/client/test_misrouted.py::test_a_misrouted_client_writes_to_nobody_else_and_finds_the_broker",
    ),
    one_change(
        "an-address-that-is-advertised-is-no-bootstrap-address",
        "B42: where others answer at the bootstrap addresses than were advertised, they say who the brokers are now",
        removed(),
        "tests/client/test_misrouted.py::test_a_cluster_made_anew_at_the_same_addresses_is_found",
    ),
    one_change(
        "what-leads-to-another-cluster-stays-open",
        "B42: a client that goes on with another cluster closes its connections to the one before",
        never(),
        "tests/client/test_misrouted.py::test_what_leads_to_a_cluster_that_is_left_is_closed",
    ),
    one_change(
        "a-bootstrap-connection-is-whoever-is-wanted",
        "B42: a connection that was made by a bootstrap address is taken for no broker that was not asked for over it",
        removed(),
        "tests/client/test_misrouted.py::test_a_bootstrap_connection_is_not_taken_for_a_broker_that_is_elsewhere",
    ),
    one_change(
        "who-is-sent-away-asks-there-again",
        "B42: a client that is told to asks the bootstrap addresses, and the one that told it last",
        removed(),
        "tests/client/test_misrouted.py::test_a_client_that_is_sent_away_asks_another_bootstrap_address",
    ),
    one_change(
        "log-of-a-level-that-was-left",
        "A35: behind a change of the level a snapshot is taken, where builds that do not know the level begin",
        removed(),
        "tests/cluster/node/test_levels.py::test_the_build_from_before_starts_where_the_level_was_lowered_again",
    ),
    one_change(
        "newer-files-are-taken-for-damage",
        "B35: who takes a directory looks for files of a newer build, and changes nothing where there is one",
        removed(),
        "tests/log/test_formats.py::test_a_newer_file_is_refused_and_nothing_changes[incarnations-in place]",
        "tests/chaos/test_newer_files.py",
    ),
    one_change(
        "a-rotten-version-counts",
        "B35: a newer version counts only where its checksum holds",
        never(),
        "tests/log/test_formats.py::test_a_rotten_head_is_damage_and_refuses_nothing[incarnations]",
    ),
    one_change(
        "what-was-moved-away-is-not-looked-at",
        "B35: a file of a newer build is found under the name that a start gave to it",
        value("name"),
        "tests/log/test_formats.py::test_a_newer_file_is_refused_and_nothing_changes[incarnations-moved away]",
    ),
    one_change(
        "newer-sidecars-are-taken-for-damage",
        "B35: a stored segment of a newer build is left out of no restore",
        never(),
        "tests/log/tier/test_restoring.py::test_what_a_newer_build_stored_is_left_out_of_no_restore",
    ),
    one_change(
        "a-kill-of-an-earlier-build-loses-all",
        "B38: the metadata on a node's disk prove that its directory is that of the registered process",
        never(),
        f"{_CRASHES}::test_140_a_kill_of_a_build_that_left_no_lives",
    ),
    one_change(
        "any-registration-proves-the-directory",
        "B38: metadata that end before the registration prove nothing",
        always(),
        f"{_CRASHES}::test_140_an_older_copy_that_has_no_lives",
    ),
    one_change(
        "what-was-cut-proves-the-directory",
        "B38: what was cut from the metadata log proves nothing any more",
        removed(),
        "tests/controller/quorum/test_metadata_log_cut.py::test_what_is_held_since_the_start",
    ),
)
