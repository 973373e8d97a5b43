"""Mutants of single clauses and of the edges of comparisons, in rules whose whole has a mutant elsewhere."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed

_RAFT = "tests/controller/raft"
_ISR = "tests/controller/machine/test_isr.py"
_BROKERS = "tests/controller/machine/test_brokers.py"
_LEADER_ISR = "tests/replica/test_leader_isr.py"
_PRODUCERS = "tests/log/test_producer_state.py"

QUORUM: tuple[Mutant, ...] = (
    one_change(
        "check-quorum-after-one-fetch-timeout",
        "A5: a leader waits for 1.5 fetch timeouts",
        part("node.config.fetch_timeout_ms * CHECK_QUORUM_FACTOR", "node.config.fetch_timeout_ms"),
        f"{_RAFT}/test_raft_leader.py::test_a5_a_leader_without_fetches_of_a_majority_resigns",
    ),
    Mutant(
        "commit-at-the-start-of-the-epoch",
        "A6: the majority's offset is beyond the epoch's start, not at it",
        (
            part("majority_end <= self.epoch_start_offset", "majority_end < self.epoch_start_offset"),
            part(
                "self.epoch_start_offset < known <= self.node.log.end_offset",
                "self.epoch_start_offset <= known <= self.node.log.end_offset",
            ),
        ),
        (f"{_RAFT}/test_raft_leader.py::test_a6_nothing_of_an_older_epoch_is_committed_by_count",),
    ),
    one_change(
        "new-leader-tells-the-high-watermark-it-knew",
        "A6: a new leader's high watermark is unknown until its epoch has one",
        part("-1 if self.epoch_high_watermark is None else self.epoch_high_watermark", "self.core.high_watermark"),
        f"{_RAFT}/test_raft_leader.py::test_a6_a_new_leader_tells_no_high_watermark_before_its_epoch_has_one",
    ),
    one_change(
        "diverging-fetch-is-parked",
        "A7: divergence is answered at once",
        instead(
            "self._parked[request.replica] = ParkedFetch(token, request, now_ms + request.max_wait_ms, "
            "self._answer(diverging=diverging))"
        ),
        f"{_RAFT}/test_raft_leader.py::test_a7_divergence_and_snapshot_are_answered_at_once",
    ),
    one_change(
        "fetch-that-needs-a-snapshot-is-parked",
        "A7: that a snapshot is needed is answered at once",
        instead(
            "self._parked[request.replica] = ParkedFetch(token, request, now_ms + request.max_wait_ms, "
            "self._answer(snapshot=log.snapshot))"
        ),
        f"{_RAFT}/test_raft_leader.py::test_a7_divergence_and_snapshot_are_answered_at_once",
    ),
)

PARTITIONS: tuple[Mutant, ...] = (
    one_change(
        "newer-leader-epoch-is-judged",
        "B2: AlterPartition from the future: a leader epoch > the controller's",
        dropped("item.leader_epoch > partition.leader_epoch"),
        f"{_ISR}::test_row_of_the_table[the leader knows a newer leader epoch (D-13)]",
    ),
    one_change(
        "newer-partition-epoch-is-judged",
        "B2: AlterPartition from the future: a partition epoch > the controller's",
        dropped("item.partition_epoch > partition.partition_epoch"),
        f"{_ISR}::test_row_of_the_table[the leader knows a newer partition epoch (D-13)]",
    ),
    one_change(
        "broker-epoch-that-is-not-named-is-asked-for",
        "B2: AlterPartition: a member's broker epoch of -1 is not compared",
        part("member.broker_epoch not in (-1, broker.broker_epoch)", "member.broker_epoch != broker.broker_epoch"),
        f"{_ISR}::test_row_of_the_table[the member's epoch is not asked about]",
    ),
    one_change(
        "what-was-not-attempted-is-sent-again",
        "B2: AlterPartition: OPERATION_NOT_ATTEMPTED ends a proposal",
        instead("if error is ErrorCode.OPERATION_NOT_ATTEMPTED:\n    return Judgement.RETRY\n..."),
        f"{_LEADER_ISR}::test_a_refused_expansion_is_withdrawn",
    ),
    one_change(
        "answer-of-another-leader-epoch-counts",
        "B2: AlterPartition: an answer of another leader epoch, or of an older partition epoch, says nothing",
        never(),
        f"{_LEADER_ISR}::test_an_answer_of_other_epochs_is_ignored",
    ),
    one_change(
        "fenced-broker-waits-for-leaderships-it-has-not",
        "B12: a fenced broker that wants to stop may at once",
        removed(),
        f"{_BROKERS}::test_shutdown_of_a_broker_that_leads_nothing_is_immediate",
    ),
    one_change(
        "clean-marker-not-synced",
        "B13: the clean marker is forced to disk",
        part(
            "write_file_durably(self.disk, f'{self.path}/{CLEAN_SHUTDOWN}', encode_clean_shutdown(epoch))",
            "self.disk.open(f'{self.path}/{CLEAN_SHUTDOWN}', create=True).pwrite(encode_clean_shutdown(epoch), 0)",
        ),
        "tests/schedules/quorum/test_clean_marker.py::test_b_a_clean_marker_is_there_once_the_stop_has_ended",
    ),
)

IDEMPOTENCE: tuple[Mutant, ...] = (
    one_change(
        "duplicate-of-another-epoch",
        "C1: append: a batch of a new epoch is no duplicate of the older one's",
        always(),
        f"{_PRODUCERS}::test_a_new_epoch_knows_nothing_of_the_older_ones_batches",
    ),
    one_change(
        "older-epoch-in-one-append",
        "C1: append: a lower epoch is refused within one append, too",
        removed(),
        f"{_PRODUCERS}::test_several_batches_in_one_append",
    ),
    one_change(
        "gap-in-one-append",
        "C1: append: sequences follow within one append, too",
        removed(),
        f"{_PRODUCERS}::test_several_batches_in_one_append",
    ),
    one_change(
        "snapshot-forgets-the-wrap",
        "C2: snapshots: a batch over the wrap of sequences",
        part("row.last_sequence - row.offset_delta & SEQUENCE_MAX", "row.last_sequence - row.offset_delta"),
        f"{_PRODUCERS}::test_a_snapshot_keeps_a_batch_over_the_wrap_of_sequences",
    ),
    one_change(
        "producer-ids-wrap",
        "C3: producer ids: none beyond the last one",
        never(),
        "tests/controller/machine/test_elections_asked_for.py::test_producer_ids_do_not_begin_again_at_their_end",
    ),
)

DAMAGE: tuple[Mutant, ...] = (
    one_change(
        "idle-log-is-not-vouched-for",
        "E5: what a voter has synced is vouched for after half a minute, also where nothing is written any more",
        part("self._loop.call_later", "lambda *_: None"),
        "tests/schedules/quorum/test_snapshots.py::test_e_what_a_voter_synced_half_a_minute_ago_is_not_cut_silently",
    ),
)

TABLE = QUORUM + PARTITIONS + IDEMPOTENCE + DAMAGE
