"""Mutants of deletions: records from the front of a log (KIP-107), and directories that nothing is assigned to."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, Patch, one_change

_DELETIONS = "tests/replica/test_deletions.py"
_LOG_DIR = "tests/log/test_log_dir.py"
_WRITER = "tests/log/test_checkpoint_writer.py"
_STRAYS = "tests/log/test_strays.py"
_RETURN = "tests/chaos/test_strays.py::test_a_broker_comes_back_after_topics_were_deleted"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "leader-answers-before-its-log-start-is-durable",
        "B15: DeleteRecords: answered once the log start is durable on the leader",
        "replica.partition:Partition._answer_deletions",
        "plog.durable_log_start_offset",
        "plog.log_start_offset",
        f"{_DELETIONS}::test_a_deletion_outlives_the_death_of_all",
    ),
    Mutant(
        "follower-tells-before-its-log-start-is-durable",
        "B15: DeleteRecords: answered once the log start is durable on every replica in sync",
        (
            Patch(
                "replica.following:Following._carry_out",
                "self.partition.raise_log_start(effect.offset)",
                "self.partition.raise_log_start(effect.offset)\n"
                "            from strandline.replica import frames\n"
                "            self._feed._push(frames.pack_deleted(self.id, self.log.log_start_offset))",
            ),
        ),
        (f"{_DELETIONS}::test_a_deletion_outlives_the_death_of_all",),
    ),
    one_change(
        "joins-with-what-was-deleted",
        "B5: joining: what clients were told is deleted is durably deleted",
        "replica.core.leader:LeaderCore._may_join",
        "and follower.log_start_offset >= self.deleted_before",
        "",
        f"{_DELETIONS}::test_a_replica_joins_once_its_deletions_are_durable",
    ),
    one_change(
        "deletions-are-answered-below-min-isr",
        "B15: DeleteRecords: not answered while |ISR| < min: members that left it may be elected",
        "replica.core.leader:LeaderCore.deleted_everywhere",
        "if self.under_min_isr:",
        "if False:",
        f"{_DELETIONS}::test_a_deletion_waits_while_too_few_are_in_sync",
    ),
    one_change(
        "an-old-log-start-comes-back",
        "B15: DeleteRecords: a checkpoint that a truncation has overtaken is gathered anew",
        "log.log_dir:LogDir.has_taken_back",
        "self._promises.changes != gathered.changes",
        "False",
        f"{_WRITER}::test_a_log_that_is_cut_meanwhile_keeps_its_lower_start",
    ),
    one_change(
        "a-promise-is-lowered-and-not-counted",
        "schedule 48: a checkpoint that was gathered before a cut lowered it is gathered anew, whatever the files say",
        "log.promises:Promises.lower",
        "self.changes += 1",
        "pass",
        f"{_WRITER}::test_a_log_that_is_cut_meanwhile_promises_no_more_than_it_has",
    ),
    one_change(
        "a-promise-is-forgotten-and-not-counted",
        "schedule 48: a checkpoint that was gathered before a deletion is gathered anew, though no file named the log",
        "log.promises:Promises.forget",
        "self.changes += 1",
        "pass",
        f"{_WRITER}::test_a_log_that_is_deleted_meanwhile_is_not_missed",
    ),
    one_change(
        "what-was-on-the-disk-is-taken-for-what-is",
        "schedule 48: while a checkpoint is being replaced, a cut writes the lowered one whatever was there before",
        "log.log_dir:LogDir.replacing",
        "self._promises.replacing(gathered.data)",
        "pass",
        f"{_WRITER}::test_a_log_that_is_cut_meanwhile_promises_no_more_than_it_has",
    ),
    one_change(
        "a-start-is-durable-that-was-lowered",
        "B15: log start: durable once a checkpoint has it that no cut has lowered since",
        "log.checkpoint_writer:CheckpointWriter._write",
        "if not log_dir.has_taken_back(gathered):",
        "if True:",
        f"{_WRITER}::test_a_log_start_raised_anew_after_a_cut_is_not_durable_yet",
    ),
    one_change(
        "checkpoints-without-room-are-silent",
        "B18: a checkpoint that finds no room says that the disk is full",
        "log.checkpoint_writer:CheckpointWriter._run",
        "self._on_full()",
        "pass",
        "tests/replica/test_upkeep.py::test_checkpoints_without_room_say_that_the_disk_is_full",
    ),
    one_change(
        "checkpoints-block-the-loop",
        "B18: checkpoints are synced off the event loop, which a slow disk does not stop",
        "replica.upkeep:Upkeep._sweep",
        "self._shared.checkpoints.write_all()",
        "self.checkpoint()",
        "tests/replica/test_upkeep.py::test_checkpoints_hold_nobody_up",
    ),
    one_change(
        "a-checkpoint-that-hangs-holds-up-the-end",
        "schedule 58: a node that ends because its disk hangs does not wait for its checkpoints",
        "replica.manager:ReplicaManager.close",
        "shared.checkpoints.abandon()",
        "pass",
        f"{_DELETIONS}::test_58_a_broker_on_a_disk_that_hangs_ends_without_its_checkpoints",
    ),
    one_change(
        "what-is-removed-after-a-cut-goes-with-what-was-before",
        "schedule 16: a file that was removed during the delay of others waits for its own log start",
        "log.log_dir:LogDir._delete_removed",
        "while count and _deletable(log):",
        "while count and log.removed:",
        f"{_LOG_DIR}::test_retention_deletes_what_lies_below_the_durable_start",
    ),
    one_change(
        "strays-stay",
        "B17: strays: what is assigned here no longer is set aside at a start",
        "cluster.node.broker_role:BrokerRole._await_own_registration",
        "self.replicas.strays.set_aside(assigned_partitions(image, self._node.config.node))",
        "pass",
        f"{_RETURN}[combined]",
    ),
    one_change(
        "strays-by-metadata-of-the-past",
        "B17: strays: only metadata that reach the own registration call a directory stray (schedule 31)",
        "cluster.node.broker_role:BrokerRole._await_own_registration",
        "own = image.brokers.get(self._node.config.node)",
        "own = image.brokers.get(self._node.config.node)\n"
        "        self.replicas.strays.set_aside(assigned_partitions(image, self._node.config.node))",
        f"{_RETURN}[combined]",
    ),
    one_change(
        "strays-by-name-alone",
        "B17: strays: a directory of another topic of the same name is stray",
        "log.strays:Strays._strays",
        "known is None or topic_id not in (None, known)",
        "known is None",
        f"{_STRAYS}::test_what_is_not_assigned_is_set_aside",
    ),
    one_change(
        "strays-on-doubt",
        "B17: strays: a directory whose topic id cannot be read is not stray while its name is assigned (schedule 31)",
        "log.strays:Strays._strays",
        "topic_id not in (None, known)",
        "topic_id != known",
        f"{_STRAYS}::test_damaged_strays_go_too",
    ),
    one_change(
        "strays-are-removed-at-once",
        "B17: strays: a stray is removed after a delay (schedule 31)",
        "log.strays:Strays.remove_due",
        "if now_ms - stray.set_aside_ms >= self._delay_ms",
        "",
        f"{_STRAYS}::test_a_stray_is_removed_after_the_delay",
    ),
    one_change(
        "strays-are-removed-though-assigned",
        "B17: strays: a stray that is assigned here after all is kept (schedule 31)",
        "log.strays:Strays._remove",
        "if topic_id is not None and is_assigned(TopicIdPartition(topic_id, number)):",
        "if False:",
        f"{_STRAYS}::test_a_stray_that_is_assigned_after_all_is_kept",
    ),
    one_change(
        "retention-passes-the-high-watermark",
        "schedule 16: retention: nothing above the high watermark goes",
        "log.retention:find_expired",
        "if end > limit_offset or not segment.size:",
        "if not segment.size:",
        "tests/log/test_retention.py::test_nothing_goes_above_the_high_watermark",
    ),
    one_change(
        "retention-counts-what-is-not-committed",
        "schedule 79: retention.bytes counts what lies below the high watermark",
        "log.retention:find_expired",
        "log.size_bytes - _bytes_from(log, limit_offset, pread) - config",
        "log.size_bytes - config",
        "tests/log/test_retention.py::test_79_size_is_that_of_committed_records",
    ),
    one_change(
        "retention-keeps-less-than-it-may",
        "schedule 16: retention.bytes takes no more than what is too much",
        "log.retention:find_expired",
        "elif excess >= segment.size:",
        "elif excess >= 0:",
        "tests/log/test_retention.py::test_size_takes_what_is_too_much_and_never_more",
    ),
    one_change(
        "a-clock-set-ahead-is-believed",
        "schedule 72: time that was set ahead is not believed for a day",
        "log.retention:RetentionClock.read",
        "offset_ms - self._offset_ms <= JUMP_MS",
        "True",
        "tests/replica/test_retention.py::test_72_a_wall_clock_that_is_set_ahead_deletes_nothing_too_early",
    ),
    one_change(
        "what-expired-unread-is-not-told",
        "B15: log start: what a group had not read when it was deleted is told",
        "cluster.node.metrics_groups:of_groups",
        "replica.log is not None and offset < replica.log.log_start_offset",
        "False",
        "tests/cluster/node/test_metrics_groups.py::test_what_expired_unread_is_told_where_it_is_known",
    ),
    one_change(
        "a-start-believes-any-clock",
        "schedule 72: a start with a clock of the future goes by the last life's time for a day",
        "log.retention:RetentionClock.read",
        "wall_ms - self._last_ms > AWAY_MS",
        "False",
        "tests/replica/test_retention.py::"
        "test_72_a_broker_that_starts_with_a_clock_of_the_future_deletes_nothing_too_early",
    ),
    one_change(
        "the-future-holds-the-disk",
        "schedule 72: a time of the future counts from when the segment was written",
        "log.retention:_newest_ms",
        "min(newest_ms, written_ms)",
        "newest_ms",
        "tests/log/test_retention.py::test_a_record_of_the_future_holds_nobodys_disk",
    ),
    one_change(
        "files-go-before-the-next-ones-name-is-durable",
        "schedule 16: a file goes once the name of the segment behind it is durable",
        "log.log_dir:_deletable",
        "not log.removed or log.recovery_point is None",
        "not log.removed",
        "tests/log/test_retention.py::test_files_stay_until_the_name_of_the_next_is_durable",
    ),
)
