"""Mutants of the log: what is durable, what a stop leaves behind, what is read (rules B, C, E; schedules 16 to 20)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, instead, never, one_change, part, removed, value

_STORAGE = "tests/schedules/replication/test_storage.py"
_SYNCER = "tests/log/test_syncer.py"
_LOG = "tests/log/test_partition_log.py"
_TRUNCATION = "tests/log/test_truncation.py"
_LOG_DIR = "tests/log/test_log_dir.py"
_POWER_CUT = "tests/log/test_power_cut.py"

TABLE: tuple[Mutant, ...] = (
    Mutant(
        "index-before-the-end-moves",
        "C1: an append moves the end before anything else is written (schedule 19)",
        (instead("for file in segment.write_indexes() if segment.indexes_wait else []:\n    file.close()\n..."),),
        (f"{_STORAGE}::test_19_an_index_write_fails_after_the_append[holds-EIO]",),
    ),
    one_change(
        "synced-counts-what-came-later",
        "A9: a sync covers what was written before it began",
        part("Offset(self._syncing_to)", "self.log_end_offset"),
        f"{_SYNCER}::test_only_what_was_written_before_the_start_counts",
    ),
    one_change(
        "cut-in-mid-sync-is-forgotten",
        "B8: truncation: a sync that began before a cut covers nothing beyond it",
        removed(),
        f"{_SYNCER}::test_a_truncation_during_the_sync",
    ),
    one_change(
        "durable-offset-survives-a-cut",
        "B8: truncation: what is durable ends with the log",
        removed(),
        f"{_TRUNCATION}::test_offsets_after_a_cut",
    ),
    one_change(
        "failed-sync-is-forgotten",
        "schedule 32: a failed sync fences the log for ever",
        removed(),
        f"{_SYNCER}::test_a_failed_sync_fences_for_ever",
    ),
    one_change(
        "io-error-does-not-fence",
        "schedule 18: an I/O error fences the log",
        part("self._fence(error)", "KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))"),
        "tests/log/test_full_disk.py::test_a_failed_write_fences",
    ),
    one_change(
        "half-a-batch-on-a-full-disk",
        "C1: an append that failed has changed nothing",
        removed(),
        "tests/log/test_full_disk.py",
    ),
    one_change(
        "epoch-checkpoints-name-not-synced",
        "schedule 20: and its name after",
        removed(),
        f"{_SYNCER}::test_epochs_take_two_groups",
    ),
    one_change(
        "recovery-point-before-the-names",
        "B8: recovery point: names and epochs are durable too",
        value("True"),
        f"{_LOG_DIR}::test_recovery_point_waits_for_names_and_epochs",
    ),
    one_change(
        "new-segments-name-not-synced",
        "A1: a new name is durable with what it names",
        removed(),
        f"{_POWER_CUT}::test_lives_of_a_log_directory",
    ),
    one_change(
        "directories-as-they-are-named",
        "A1: the name of a data directory is durable, however the settings write it",
        part("map(os.path.abspath, split_list(text))", "split_list(text)"),
        "tests/cluster/node/test_config.py::test_directories_are_absolute",
    ),
    one_change(
        "new-partitions-names-not-synced",
        "A1: a new partition's names are durable with its first record",
        part("[directory, self.path]", "[]"),
        f"{_POWER_CUT}::test_lives_of_a_log_directory",
    ),
    one_change(
        "checkpoint-promises-what-is-cut",
        "B8: truncation: a checkpoint is lowered before the cut",
        removed(),
        f"{_TRUNCATION}::test_a_checkpoint_is_lowered_before_the_cut",
    ),
    one_change(
        "cut-segments-come-back",
        "B8: truncation: names are gone durably before other data take their place",
        removed(),
        f"{_POWER_CUT}::test_cut_segments_do_not_come_back",
    ),
    one_change(
        "deleted-before-the-start-is-durable",
        "B15: log start: files go only once the new start is durable",
        part("bisect_right(ends, log.durable_log_start_offset)", "len(ends)"),
        f"{_LOG_DIR}::test_retention_deletes_after_the_checkpoint",
    ),
    one_change(
        "epochs-outlive-the-cut",
        "B8: truncation: epochs beyond the cut go with it",
        removed(),
        f"{_TRUNCATION}::test_a_cut_takes_the_epochs_of_what_is_cut",
    ),
    one_change(
        "half-a-batch-is-kept",
        "B8: truncation: whole batches",
        part("(found[0], found[1].base_offset)", "(found[0] + found[1].size, found[1].next_offset)"),
        f"{_TRUNCATION}::test_offsets_after_a_cut",
    ),
    one_change(
        "start-beyond-the-end",
        "B15: log start: never beyond the log's end",
        removed(),
        f"{_TRUNCATION}::test_deleting_from_the_start",
    ),
    one_change(
        "older-leader-writes",
        "B1: four epochs: an older leader's batches are refused by the log",
        never(),
        f"{_LOG}::test_a_stale_leader_cannot_write",
    ),
    one_change(
        "fields-before-crc",
        "E5: a bit that flipped on the way is CORRUPT_MESSAGE, which is sent again, and not the refusal of a field",
        instead("_check_fields(header)\n..."),
        "tests/cluster/broker/test_kafka_produce.py::test_a_flipped_bit_in_a_header_is_a_corrupt_message",
    ),
    one_change(
        "clients-crc-is-believed",
        "E5: a batch is judged by its CRC before it is written",
        removed(),
        f"{_LOG}::test_what_a_leader_refuses",
    ),
)
