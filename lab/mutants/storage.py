"""Mutants of what quorum and partitions share in storage, for schedules 18 and 20."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed, value

_SCHEDULES = "tests/schedules/quorum/test_storage.py"
_PACKED = "tests/log/test_recompression.py"
_MAKING = "tests/replica/test_making.py"
_LOG_DIR = "tests/log/test_log_dir.py"
_PACKING = "tests/cluster/broker/test_kafka_packing.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "append-after-an-io-error",
        "B18: a log is fenced after an I/O error",
        never(),
        f"{_SCHEDULES}::test_18_append_after_an_io_error",
    ),
    one_change(
        "epoch-checkpoint-not-synced",
        "B8: the epoch checkpoint is synced before it has its name",
        removed(),
        "tests/log/test_syncer.py::test_epochs_take_two_groups",
    ),
    Mutant(
        "epoch-checkpoint-damaged-by-a-crash",
        "B8: an epoch checkpoint that a crash damaged costs nothing",
        (
            removed(),
            instead("raise"),
        ),
        (f"{_SCHEDULES}::test_20_the_machine_crashes_after_an_election",),
    ),
    one_change(
        "the-topics-codec-is-ignored",
        "B16: a batch is stored in the codec of its topic",
        never(),
        f"{_PACKED}::test_every_codec_into_every_other",
    ),
    one_change(
        "what-is-packed-anew-may-have-any-size",
        "B16: no batch is stored that is larger than max.message.bytes",
        never(),
        f"{_PACKED}::test_the_bound_is_on_what_is_stored_and_on_what_came",
    ),
    one_change(
        "what-may-unpack-to-much-is-packed-in-the-loop",
        "B16: what is compressed and of another codec than its topic is packed anew off the event loop",
        dropped("bool(attributes & CODEC_MASK)"),
        f"{_PACKED}::test_what_takes_long_is_packed_in_a_thread",
    ),
    one_change(
        "zstd-for-who-cannot-read-it",
        "B16: a consumer from before zstd is refused where a topic is stored in it (KIP-110)",
        part("context.version < ZSTD_SINCE", "False"),
        f"{_PACKING}::test_a_consumer_from_before_zstd_is_refused",
    ),
    one_change(
        "duplicates-are-packed-anew",
        "C1: a duplicate is found before any work is done for it",
        instead("batches = recompressed(batches, headers, config)\n..."),
        f"{_PACKED}::test_a_refused_batch_is_not_packed",
    ),
    one_change(
        "later-requests-pass-one-that-is-packed",
        "C1: what a producer sends behind a batch that is packed in a thread comes after it",
        removed(),
        f"{_PACKING}::test_what_is_sent_behind_a_slow_batch_comes_after_it",
    ),
    one_change(
        "one-partitions-batch-is-written-for-another-of-its-name",
        "C1: of two batches for a partition in one request the first is written",
        removed(),
        f"{_PACKING}::test_a_partition_that_stands_in_a_request_twice",
    ),
    one_change(
        "all-logs-are-made-in-one-turn",
        "B26: a turn of the event loop makes new logs for 20 ms",
        value("float('inf')"),
        f"{_MAKING}::test_many_logs_are_made_in_many_turns",
        "tests/chaos/test_slow_names.py::test_a_topic_of_many_partitions_leaves_the_quorum_its_leader",
    ),
    one_change(
        "each-delta-has-a-turns-time",
        "B26: all deltas of one turn share that time",
        never(),
        f"{_MAKING}::test_deltas_of_one_turn_share_its_time",
    ),
    one_change(
        "logs-are-made-faster-than-synced",
        "B26: the next logs wait until a sync of the last ones has begun",
        always(),
        f"{_MAKING}::test_what_was_made_is_synced_before_more_is",
    ),
    one_change(
        "what-is-deleted-is-made-all-the-same",
        "B26: a partition that is deleted, or moved, waits for its log no more",
        part("self._unmade.pop(name, None)", "None"),
        f"{_MAKING}::test_what_changes_before_the_log_is_made_counts_for_it",
    ),
    one_change(
        "logs-are-made-after-the-end",
        "B26: nothing is made once the replicas are closed",
        part("not self._stopped", "True"),
        f"{_MAKING}::test_nothing_is_made_once_the_replicas_are_closed",
    ),
    one_change(
        "late-partitions-have-no-coordinator",
        "B26: a coordinator hears of a partition that is hosted after its metadata",
        removed(),
        "tests/chaos/test_slow_names.py::test_the_coordinators_of_partitions_that_are_made_late",
    ),
    one_change(
        "all-logs-are-taken-out-in-one-turn",
        "B26: of logs that are deleted one is renamed aside in a turn",
        removed(),
        f"{_LOG_DIR}::test_many_deletions_share_turns_and_syncs",
    ),
    one_change(
        "each-deletion-is-synced-in-the-loop",
        "B26: the names of deleted logs are synced off the loop",
        part("await self.disk.sync((), (self.path,))", "self.disk.sync_dir(self.path)"),
        f"{_MAKING}::test_many_logs_are_deleted_in_many_turns",
    ),
)
