"""Mutants of rules B8 and B16: truncation, and what a follower makes of an answer."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, condition, dropped, instead, never, one_change, part, removed, value

_SCHEDULES = "tests/schedules/replication"
_DIVERGENCE = "tests/replica/test_divergence.py"
_STREAMS = "tests/replica/test_streams.py"
_FOLLOWER_STREAMS = "tests/replica/test_follower_streams.py"
_FAULTS = "tests/replica/test_faults.py"
_LARGE = f"{_SCHEDULES}/test_large_batches.py"
_PIECES = "tests/replica/test_pieces.py"

TABLE: tuple[Mutant, ...] = (
    Mutant(
        "truncate-to-high-watermark",
        "B8: truncation goes by epoch (schedule 1)",
        (instead("plog.truncate_to(partition.high_watermark)\n..."),),
        (f"{_SCHEDULES}/test_truncation.py::test_01_a_restarted_follower_keeps_what_was_acked[holds]",),
    ),
    Mutant(
        "no-iteration",
        "B8: the follower cuts at the end of its own largest epoch below, and asks again (schedule 2)",
        (part("history.end_offset_for_epoch(leader_epoch)", "(leader_epoch, log_end)"),),
        (f"{_SCHEDULES}/test_truncation.py::test_02_back_to_back_failovers[holds]",),
    ),
    Mutant(
        "no-epoch-at-election",
        "B8: (epoch, end offset) is persisted on becoming leader (schedule 3)",
        (removed(),),
        (f"{_SCHEDULES}/test_truncation.py::test_03_two_elections_without_appends[holds]",),
    ),
    Mutant(
        "no-truncation-when-the-leader-returns",
        "B8: truncation is judged in every new leader epoch, whoever leads (schedule 4)",
        (
            part(
                "LeaderEpoch(epoch)",
                "... if vars(self).setdefault('known', {}).setdefault(following.partition, following.core) is "
                "following.core else LeaderEpoch(-1)",
            ),
        ),
        (f"{_SCHEDULES}/test_truncation.py::test_04_the_same_leader_again[holds]",),
    ),
    Mutant(
        "empty-epochs-stay",
        "B8: a cut at the very end cleans the epochs (schedule 5)",
        (
            removed(),
            removed(),
        ),
        (f"{_SCHEDULES}/test_truncation.py::test_05_empty_epochs[holds]",),
    ),
    Mutant(
        "diverging-fetch-recorded",
        "B8: on DIVERGING the leader does not record the fetch (schedule 6)",
        (
            instead(
                "partition._carry_out(core.fetched(self.node_id, self.broker_epoch, "
                "fetch_offset=fetch.fetch_offset, durable_offset=fetch.durable_offset, "
                "log_start_offset=fetch.log_start_offset, now_ms=self.now_ms))\n"
                "..."
            ),
        ),
        (f"{_SCHEDULES}/test_truncation.py::test_06_a_diverging_offset_counts_for_nothing[holds]",),
    ),
    Mutant(
        "watermark-from-a-diverging-answer",
        "B8: on DIVERGING the follower ignores the high watermark (schedule 7)",
        (
            instead(
                "self.push(frames.pack_accepted(fetch.subscription, partition.channel, core.high_watermark, "
                "plog.log_start_offset))\n"
                "..."
            ),
        ),
        (f"{_SCHEDULES}/test_truncation.py::test_07_an_ex_leader_cuts_first[holds]",),
    ),
    one_change(
        "only-exact-epochs-are-known",
        "B8: truncation: the largest epoch <= the one asked for",
        condition("... or self._epochs[i] != epoch"),
        "tests/log/test_epochs.py",
    ),
    one_change(
        "unknown-epoch-is-valid",
        "B8: truncation: an epoch that the leader does not know diverges",
        dropped("epoch != fetch_epoch"),
        f"{_DIVERGENCE}::test_a_follower_that_has_only_larger_epochs_starts_over",
    ),
    one_change(
        "longer-log-is-valid",
        "B8: truncation: beyond the end of that epoch it diverges",
        dropped("end_offset < fetch_offset"),
        f"{_DIVERGENCE}::test_a_longer_log_of_the_same_epoch_diverges",
    ),
    one_change(
        "out-of-range-is-diverging",
        "B8: truncation: below the log start is OFFSET_OUT_OF_RANGE, even when diverging",
        never(),
        f"{_DIVERGENCE}::test_below_the_log_start_is_out_of_range_even_when_diverging",
    ),
    one_change(
        "only-larger-epochs-are-kept",
        "B8: truncation: who has only larger epochs starts over (schedule 2)",
        value("min(leader_end_offset, log_end)"),
        f"{_DIVERGENCE}::test_a_follower_that_has_only_larger_epochs_starts_over",
    ),
    one_change(
        "cuts-at-its-own-end-of-the-epoch",
        "B8: truncation: at the smaller end of a common epoch",
        removed(),
        f"{_DIVERGENCE}::test_where_a_follower_cuts",
    ),
    one_change(
        "verdict-on-an-older-fetch-counts",
        "B16: responses: only those to the latest fetch",
        value("... or next(iter(self._by_id.values()), None)"),
        f"{_FOLLOWER_STREAMS}::test_only_answers_to_the_latest_fetch_count",
    ),
    one_change(
        "verdict-on-another-position-counts",
        "B16: responses: only while the fetch offset is still the position",
        dropped("following.hole is None and following.fetch_offset != following.log.log_end_offset"),
        f"{_FOLLOWER_STREAMS}::test_a_verdict_on_a_position_that_has_moved",
    ),
    one_change(
        "data-of-another-leader-epoch",
        "B16: responses: data of the leader epoch that was asked in",
        never(),
        f"{_FOLLOWER_STREAMS}::test_data_of_another_leader_epoch",
    ),
    one_change(
        "data-of-an-older-channel",
        "B16: responses: data of a subscription that has ended are dropped",
        removed(),
        f"{_FOLLOWER_STREAMS}::test_data_that_do_not_fit_are_fetched_again",
    ),
    one_change(
        "large-batches-in-one-frame",
        "B16: what was appended can be replicated: a large batch goes in pieces (schedule 54)",
        dropped("size > self._entry_bytes_max"),
        f"{_LARGE}::test_54_one_batch_above_the_frame_limit[holds]",
    ),
    Mutant(
        "large-batches-in-one-frame-to-who-lags",
        "B16: what was appended can be replicated: a large batch goes in pieces (schedule 54)",
        (
            part("chunk", "1 << 40"),
            part("chunk", "1 << 40"),
        ),
        (f"{_LARGE}::test_54_a_follower_catches_up_over_a_batch_above_the_frame_limit[holds]",),
    ),
    one_change(
        "two-batches-in-pieces-at-once",
        "B16: what was appended can be replicated: one batch in pieces at a time on a stream (schedule 54)",
        dropped("free"),
        f"{_PIECES}::test_one_batch_at_a_time_goes_in_pieces",
    ),
    one_change(
        "a-piece-goes-on-anywhere",
        "B16: what was appended can be replicated: pieces that do not follow on each other are refused (schedule 54)",
        dropped("piece.position != len(self._batch)"),
        f"{_PIECES}::test_pieces_that_make_no_sense_end_the_stream",
    ),
    one_change(
        "pieces-outlive-their-subscription",
        "B16: responses: pieces of a subscription that has ended are dropped (schedule 54)",
        removed(),
        f"{_PIECES}::test_a_new_subscription_begins_the_batch_anew",
    ),
    one_change(
        "a-log-begins-with-a-batch",
        "B16: a log may begin inside its first batch (schedule 55)",
        part("self.size_bytes == 0", "False"),
        f"{_SCHEDULES}/test_storage.py::test_55_records_deleted_up_to_the_middle_of_a_batch[holds]",
    ),
    one_change(
        "a-start-inside-a-batch-is-durable",
        "B16: a log start that is not durable any more is not told as durable (schedule 78)",
        never(),
        "tests/replica/test_deletions.py::"
        "test_78_a_replica_that_begins_inside_a_batch_joins_once_its_start_is_durable[holds]",
    ),
    one_change(
        "what-was-deleted-comes-back-with-its-batch",
        "B16: a log may begin inside its first batch, and shows nothing before its start (schedule 55)",
        removed(),
        "tests/log/test_start_inside_a_batch.py::test_an_empty_log_takes_the_batch_that_holds_its_start",
    ),
    Mutant(
        "a-damaged-batch-empties-the-log",
        "B16: a log may begin inside its first batch, once that is found whole (schedule 55)",
        (
            removed(),
            instead("...\nheaders = check_replicated_batches(batches, first.base_offset, self.epochs.latest)"),
        ),
        ("tests/log/test_start_inside_a_batch.py::test_other_batches_change_nothing",),
    ),
    one_change(
        "acknowledges-what-was-never-sent",
        "B9: acks: nobody acknowledges what it was not sent",
        never(),
        f"{_STREAMS}::test_nonsense_ends_the_stream_and_nothing_else",
    ),
    one_change(
        "fetch-of-an-older-epoch",
        "B1: four epochs: FENCED_LEADER_EPOCH for a fetch of an older one",
        never(),
        f"{_STREAMS}::test_fetches_that_are_refused",
    ),
    one_change(
        "fetch-of-a-newer-epoch",
        "B1: four epochs: UNKNOWN_LEADER_EPOCH for a fetch of a newer one",
        never(),
        f"{_STREAMS}::test_fetches_that_are_refused",
    ),
    one_change(
        "older-process-is-let-in",
        "B1: four epochs: a stream of an older process is refused",
        never(),
        f"{_STREAMS}::test_who_is_not_let_in",
    ),
    one_change(
        "older-process-stays",
        "B1: four epochs: a newer registration ends the older process' stream (schedule 8)",
        never(),
        f"{_STREAMS}::test_the_stream_of_an_older_process_is_ended",
    ),
    one_change(
        "cuts-committed-records-silently",
        "B8: truncation: below the high watermark only where an unclean election explains it",
        part("cut.below_high_watermark and (not self.may_lose_committed)", "False"),
        f"{_FAULTS}::test_a_cut_below_the_high_watermark_is_refused",
    ),
    one_change(
        "follower-watermark-beyond-its-end",
        "B4: high watermark: a follower's is min(own end, the leader's)",
        part("min(leader_high_watermark, log_end)", "leader_high_watermark"),
        f"{_DIVERGENCE}::test_a_followers_high_watermark_is_bounded_by_its_own_end",
    ),
    one_change(
        "follower-begins-beyond-its-end",
        "B4: high watermark: at most the own end, from the start",
        part("min(high_watermark, log_end_offset)", "high_watermark"),
        f"{_DIVERGENCE}::test_a_followers_high_watermark_is_bounded_by_its_own_end",
    ),
    one_change(
        "follower-watermark-survives-a-cut",
        "B4: high watermark: it falls with a cut below it",
        removed(),
        f"{_FAULTS}::test_after_an_unclean_election_it_is_cut_and_told",
    ),
    one_change(
        "follower-appends-over-a-gap",
        "B16: replicated batches follow on the log's end",
        never(),
        "tests/log/test_partition_log.py::test_what_a_follower_refuses",
    ),
    one_change(
        "follower-epochs-go-back",
        "B1: leader epochs never go back in a log",
        never(),
        "tests/log/test_partition_log.py::test_what_a_follower_refuses",
    ),
    one_change(
        "follower-believes-every-byte",
        "B16: replicated batches hold their CRC",
        removed(),
        "tests/log/test_partition_log.py::test_what_a_follower_refuses",
    ),
    one_change(
        "failed-deletion-fells-the-node",
        "schedule 18: an I/O error takes the partition offline, and nothing else",
        value("ZeroDivisionError"),
        f"{_FOLLOWER_STREAMS}::test_a_disk_that_fails_where_the_log_begins_anew",
    ),
)
