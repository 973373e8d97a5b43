"""Mutants of compaction: what may vanish, how segments are swapped, what followers take (rule B20)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, dropped, instead, never, one_change, part, removed, value

_LOG = "tests/log/test_compaction.py"
_CRASHES = "tests/log/test_compaction_crashes.py"
_REPLICAS = "tests/replica/test_compaction.py"
_DIRECTORY = "tests/log/test_cleaner_checkpoint.py"
_RUNS = "tests/log/test_compaction_runs.py"
_SWAP = f"{_CRASHES}::test_75_every_step_of_a_swap"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "what-is-not-synced-supersedes",
        "schedule 73: only what is durable here supersedes",
        part("min(limit_offset, log.durable_offset)", "limit_offset"),
        f"{_LOG}::test_73_only_what_is_durable_supersedes",
    ),
    one_change(
        "what-is-not-committed-supersedes",
        "B20: nothing above the high watermark is compacted, or supersedes (schedule 38)",
        part("min(limit_offset, log.durable_offset)", "log.durable_offset"),
        f"{_REPLICAS}::test_what_is_not_committed_supersedes_nothing",
    ),
    one_change(
        "gaps-are-taken-whole",
        "schedule 74: a follower takes the rest of a gap",
        part("first.is_gap", "False"),
        f"{_LOG}::test_74_a_follower_goes_on_in_the_middle_of_a_gap",
    ),
    one_change(
        "swap-of-what-is-not-synced",
        "schedule 75: what is swapped in is durable before it has a name",
        removed(),
        f"{_SWAP}[without power]",
    ),
    one_change(
        "old-segments-go-first",
        "schedule 75: the new segment's name is durable before the old ones make way",
        instead("import asyncio\nawait asyncio.sleep(0)"),
        f"{_SWAP}[without power]",
    ),
    one_change(
        "old-segments-come-back",
        "schedule 75: the old segments are gone durably before the new one has its name",
        instead("import asyncio\nawait asyncio.sleep(0)"),
        f"{_SWAP}[without power]",
    ),
    one_change(
        "swaps-are-leftovers",
        "schedule 75: a start finishes a swap that was cut short",
        never(),
        f"{_SWAP}[killed]",
    ),
    one_change(
        "a-cut-forgets-the-swap",
        "schedule 75: a log that is cut gives a swap up, or finishes it, first",
        removed(),
        f"{_CRASHES}::test_a_cut_in_the_middle_of_a_swap",
    ),
    one_change(
        "expired-segments-come-back",
        "B20: segments that left the log meanwhile are not swapped",
        instead("return True"),
        f"{_CRASHES}::test_retention_takes_segments_while_they_are_swapped",
    ),
    one_change(
        "expired-segments-are-not-synced",
        "schedule 76: a segment that left the log is synced with what follows it",
        instead("self.unsynced.drop(segment.file)\nif True:\n    segment.close()"),
        "tests/log/test_power_cut.py::test_76_expired_segments_are_synced_until_the_log_start_is_durable",
    ),
    one_change(
        "tombstones-go-at-once",
        "B20: a tombstone stays until its delete horizon (KIP-534)",
        value("True"),
        f"{_LOG}::test_a_tombstone_goes_when_its_time_is_over",
    ),
    one_change(
        "the-last-record-goes",
        "B20: the last record of a key stays",
        part("found.offset >= self.latest(found.key)", "found.offset > self.latest(found.key)"),
        "tests/log/test_offset_map.py::test_what_stays_is_the_last_record_of_each_key",
    ),
    one_change(
        "a-full-map-takes-more",
        "B20: compaction takes the memory that it was given, and no more",
        value("True"),
        "tests/log/test_offset_map.py::test_a_map_grows_to_the_memory_that_it_says_and_no_further",
    ),
    one_change(
        "producers-are-compacted-away",
        "C2: batches that a producer's retries are known by stay, empty",
        part("entry is not None", "False and ..."),
        f"{_LOG}::test_producers_are_known_by_what_stays",
    ),
    one_change(
        "holes-in-the-log",
        "B20: compaction leaves no hole: a batch that was lost would look like one",
        removed(),
        f"{_LOG}::test_gaps_are_batches",
    ),
    one_change(
        "gaps-over-epochs",
        "B20: a gap is of one leader epoch",
        dropped("gap[2] == header.leader_epoch"),
        f"{_LOG}::test_gaps_are_batches",
    ),
    one_change(
        "rot-is-copied",
        "B20: what is copied holds its CRC",
        removed(),
        f"{_LOG}::test_a_rotten_batch_ends_the_pass",
    ),
    one_change(
        "rot-is-tried-for-ever",
        "B20: a log that cannot be read is left alone, and said to be",
        removed(),
        f"{_REPLICAS}::test_a_rotten_log_is_left_alone",
    ),
    one_change(
        "a-healed-log-is-compacted-no-more",
        "B20: a log that was healed is compacted again",
        value("False"),
        f"{_REPLICAS}::test_a_log_that_rotted_is_healed_and_then_compacted",
    ),
    one_change(
        "compaction-heals-nothing",
        "B20: rot that compaction meets is healed",
        removed(),
        f"{_REPLICAS}::test_a_log_that_rotted_is_healed_and_then_compacted",
    ),
    one_change(
        "a-run-takes-rot",
        "B20: what is copied holds its CRC, in runs of batches too",
        instead("return header\n..."),
        f"{_RUNS}::test_what_a_run_leaves",
    ),
    one_change(
        "a-run-begins-no-horizon",
        "B20: a tombstone that stays gets its delete horizon (KIP-534), in runs of batches too",
        never(),
        f"{_RUNS}::test_what_stays_of_a_run",
    ),
    one_change(
        "segments-that-went-are-looked-for",
        "B20: a log that lost several segments meanwhile ends the pass, and nothing else",
        removed(),
        f"{_LOG}::test_retention_takes_segments_while_they_are_compacted[in each step]",
    ),
    one_change(
        "compaction-takes-the-loop",
        "B20: compaction takes half of the event loop's time at most",
        part("rest_ms if rest_ms >= REST_MS else 0.0", "0.0"),
        "tests/replica/test_compaction_pace.py::test_it_rests_as_long_as_it_has_worked",
    ),
    one_change(
        "records-without-a-key",
        "B20: a compacted topic takes no record without a key (KIP-467)",
        never(),
        f"{_LOG}::test_records_without_a_key",
    ),
    Mutant(
        "any-topic-of-the-name-was-compacted",
        "B28: what was compacted of a topic counts for no other of its name",
        (
            dropped("self._cleaned_topics.get(tp) == plog.topic_id"),
            value("list(...)[:3]"),
            part("plog.cleaned_to", "... or self.cleaned.get(tp, 0)"),
        ),
        (f"{_REPLICAS}::test_93_a_deleted_key_stays_deleted_in_a_topic_made_again",),
    ),
    one_change(
        "compacted-by-name",
        "B28: each entry of the cleaner's checkpoint names its topic by id",
        dropped("self._cleaned_topics.get(tp) == plog.topic_id"),
        f"{_DIRECTORY}::test_93_what_was_compacted_is_of_one_topic",
    ),
    one_change(
        "what-was-compacted-outlives-its-log",
        "B28: entries of the cleaner's checkpoint leave with the replica",
        value("list(...)[:3]"),
        f"{_DIRECTORY}::test_93_what_was_compacted_goes_with_the_log",
    ),
    one_change(
        "what-was-cut-counts-as-compacted",
        "B28: a cut lowers the cleaner's checkpoint first",
        instead("del by_name[CLEANER_OFFSETS]\n..."),
        f"{_DIRECTORY}::test_what_was_cut_is_not_compacted",
    ),
    one_change(
        "compacted-beyond-the-end",
        "B28: an entry beyond the log's end is of other records",
        part("0 <= offset <= plog.log_end_offset", "True"),
        f"{_DIRECTORY}::test_what_a_log_lacks_was_not_compacted",
    ),
)
