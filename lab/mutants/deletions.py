"""Mutants of deletions: records from the front of a log (KIP-107), and directories that nothing is assigned to."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed, value

_DELETIONS = "tests/replica/test_deletions.py"
_LOG_DIR = "tests/log/test_log_dir.py"
_WRITER = "tests/log/test_checkpoint_writer.py"
_STRAYS = "tests/log/test_strays.py"
_RETURN = "tests/chaos/test_strays.py::test_a_broker_comes_back_after_topics_were_deleted"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "leader-answers-before-its-log-start-is-durable",
        "B15: DeleteRecords: answered once the log start is durable on the leader",
        part("plog.durable_log_start_offset", "plog.log_start_offset"),
        f"{_DELETIONS}::test_a_deletion_outlives_the_death_of_all",
    ),
    Mutant(
        "follower-tells-before-its-log-start-is-durable",
        "B15: DeleteRecords: answered once the log start is durable on every replica in sync",
        (
            instead(
                "...\n"
                "from strandline.replica import frames\n"
                "self._fetcher._push(frames.pack_deleted(self.id, self.log.log_start_offset))"
            ),
        ),
        (f"{_DELETIONS}::test_a_deletion_outlives_the_death_of_all",),
    ),
    one_change(
        "joins-with-what-was-deleted",
        "B5: joining: what clients were told is deleted is durably deleted",
        dropped("follower.log_start_offset >= self.deleted_before"),
        f"{_DELETIONS}::test_a_replica_joins_once_its_deletions_are_durable",
    ),
    one_change(
        "deletions-are-answered-below-min-isr",
        "B15: DeleteRecords: not answered while |ISR| < min: members that left it may be elected",
        never(),
        f"{_DELETIONS}::test_a_deletion_waits_while_too_few_are_in_sync",
    ),
    one_change(
        "an-old-log-start-comes-back",
        "B15: DeleteRecords: a checkpoint that a truncation has overtaken is gathered anew",
        value("False"),
        f"{_WRITER}::test_a_log_that_is_cut_meanwhile_keeps_its_lower_start",
    ),
    one_change(
        "a-promise-is-lowered-and-not-counted",
        "schedule 48: a checkpoint that was gathered before a cut lowered it is gathered anew, whatever the files say",
        removed(),
        f"{_WRITER}::test_a_log_that_is_cut_meanwhile_promises_no_more_than_it_has",
    ),
    one_change(
        "a-promise-is-forgotten-and-not-counted",
        "schedule 48: a checkpoint that was gathered before a deletion is gathered anew, though no file named the log",
        removed(),
        f"{_WRITER}::test_a_log_that_is_deleted_meanwhile_is_not_missed",
    ),
    one_change(
        "what-was-on-the-disk-is-taken-for-what-is",
        "schedule 48: while a checkpoint is being replaced, a cut writes the lowered one whatever was there before",
        removed(),
        f"{_WRITER}::test_a_log_that_is_cut_meanwhile_promises_no_more_than_it_has",
    ),
    one_change(
        "a-start-is-durable-that-was-lowered",
        "B15: log start: durable once a checkpoint has it that no cut has lowered since",
        always(),
        f"{_WRITER}::test_a_log_start_raised_anew_after_a_cut_is_not_durable_yet",
    ),
    one_change(
        "checkpoints-without-room-are-silent",
        "B18: a checkpoint that finds no room says that the disk is full",
        removed(),
        "tests/replica/test_upkeep.py::test_checkpoints_without_room_say_that_the_disk_is_full",
    ),
    one_change(
        "checkpoints-block-the-loop",
        "B18: checkpoints are synced off the event loop, which a slow disk does not stop",
        part("self._directories.write_checkpoints(self._high_watermarks())", "self.checkpoint()"),
        "tests/replica/test_upkeep.py::test_checkpoints_hold_nobody_up",
    ),
    one_change(
        "a-checkpoint-that-hangs-holds-up-the-end",
        "schedule 58: a node that ends because its disk hangs does not wait for its checkpoints",
        removed(),
        f"{_DELETIONS}::test_58_a_broker_on_a_disk_that_hangs_ends_without_its_checkpoints",
    ),
    one_change(
        "what-is-removed-after-a-cut-goes-with-what-was-before",
        "schedule 16: a file that was removed during the delay of others waits for its own log start",
        part("_deletable(log)", "log.removed"),
        f"{_LOG_DIR}::test_retention_deletes_what_lies_below_the_durable_start",
    ),
    one_change(
        "strays-stay",
        "B17: strays: what is assigned here no longer is set aside at a start",
        removed(),
        f"{_RETURN}[combined]",
    ),
    one_change(
        "strays-by-metadata-of-the-past",
        "B17: strays: only metadata that reach the own registration call a directory stray (schedule 31)",
        instead(
            "assigned = assigned_partitions(image, self._node.config.node)\n"
            "self.replicas.directories.set_strays_aside(assigned, knows_topics=True)\n"
            "..."
        ),
        f"{_RETURN}[combined]",
    ),
    one_change(
        "strays-by-name-alone",
        "B17: strays: a directory of another topic of the same name is stray",
        dropped("topic_id not in (None, known)"),
        f"{_STRAYS}::test_what_is_not_assigned_is_set_aside",
    ),
    one_change(
        "strays-on-doubt",
        "B17: strays: a directory whose topic id cannot be read is not stray while its name is assigned (schedule 31)",
        part("topic_id not in (None, known)", "topic_id != known"),
        f"{_STRAYS}::test_damaged_strays_go_too",
    ),
    one_change(
        "strays-are-removed-at-once",
        "B17: strays: a stray is removed after a delay (schedule 31)",
        dropped("now_ms - stray.set_aside_ms >= self._delay_ms"),
        f"{_STRAYS}::test_a_stray_is_removed_after_the_delay",
    ),
    one_change(
        "strays-are-removed-though-assigned",
        "B17: strays: a stray that is assigned here after all is kept (schedule 31)",
        never(),
        f"{_STRAYS}::test_a_stray_that_is_assigned_after_all_is_kept",
    ),
    one_change(
        "segments-outlive-their-topic",
        "schedule 85: what retention had taken goes with the topic's directory",
        removed(),
        "tests/log/test_retention.py::test_85_a_topic_made_anew_loses_nothing_to_the_one_before",
    ),
    one_change(
        "retention-passes-the-high-watermark",
        "schedule 16: retention: nothing above the high watermark goes",
        dropped("end > end_max"),
        "tests/log/test_retention.py::test_nothing_goes_above_the_high_watermark",
    ),
    one_change(
        "retention-counts-what-is-not-committed",
        "schedule 79: retention.bytes counts what lies below the high watermark",
        part("log.size_bytes - _bytes_from(log, limit_offset, pread)", "log.size_bytes"),
        "tests/log/test_retention.py::test_79_size_is_that_of_committed_records",
    ),
    one_change(
        "retention-keeps-less-than-it-may",
        "schedule 16: retention.bytes takes no more than what is too much",
        part("segment.size", "0"),
        "tests/log/test_retention.py::test_size_takes_what_is_too_much_and_never_more",
    ),
    one_change(
        "a-clock-set-ahead-is-believed",
        "schedule 72: time that was set ahead is not believed for a day",
        part("offset_ms - self._offset_ms <= JUMP_MS", "True"),
        "tests/replica/test_retention.py::test_72_a_wall_clock_that_is_set_ahead_deletes_nothing_too_early",
    ),
    one_change(
        "what-expired-unread-is-not-told",
        "B15: log start: what a group had not read when it was deleted is told",
        never(),
        "tests/cluster/node/test_metrics_groups.py::test_what_expired_unread_is_told_where_it_is_known",
    ),
    one_change(
        "a-start-believes-any-clock",
        "schedule 72: a start with a clock of the future goes by the last life's time for a day",
        part("wall_ms - self._last_ms > AWAY_MS", "False"),
        "tests/replica/test_retention.py::"
        "test_72_a_broker_that_starts_with_a_clock_of_the_future_deletes_nothing_too_early",
    ),
    one_change(
        "compaction-has-a-clock-of-its-own",
        "schedule 72: what the last life went by holds for tombstones, too",
        part("believed", "BelievedClock(clock)"),
        "tests/replica/test_compaction.py::test_72_a_start_with_a_clock_of_the_future_takes_no_tombstone_too_early",
    ),
    one_change(
        "strays-go-by-the-wall-clock",
        "B32: what was set aside goes by the time that is believed",
        part("self._believed.earliest_ms", "self._believed.latest_ms"),
        "tests/log/test_strays.py::test_100_a_clock_set_ahead_removes_no_stray",
    ),
    one_change(
        "a-file-is-as-old-as-it-says",
        "B32: a file's time counts no further back than this process has seen the file",
        part("now.earliest_ms - seen_ms", "-1"),
        "tests/log/test_retention.py::test_a_file_of_a_clock_set_back_is_no_older_than_it_was_seen",
    ),
    one_change(
        "a-tiered-segment-is-as-old-as-it-says",
        "B32: the time of a copy counts no further back than this process has known the segment",
        part("now.earliest_ms - int(now.monotonic_ms - since_ms)", "-1"),
        "tests/replica/test_tiering.py::test_a_segment_of_a_clock_set_back_is_no_older_than_it_was_known",
    ),
    one_change(
        "stamps-of-a-clock-set-back",
        "B32: a stamp goes on from before when time is set back by days",
        part("before_ms - offset_ms > AWAY_MS", "False"),
        "tests/proto/test_believed.py::test_100_a_stamp_is_never_earlier_than_what_may_be_the_time",
        "tests/replica/test_retention.py::test_100_records_that_a_clock_of_the_past_stamped_are_not_taken_early",
    ),
    one_change(
        "new-disks-believe-any-clock",
        "B32: a node without a life before has the time of the metadata",
        part("self._is_told", "False"),
        "tests/proto/test_believed.py::test_112_a_new_disk_has_the_time_from_others",
        "tests/cluster/node/test_time_from_metadata.py",
    ),
    one_change(
        "metadata-are-stamped-by-the-wall-clock",
        "B32: the metadata are stamped by the clock that is believed",
        part("self.believed.earliest_ms", "self.clock.wall_ms"),
        "tests/cluster/node/test_time_from_metadata.py",
    ),
    one_change(
        "an-unfounded-time-is-written-down",
        "B32: a time for which nothing speaks is not left to the next life",
        value("True"),
        "tests/proto/test_believed.py::test_112_a_new_disk_has_the_time_from_others",
    ),
    one_change(
        "a-torn-time-is-believed",
        "schedule 83: of a torn time the first digits are no time",
        part("_TIME.fullmatch(text)", "text.strip().isdigit()"),
        "tests/log/test_retention.py::test_a_torn_time_is_none",
    ),
    one_change(
        "tombstones-go-by-a-time-that-is-behind",
        "schedule 83: until when a tombstone stays goes by the later of the believed time and the wall clock's",
        value("now_ms"),
        "tests/log/test_compaction.py::test_a_time_that_is_behind_takes_no_tombstone_early",
    ),
    one_change(
        "the-future-holds-the-disk",
        "schedule 72: a time of the future counts from when the segment was written",
        part("min(newest, written_ms)", "newest"),
        "tests/log/test_retention.py::test_a_record_of_the_future_holds_nobodys_disk",
    ),
    one_change(
        "files-go-before-the-next-ones-name-is-durable",
        "schedule 16: a file goes once the name of the segment behind it is durable",
        dropped("log.recovery_point is None"),
        "tests/log/test_retention.py::test_files_stay_until_the_name_of_the_next_is_durable",
    ),
)
