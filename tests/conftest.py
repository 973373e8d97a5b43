"""What tests of several folders share: a cluster of real processes; `--mutant NAME` takes a rule out of the code."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from lab import durations
from lab.mutants import MUTANTS, without
from strandline.cluster.node.dev import DevCluster

settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeat", settings.get_profile("search"), derandomize=True)
"""No example fails for its time: a machine that is busy stops a process for longer than Hypothesis' 200 ms. `make test`
tries the same examples each time, so that it judges a change; the search for new ones is that of `make test-long`."""

LONG = {
    # Minutes each on two cores: a JVM, a build, a cluster for every test, many seeds. `make test-long` runs them.
    "lab/explore/test_mutants_found_deeper.py",
    "chaos/live/test_live_cluster.py",
    "chaos/live/test_run_crashes.py",
    "chaos/live/test_run_evidence.py",
    "chaos/live/test_run_operations.py",
    "chaos/live/test_run_netns.py",
    "chaos/live/test_run_secure.py",
    "chaos/plugin/test_cluster.py",
    "chaos/plugin/test_mistakes.py",
    "chaos/plugin/test_race_example.py",
    "chaos/plugin/test_simulation.py",
    "chaos/test_explain.py",
    "chaos/test_explain_shrink.py",
    "chaos/test_services.py",
    "client/test_groups_both_protocols.py",
    "lake/test_iceberg_rest.py",
    "lake/test_killed.py",
    "tools/test_copy_simulated.py",
    "client/test_groups_simulated.py",
    "client/test_real_groups.py",
    "client/test_real_tails.py",
    "client/test_worked_examples.py",
    "chaos/live/test_run_restored.py",
    "chaos/live/test_run_transactions.py::test_kafkas_copier_under_faults",
    "chaos/live/test_run_transactions.py::test_librdkafka_in_transactions_under_faults",
    "hostile/test_mutated_requests.py",
    "hostile/test_slow_peers.py",
    "interop/test_applications.py",
    "interop/test_own_client_on_kafka.py",
    "interop/test_sample.py",
    "interop/test_secured_sample.py",
    "acceptance/test_compacted_files_in_apache_kafka.py",
    "acceptance/test_groups_over_bounces.py",
    "acceptance/test_transactional_copiers.py",
    "acceptance/test_moves_typed.py",
    "acceptance/test_acls_by_kafkas_tools.py",
    "acceptance/test_audit_of_a_cluster.py",
    "acceptance/test_quotas_by_kafkas_tools.py",
    "acceptance/test_topics_with_a_codec.py",
    "acceptance/test_log_directories_in_kafkas_tools.py",
    "acceptance/test_client_telemetry.py",
    "acceptance/test_patterns.py",
    "acceptance/test_moves_between_brokers.py",
    "acceptance/test_restore_while_a_leader_dies.py",
    "acceptance/test_database_rebuilt_from_its_changes.py",
    "acceptance/test_consumer_protocol_with_foreign_clients.py",
    "acceptance/test_exactly_once_over_kills.py",
    "acceptance/test_foreign_clients_over_sasl.py",
    "acceptance/test_hub_of_sources_and_sinks_under_kills.py",
    "acceptance/test_kafka_command_line_tools.py",
    "acceptance/test_results_and_offsets_in_one_transaction.py",
    "acceptance/test_failover_with_many_partitions.py",
    "acceptance/test_cut_off_leader_loses_leadership.py",
    "acceptance/test_overload_for_a_while.py",
    "acceptance/test_peaks_are_buffered.py",
    "acceptance/test_racks.py",
    "acceptance/test_split_layout_failures.py",
    "acceptance/test_split_layout_losses.py",
    "acceptance/test_topic_copy_under_faults.py",
    "acceptance/test_voters_at_run_time.py",
    "spark/pipelines/test_jobs.py",
    "spark/pipelines/test_lake.py",
    "spark/pipelines/test_lake_killed.py",
    "spark/pipelines/test_streams.py",
    "spark/pipelines/test_transformations.py",
    "spark/test_apache_kafka.py",
    "spark/test_broker_faults.py",
    "spark/test_capture.py",
    "spark/test_checkpoints.py",
    "spark/test_drawn_faults.py",
    "spark/test_driver_killed.py",
    "spark/test_executors_lost.py",
    "spark/test_lake.py",
    "spark/test_interpreter_late.py",
    "spark/test_sink_uncommitted.py",
    "spark/test_standalone.py",
    "spark/test_streaming.py",
    "spark/test_tls.py",
    "spark/test_transactions_killed.py",
    # `make lint` runs these.
    "test_citations.py",
    "test_docs.py",
    "test_tidy.py",
}
"""Files that `make test` leaves out; each runs where it is named, and all with --long."""

LONG_TESTS = {
    # Ten seconds each and more; the other tests of their files stay, or the other cases, as a sample.
    "chaos/test_transacting.py::test_a_race_catches_a_broken_rule",
    "acceptance/test_bad_input_harms_nothing.py::test_a_full_disk_moves_what_it_led_and_loses_nothing",
    "acceptance/test_compacted_topics.py::test_of_a_thousand_updates_the_last_of_each_key_stay",
    "acceptance/test_crash_of_all_nodes_loses_nothing.py::test_53_one_machine_stays_dead[2]",
    "acceptance/test_crash_of_all_nodes_loses_nothing.py::test_53_one_machine_stays_dead[3]",
    "acceptance/test_elections_on_request.py::test_s43_an_unclean_election_says_what_it_loses_before_and_after",
    "acceptance/test_foreign_clients_over_tls.py::test_who_does_not_belong_stays_out",
    "acceptance/test_lost_metadata_logs.py::test_too_few_are_left_and_one_votes_by_force",
    "acceptance/test_records_at_the_size_bound.py::test_it_is_backed_up_and_restored",
    "acceptance/test_rolling_upgrade.py::test_wheels_are_rolled_up_and_down_and_up_and_finalized",
    "acceptance/test_tiered_restore.py::test_readers_that_had_read_more_than_was_stored_are_told",
    "acceptance/test_topic_copy.py::test_records_deleted_from_a_half_done_round",
    "chaos/live/test_run.py::test_a_broken_promise_is_found_and_its_evidence_kept",
    "chaos/test_users.py::test_a_broken_rule_is_caught",
    "chaos/test_users.py::test_seeds_hold",
    "chaos/live/test_run.py::test_a_rotten_batch_on_the_last_leader_costs_nothing",
    "chaos/plugin/test_examples.py::test_a_consumer_handles_nothing_twice",
    "chaos/test_determinism.py::test_the_cluster_too[8-4]",
    "chaos/test_determinism.py::test_the_cluster_too[9-4]",
    "chaos/test_failover.py::test_a_dead_leader_costs_well_under_a_second",
    "chaos/test_many_brokers.py::test_s101_every_partition_of_a_dead_broker_has_a_new_leader[power_cut-3500.0]",
    "chaos/test_restored.py::test_a_broken_rule_of_restored_clusters_is_caught",
    "chaos/test_restored.py::test_a_cluster_is_lost_and_restored[59]",
    "chaos/test_scenario.py::test_a_broken_rule_is_caught[vote-not-durable]",
    "chaos/test_scenario.py::test_a_seesaw_makes_logs_that_diverge_over_epochs",
    "chaos/test_scenario.py::test_levels_change_under_faults",
    "chaos/test_secured.py::test_a_broken_rule_of_security_is_caught",
    "chaos/test_slow_names.py::test_every_partition_is_led_after_a_stop_in_the_middle[3-kill]",
    "chaos/test_slow_names.py::test_every_partition_is_led_after_a_stop_in_the_middle[3-power_cut]",
    "chaos/test_slow_names.py::test_every_partition_is_led_after_a_stop_in_the_middle[3-stop]",
    "cli/test_transaction_commands.py::test_nothing_hangs_for_all_that_is_known_while_a_coordinator_is_gone",
    "cli/test_unregister.py::test_a_dead_broker_blocks_an_upgrade_until_it_is_taken_out",
    "client/test_forks.py::test_a_fork[a commit's callback-multiprocessing]",
    "client/test_forks.py::test_a_fork[a commit's callback-os.fork]",
    "client/test_forks.py::test_a_fork[a future's callback-multiprocessing]",
    "client/test_forks.py::test_a_fork[a handler in a poll-multiprocessing]",
    "client/test_forks.py::test_a_fork[a handler in a poll-os.fork]",
    "client/test_forks.py::test_a_fork[a listener-multiprocessing]",
    "client/test_forks.py::test_a_fork[a send of a thread-multiprocessing]",
    "client/test_forks.py::test_a_fork[a send of a thread-os.fork]",
    "client/test_forks.py::test_a_fork[the program-os.fork]",
    "client/test_signal_storms.py::test_a_handler_closes_a_consumer_that_polls[long]",
    "client/test_signal_storms.py::test_a_handler_closes_the_producer[flush-long]",
    "client/test_signal_storms.py::test_a_handler_closes_the_producer[result-long]",
    "client/test_signal_storms.py::test_a_handler_closes_the_producer[send-long]",
    "client/test_signal_storms.py::test_a_storm_over_a_producer[fast-path-long]",
    "client/test_signal_storms.py::test_a_storm_over_a_producer[no room-long]",
    "client/test_signal_storms.py::test_a_storm_over_a_producer[partitioner-long]",
    "client/test_signal_storms.py::test_a_storm_over_an_admin[long]",
    "client/test_signal_storms.py::test_a_storm_over_the_last_calls[long]",
    "cluster/broker/test_work_grows_linearly.py::test_every_array_of_a_request",
    "cluster/node/test_doctor_live.py::test_doctor_ends_though_a_broker_is_silent_and_the_quorum_gone",
    "cluster/node/test_doctor_live.py::test_doctor_works_during_an_outage",
    "docs_run/test_docs_run.py::test_a_page_of_the_documentation",
    "golden/test_golden_directories.py::test_what_an_earlier_build_wrote_is_led_read_and_served[53dd7cb1-killed]",
    "golden/test_golden_directories.py::test_what_an_earlier_build_wrote_is_led_read_and_served[53dd7cb1-stopped]",
    "golden/test_golden_directories.py::test_what_an_earlier_build_wrote_is_led_read_and_served[6ff0c29-killed]",
    "lab/explore/test_models.py::test_every_state_after_a_crash_of_all_holds",
    "lab/explore/test_mutants_found.py::test_a_rule_of_a_partition",
    "lab/test_mutants_cli.py::test_a_mutant_that_survives_exits_1_and_is_named",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[100-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[101-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[102-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[103-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[104-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[105-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[106-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[107-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[108-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[109-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[110-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[111-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[112-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[113-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[114-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[115-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[116-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[117-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[118-8]",
    "lake/test_drawn_faults.py::test_each_record_is_in_the_lake_once_or_named_as_lost[119-8]",
    "lake/test_export.py::test_offsets_without_a_record_are_counted",
    "log/test_begun_anew.py::test_a_log_that_begins_anew_opens_whenever_it_crashed[without power]",
    "log/test_compaction_crashes.py::test_75_every_step_of_a_swap[without power]",
    "log/test_future.py::test_a_move_may_be_cut_short_anywhere[False-False]",
    "log/test_future.py::test_a_move_may_be_cut_short_anywhere[False-True]",
    "log/test_future.py::test_a_move_may_be_cut_short_anywhere[True-False]",
    "replica/test_transactions_simulated.py::test_all_of_a_transaction_or_nothing[1]",
    "replica/test_transactions_simulated.py::test_all_of_a_transaction_or_nothing[2]",
    "replica/test_transactions_simulated.py::test_compaction_shows_nothing_that_was_aborted[1]",
    "replica/test_transactions_simulated.py::test_the_object_store_holds_decided_transactions_alone[1]",
    "schedules/quorum/test_any_message.py::test_62_anything_at_all[both-2]",
    "schedules/quorum/test_any_message.py::test_62_anything_at_all[both-3]",
    "schedules/quorum/test_any_message.py::test_62_anything_at_all[controller-2]",
    "schedules/quorum/test_any_message.py::test_62_anything_at_all[controller-3]",
    "schedules/quorum/test_any_message.py::test_62_anything_at_all[quorum-2]",
    "schedules/quorum/test_any_message.py::test_62_anything_at_all[quorum-3]",
    "schedules/quorum/test_pauses.py::test_60_any_node_is_paused[holds-split]",
    "spark/pipelines/test_dataset.py::test_a_share_is_the_beginning_of_the_whole",
    "spark/pipelines/test_dataset.py::test_every_flight_is_reported_in_the_order_of_arrival",
    "spark/test_interpreter.py::test_a_job_finds_the_format_with_its_own_interpreter",
    "test_binary_wheel.py::test_a_part_that_does_not_compile_fails_a_build_for_others",
    "test_binary_wheel.py::test_every_wheel_is_named",
    "test_binary_wheel.py::test_it_is_as_fast_as_one_with_a_compiler",
    "test_binary_wheel.py::test_it_runs_where_no_compiler_is",
    "test_binary_wheel.py::test_one_that_was_built_without_a_compiler_says_so",
    "test_binary_wheel.py::test_the_wheel_has_every_compiled_part",
    "tools/test_sizes.py::test_the_command",
}
"""Tests that `make test` leaves out; they run where their file is named, and with --long."""

LONG_WITHOUT_THEIR_RULE = {
    "schedules/clients/test_handlers.py",
    "schedules/clients/test_quiet_topics.py",
    "schedules/clients/test_topics_made_anew.py",
    "schedules/quorum/test_hung_syncs.py",
    "schedules/quorum/test_pauses.py",
    "schedules/quorum/test_power_cuts.py",
    "schedules/recovery/test_crash_of_all.py",
    "schedules/recovery/test_full_disks.py",
    "schedules/recovery/test_offline_replicas.py",
    "schedules/recovery/test_rot.py",
    "schedules/replication/test_large_batches.py",
}
"""Schedules of which `make test` plays `[holds]` alone, and each `[without-NAME]` where their file is named or with
--long: those of the other files are the sample."""

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Long files are left out, unless asked for."""
    if not collection_path.is_relative_to(HERE) or collection_path.relative_to(HERE).as_posix() not in LONG:
        return None
    return None if config.getoption("--long") or collection_path in _named(config) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """So are long tests of other files. What is left runs by what its file took: quick ones first, slowest next."""
    if not config.getoption("--long"):
        named = set() if config.getoption("--no-long") else _named(config)
        left_out = [item for item in items if item.path not in named and _is_long(item)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in set(left_out)]
    files = durations.in_order(dict.fromkeys(item.nodeid.partition("::")[0] for item in items))
    rank = {file: number for number, file in enumerate(files)}
    items.sort(key=lambda item: rank[item.nodeid.partition("::")[0]])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests and the modules that they import are objects that stay: no collection of garbage looks at
    them, neither while they are made nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _is_long(item: pytest.Item) -> bool:
    file = item.path.relative_to(HERE).as_posix()
    test, _, case = item.name.partition("[")
    if file in LONG or (case.startswith("without-") and file in LONG_WITHOUT_THEIR_RULE):
        return True
    return not LONG_TESTS.isdisjoint((f"{file}::{test}", f"{file}::{item.name}"))


def _named(config: pytest.Config) -> set[Path]:
    """The files that the command line names."""
    return {Path(argument.partition("::")[0]).resolve() for argument in config.args}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the files that take minutes too")
    parser.addoption("--no-long", action="store_true", help="long tests are left out of files that are named, too")
    parser.addoption("--durations-to", type=Path, metavar="FILE", help="write there what each test file took")
    parser.addoption("--mutant", choices=tuple(MUTANTS), metavar="NAME", help="take this rule out: tests should fail")


def pytest_configure(config: pytest.Config) -> None:
    """The rule is out from before the first test is collected until the session ends."""
    measured = config.getoption("--durations-to")
    if measured is not None and not hasattr(config, "workerinput"):  # workers of pytest-xdist report to their parent
        config.pluginmanager.register(durations.Recorder(measured))
    settings.load_profile("search" if config.getoption("--long") else "repeat")
    applied = without(config.getoption("--mutant"))
    applied.__enter__()
    config.add_cleanup(lambda: applied.__exit__(None, None, None))


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A node that starts in the process of the tests sets up its logging there: for good, loggers keep what they meet
    first. A later test would capture nothing."""
    if structlog.get_config()["cache_logger_on_first_use"]:
        structlog.configure(cache_logger_on_first_use=False)
        pytest.fail(f"{item.nodeid} sets up a node's logging in the process of the tests: start the node in its own")
    if structlog.is_configured():
        structlog.reset_defaults()


def pytest_sessionfinish() -> None:
    """The certificates that a process of tests has made go with it."""
    for name, module in sys.modules.items():
        if name.endswith("tls_case"):
            for directory, process in module.MADE.items():
                if process == os.getpid():
                    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[DevCluster]:
    """Three combined nodes for tests that break nothing; each test uses topics of its own."""
    with DevCluster() as running:
        yield running
