"""Mutants of what quorum and partitions share in storage, for schedules 18 and 20."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, Patch, one_change

_SCHEDULES = "tests/schedules/quorum/test_storage.py"
_PACKED = "tests/log/test_recompression.py"
_PACKING = "tests/cluster/broker/test_kafka_packing.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "append-after-an-io-error",
        "B18: a log is fenced after an I/O error",
        "log.log_state:LogState._check_usable",
        "if self.failure is not None:",
        "if False:",
        f"{_SCHEDULES}::test_18_append_after_an_io_error",
    ),
    one_change(
        "epoch-checkpoint-not-synced",
        "B8: the epoch checkpoint is synced before it has its name",
        "log.unsynced:Unsynced.begin",
        "                files.append(file)",
        "                pass",
        "tests/log/test_syncer.py::test_epochs_take_two_groups",
    ),
    Mutant(
        "epoch-checkpoint-damaged-by-a-crash",
        "B8: an epoch checkpoint that a crash damaged costs nothing",
        (
            Patch("log.unsynced:Unsynced.begin", "                files.append(file)", "                pass"),
            Patch("log.epoch_recovery:load_epochs", "ValueError):\n        return None", "ValueError):\n        raise"),
        ),
        (f"{_SCHEDULES}::test_20_the_machine_crashes_after_an_election",),
    ),
    one_change(
        "the-topics-codec-is-ignored",
        "B16: a batch is stored in the codec of its topic",
        "log.partition_log:PartitionLog.append_as_leader",
        "if config.stored_codec is not None:",
        "if False:",
        f"{_PACKED}::test_every_codec_into_every_other",
    ),
    one_change(
        "what-is-packed-anew-may-have-any-size",
        "B16: no batch is stored that is larger than max.message.bytes",
        "log.recompression:recompress",
        "if size > config.max_message_bytes:",
        "if False:",
        f"{_PACKED}::test_the_bound_is_on_what_is_stored_and_on_what_came",
    ),
    one_change(
        "what-may-unpack-to-much-is-packed-in-the-loop",
        "B16: what is compressed and of another codec than its topic is packed anew off the event loop",
        "log.recompression:is_slow_to_pack",
        "bool(attributes & CODEC_MASK) or",
        "",
        f"{_PACKED}::test_what_takes_long_is_packed_in_a_thread",
    ),
    one_change(
        "zstd-for-who-cannot-read-it",
        "B16: a consumer from before zstd is refused where a topic is stored in it (KIP-110)",
        "cluster.broker.handlers.fetch:FetchHandler._locate",
        "context.version < ZSTD_SINCE",
        "False",
        f"{_PACKING}::test_a_consumer_from_before_zstd_is_refused",
    ),
    one_change(
        "duplicates-are-packed-anew",
        "C1: a duplicate is found before any work is done for it",
        "log.partition_log:PartitionLog.append_as_leader",
        "original = self._find_duplicate(headers)",
        "batches = recompressed(batches, headers, config)\n        original = self._find_duplicate(headers)",
        f"{_PACKED}::test_a_refused_batch_is_not_packed",
    ),
    one_change(
        "later-requests-pass-one-that-is-packed",
        "C1: what a producer sends behind a batch that is packed in a thread comes after it",
        "cluster.broker.connection:KafkaConnection.run_alone",
        "self.hold()",
        "pass",
        f"{_PACKING}::test_what_is_sent_behind_a_slow_batch_comes_after_it",
    ),
    one_change(
        "one-partitions-batch-is-written-for-another-of-its-name",
        "C1: of two batches for a partition in one request the first is written",
        "cluster.broker.handlers.produce:ProduceHandler._slow_to_pack",
        "seen.add(tp)",
        "pass",
        f"{_PACKING}::test_a_partition_that_stands_in_a_request_twice",
    ),
)
