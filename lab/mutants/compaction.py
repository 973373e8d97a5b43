"""Mutants of compaction: what may vanish, how segments are swapped, what followers take (rule B20)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_LOG = "tests/log/test_compaction.py"
_CRASHES = "tests/log/test_compaction_crashes.py"
_REPLICAS = "tests/replica/test_compaction.py"
_SWAP = f"{_CRASHES}::test_75_every_step_of_a_swap"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "what-is-not-synced-supersedes",
        "schedule 73: only what is durable here supersedes",
        "log.cleanable:find_cleanable",
        "min(limit_offset, log.durable_offset)",
        "limit_offset",
        f"{_LOG}::test_73_only_what_is_durable_supersedes",
    ),
    one_change(
        "what-is-not-committed-supersedes",
        "B20: nothing above the high watermark is compacted, or supersedes (schedule 38)",
        "log.cleanable:find_cleanable",
        "min(limit_offset, log.durable_offset)",
        "log.durable_offset",
        f"{_REPLICAS}::test_what_is_not_committed_supersedes_nothing",
    ),
    one_change(
        "gaps-are-taken-whole",
        "schedule 74: a follower takes the rest of a gap",
        "log.partition_log:PartitionLog.append_as_follower",
        "if first.is_gap and",
        "if False and",
        f"{_LOG}::test_74_a_follower_goes_on_in_the_middle_of_a_gap",
    ),
    one_change(
        "swap-of-what-is-not-synced",
        "schedule 75: what is swapped in is durable before it has a name",
        "log.compaction:_Writer.close",
        "await self._log.disk.sync([self._new.file, *files])",
        "pass",
        f"{_SWAP}[without power]",
    ),
    one_change(
        "old-segments-go-first",
        "schedule 75: the new segment's name is durable before the old ones make way",
        "log.swap:Swap.carry_out",
        "self._new.rename(SWAP_SUFFIX)\n            await log.disk.sync([], [log.directory])",
        "self._new.rename(SWAP_SUFFIX)\n            import asyncio\n            await asyncio.sleep(0)",
        f"{_SWAP}[without power]",
    ),
    one_change(
        "old-segments-come-back",
        "schedule 75: the old segments are gone durably before the new one has its name",
        "log.swap:Swap.carry_out",
        "aside = self._replace()\n            await log.disk.sync([], [log.directory])",
        "aside = self._replace()\n            import asyncio\n            await asyncio.sleep(0)",
        f"{_SWAP}[without power]",
    ),
    one_change(
        "swaps-are-leftovers",
        "schedule 75: a start finishes a swap that was cut short",
        "log.recovery:_Opening._tidy_names",
        "finish_swaps(self.disk, self.directory, names)",
        "False",
        f"{_SWAP}[killed]",
    ),
    one_change(
        "a-cut-forgets-the-swap",
        "schedule 75: a log that is cut gives a swap up, or finishes it, first",
        "log.truncation:cut_whole",
        "log.swap.settle()",
        "pass",
        f"{_CRASHES}::test_a_cut_in_the_middle_of_a_swap",
    ),
    one_change(
        "expired-segments-come-back",
        "B20: segments that left the log meanwhile are not swapped",
        "log.swap:Swap._stands",
        "segments, old = self._log.segments, self._old",
        "return True",
        f"{_CRASHES}::test_retention_takes_segments_while_they_are_swapped",
    ),
    one_change(
        "expired-segments-are-not-synced",
        "schedule 76: a segment that left the log is synced with what follows it",
        "log.truncation:cut_start",
        "if not log.unsynced.close_later(segment.file):",
        "log.unsynced.drop(segment.file)\n        if True:",
        "tests/log/test_power_cut.py::test_76_expired_segments_are_synced_until_the_log_start_is_durable",
    ),
    one_change(
        "tombstones-go-at-once",
        "B20: a tombstone stays until its delete horizon (KIP-534)",
        "log.compaction:Compaction._what_stays",
        "header.has_delete_horizon and self._now_ms > header.base_timestamp",
        "True",
        f"{_LOG}::test_a_tombstone_goes_when_its_time_is_over",
    ),
    one_change(
        "producers-are-compacted-away",
        "C2: batches that a producer's retries are known by stay, empty",
        "log.compaction:Compaction._is_remembered",
        "entry is not None and",
        "False and entry is not None and",
        f"{_LOG}::test_producers_are_known_by_what_stays",
    ),
    one_change(
        "holes-in-the-log",
        "B20: compaction leaves no hole: a batch that was lost would look like one",
        "log.compaction:_Writer._end_gap",
        "self._add(gap_batch(*self._gap))",
        "pass",
        f"{_LOG}::test_gaps_are_batches",
    ),
    one_change(
        "gaps-over-epochs",
        "B20: a gap is of one leader epoch",
        "log.compaction:_Writer.take",
        "gap[2] == header.leader_epoch and ",
        "",
        f"{_LOG}::test_gaps_are_batches",
    ),
    one_change(
        "rot-is-copied",
        "B20: what is copied holds its CRC",
        "log.compaction:Compaction._batches",
        "verify_crc(batch)",
        "pass",
        f"{_LOG}::test_a_rotten_batch_ends_the_pass",
    ),
    one_change(
        "rot-is-tried-for-ever",
        "B20: a log that cannot be read is left alone, and said to be",
        "replica.compaction:Compactor._give_up",
        "self.uncleanable[plog] = str(error)",
        "pass",
        f"{_REPLICAS}::test_a_rotten_log_is_left_alone",
    ),
    one_change(
        "records-without-a-key",
        "B20: a compacted topic takes no record without a key (KIP-467)",
        "log.validation:check_client_batches",
        "if config.compacted:",
        "if False:",
        f"{_LOG}::test_records_without_a_key",
    ),
)
