"""Mutants of correctness rule B: truncation, and what a follower makes of an answer."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant, Patch

_SCHEDULES = "tests/schedules/replication"

TABLE: tuple[Mutant, ...] = (
    Mutant(
        "truncate-to-high-watermark",
        "B: truncation goes by epoch (D-1)",
        (
            Patch(
                "replica.partition_set:PartitionSet._take_role",
                "partition.follow(",
                "plog.truncate_to(partition.high_watermark)\n            partition.follow(",
            ),
        ),
        (f"{_SCHEDULES}/test_truncation.py::test_01_a_restarted_follower_keeps_what_was_acked[holds]",),
    ),
    Mutant(
        "no-iteration",
        "B: the follower cuts at the end of its own largest epoch below, and asks again (D-2)",
        (
            Patch(
                "replica.core.divergence:truncation_offset",
                "own_epoch, own_end = history.end_offset_for_epoch(leader_epoch)",
                "own_epoch, own_end = leader_epoch, log_end",
            ),
        ),
        (f"{_SCHEDULES}/test_truncation.py::test_02_back_to_back_failovers[holds]",),
    ),
    Mutant(
        "no-epoch-at-election",
        "B: (epoch, end offset) is persisted on becoming leader (D-3)",
        (
            Patch(
                "replica.partition_set:PartitionSet._lead",
                "plog.assign_epoch_start(state.leader_epoch, plog.log_end_offset)",
                "pass",
            ),
        ),
        (f"{_SCHEDULES}/test_truncation.py::test_03_two_elections_without_appends[holds]",),
    ),
    Mutant(
        "no-truncation-when-the-leader-returns",
        "B: truncation is judged in every new leader epoch, whoever leads (D-4)",
        (
            Patch(
                "replica.fetcher:Fetcher._fetch",
                "plog.log_end_offset,\n                    plog.latest_epoch,",
                "plog.log_end_offset,\n                    plog.latest_epoch if vars(self).setdefault('known', {})"
                ".setdefault(following.partition, following.core) is following.core else -1,",
            ),
        ),
        (f"{_SCHEDULES}/test_truncation.py::test_04_the_same_leader_again[holds]",),
    ),
    Mutant(
        "empty-epochs-stay",
        "B: a cut at the very end cleans the epochs (D-5)",
        (
            Patch("replica.fetcher:Fetcher.on_diverging", "plog.epochs.truncate_from_end(new_end)", "pass"),
            Patch(
                "log.partition_log:PartitionLog.truncate_to",
                "self.epochs.truncate_from_end(self.log_end_offset)",
                "pass",
            ),
        ),
        (f"{_SCHEDULES}/test_truncation.py::test_05_empty_epochs[holds]",),
    ),
    Mutant(
        "diverging-fetch-recorded",
        "B: on DIVERGING the leader does not record the fetch (D-6)",
        (
            Patch(
                "replica.leader_stream:FollowerLink.on_fetch",
                "if verdict is Verdict.DIVERGING:",
                "if verdict is Verdict.DIVERGING:\n            self._host.progressed(partition, core.fetched("
                "self.node_id, self.broker_epoch, fetch_offset=fetch.fetch_offset, "
                "durable_offset=fetch.durable_offset, log_start_offset=fetch.log_start_offset, now_ms=self.now_ms))",
            ),
        ),
        (f"{_SCHEDULES}/test_truncation.py::test_06_a_diverging_offset_counts_for_nothing[holds]",),
    ),
    Mutant(
        "watermark-from-a-diverging-answer",
        "B: on DIVERGING the follower ignores the high watermark (D-7)",
        (
            Patch(
                "replica.leader_stream:FollowerLink.on_fetch",
                "if verdict is Verdict.DIVERGING:",
                "if verdict is Verdict.DIVERGING:\n            self.push(frames.pack_accepted(fetch.subscription, "
                "partition.channel, core.high_watermark, plog.log_start_offset))",
            ),
        ),
        (f"{_SCHEDULES}/test_truncation.py::test_07_an_ex_leader_cuts_first[holds]",),
    ),
)
