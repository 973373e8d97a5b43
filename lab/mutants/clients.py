"""Mutants of the rules of clients and of what they commit (schedules 63 to 68)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed, value

_OFFSETS = "tests/cluster/groups/test_groups_offsets.py"
_GROUPS = "tests/client/test_groups_simulated.py"
_HANDLERS = "tests/schedules/clients/test_handlers.py"
_QUIET = "tests/schedules/clients/test_quiet_topics.py"
_ACCUMULATOR = "tests/client/test_accumulator.py"
_FUTURES = "tests/client/test_futures.py"
_TRUNCATIONS = "tests/schedules/clients/test_truncations.py"
_TOPICS = "tests/client/test_producer_topics.py"
_COMMITTED = "tests/client/test_read_committed.py"
_TRANSACTIONS = "tests/client/test_transactions.py"
_ENDS = "tests/schedules/clients/test_transactions.py"
_BACKGROUND = "tests/client/test_background.py"
_ANEW = "tests/schedules/clients/test_topics_made_anew.py"
_INTERRUPTS = "tests/client/test_interrupts.py"
_CUT = "tests/client/test_cut_closes.py"
_STORMS = "tests/client/test_signal_storms.py"
_EACH_SEND = f"{_STORMS}::test_a_handler_at_each_instant_of_a_send_that_opens_a_batch"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "dead-connection-is-kept",
        "schedule 82: a connection that was lost before anybody had it is not kept",
        never(),
        "tests/client/test_connection.py::test_a_connection_that_is_lost_behind_its_last_answer_is_none",
    ),
    one_change(
        "offset-committed-without-its-topic",
        "schedule 63: an offset belongs to a topic id: a commit stores the id of the topic that it was accepted for",
        part("found.topic_id", "None"),
        f"{_ANEW}::test_63_committed_offsets_end_with_their_topic_over_a_failover[holds-0]",
    ),
    one_change(
        "offset-of-another-topic-told",
        "schedule 63: nobody is told the offset of an earlier topic of that name",
        dropped("self._is_of_another(topic, value)"),
        f"{_OFFSETS}::test_63_offsets_of_a_topic_made_anew_are_told_to_nobody",
    ),
    one_change(
        "offsets-of-deleted-topics-loaded",
        "schedule 63: who loads offsets drops those of topics that went while nobody coordinated",
        removed(),
        f"{_OFFSETS}::test_63_offsets_of_a_deleted_topic_end_when_they_are_loaded",
    ),
    one_change(
        "deletion-forgets-the-new-topic",
        "schedule 63: a deletion forgets offsets of the topic that was deleted, not of the one that has its name",
        part("value.topic_id is None or self._is_gone(topic, value)", "True"),
        f"{_OFFSETS}::test_63_offsets_of_a_topic_made_anew_are_told_to_nobody",
    ),
    one_change(
        "position-kept-over-a-topic-made-anew",
        "schedule 63: a position belongs to a topic id: nothing is read from another topic at an old offset",
        part("topic_id is not None", "False"),
        f"{_ANEW}::test_63_a_living_consumer_begins_anew[holds-assigned]",
    ),
    one_change(
        "failed-fetch-is-an-answer",
        "C32: a fetch of metadata that failed says nothing of a topic",
        part("not failed", "True"),
        f"{_GROUPS}::test_who_shares_out_asks_again_where_metadata_failed",
    ),
    one_change(
        "counts-of-before-the-join",
        "C32: what changed while a group joined is seen when it has joined",
        removed(),
        f"{_GROUPS}::test_a_topic_that_grows_while_it_is_shared_out_is_shared_out_again",
    ),
    one_change(
        "begins-while-its-group-is-asked",
        "schedule 106: a group's consumer begins where the group has committed, whoever else is asked meanwhile",
        dropped("self.placing"),
        f"{_ANEW}::test_106_a_topic_is_made_anew_while_a_leader_is_asked_about_it[holds]",
    ),
    one_change(
        "reset-drops-what-was-fetched",
        "schedule 107: what was fetched is handed out before a reset",
        instead("self._lookups.out_of_range(state)"),
        f"{_TRUNCATIONS}::test_107_retention_takes_what_lies_behind_the_records_fetched_ahead[holds-earliest]",
    ),
    one_change(
        "unsettled-record-counts-as-done",
        "schedule 64: what was not handled comes again: a run that ends in the middle of a record goes back to it",
        never(),
        f"{_HANDLERS}::test_64_a_record_whose_dead_letter_is_refused_comes_again[holds]",
        f"{_HANDLERS}::test_64_a_cancelled_handler_has_not_handled[holds-g]",
    ),
    one_change(
        "interrupted-poll-counts-as-handed-out",
        "schedule 64: what was not handled comes again: records that came when their caller was interrupted",
        removed(),
        f"{_HANDLERS}::test_64_what_an_interrupted_poll_brought_comes_again",
        "tests/client/test_interrupts.py::test_an_interrupt_when_the_task_has_ended_and_nobody_was_told",
    ),
    one_change(
        "an-exit-on-the-thread-ends-it",
        "B37: what a callback leaves the interpreter with belongs to the caller",
        instead("for _ in range(1):\n    self._run(self.loop.run_forever)"),
        f"{_INTERRUPTS}::test_what_escapes_on_the_thread_belongs_to_the_next_call",
    ),
    one_change(
        "an-exit-in-a-commits-callback-ends-the-commits",
        "B37: what a callback of commit_async leaves with is raised by the next poll",
        value("Exception"),
        f"{_INTERRUPTS}::test_what_a_commits_callback_leaves_with_belongs_to_the_next_poll[Left]",
    ),
    Mutant(
        "a-flush-returns-before-the-futures-are-done",
        "B37: a flush returns when futures are done and their callbacks have run",
        (
            instead("self._accumulator.complete(batch)\n..."),
            removed(),
        ),
        (f"{_INTERRUPTS}::test_a_flush_returns_when_the_callbacks_have_run",),
    ),
    one_change(
        "a-stepped-to-record-counts-as-handed-out",
        "B37: a record that an interrupt has kept from the caller is not done",
        removed(),
        "tests/client/test_progress.py::test_what_an_interrupt_kept_from_the_caller_is_not_done",
    ),
    one_change(
        "a-record-is-taken-off-by-a-call",
        "B37: what is taken and what is returned is one step: there is no call in between",
        instead("self._ready.popleft()"),
        f"{_STORMS}::test_an_interrupt_at_each_instant_of_an_iteration",
    ),
    one_change(
        "a-gate-with-a-lock-in-python",
        "B37: no interrupt leaves a lock held",
        value("__import__('queue').Queue()"),
        f"{_STORMS}::test_an_interrupt_at_each_instant_of_a_wait_leaves_no_lock",
    ),
    one_change(
        "an-interrupted-wake-stays-pending",
        "B37: a record that was queued is sent, though the call that was to wake the sender was interrupted",
        instead("self._woken_at = runs\n..."),
        f"{_EACH_SEND}[raises-fast-path]",
    ),
    Mutant(
        "a-batch-has-its-number-before-its-place",
        "B37: a batch has its number and its place in one step",
        (
            instead("number = self._last_number + 1\n..."),
            instead("self._last_number = number"),
        ),
        (f"{_EACH_SEND}[sends-fast-path]",),
    ),
    one_change(
        "a-handler-waits-for-its-own-lock",
        "B37: a signal's handler may flush or close in the middle of a send",
        never(),
        f"{_EACH_SEND}[sends and flushes-fast-path]",
    ),
    one_change(
        "an-interrupted-close-answers-nobody",
        "B43: a producer's thread ends no sooner than every record has its answer",
        removed(),
        f"{_CUT}::test_an_interrupt_at_each_instant_of_a_close_answers_every_record",
    ),
    one_change(
        "closed-before-every-record-has-its-answer",
        "B43: a close that follows one that was interrupted returns when that one has come to its end",
        instead("if not running.thread.closed:\n    ..."),
        f"{_CUT}::test_a_close_waits_for_the_end_that_another_one_has_left",
    ),
    one_change(
        "a-cancelled-close-answers-nobody",
        "B43: a close answers every record before it waits for anything",
        removed(),
        f"{_CUT}::test_a_cancellation_at_each_step_of_a_close_answers_every_record[API_VERSIONS]",
    ),
    one_change(
        "a-cancelled-close-leaves-connections",
        "B43: a close gives up every connection before it waits for anything",
        removed(),
        f"{_CUT}::test_a_cancelled_close_leaves_no_connection",
    ),
    one_change(
        "a-thread-that-nobody-has-goes-on",
        "B43: a thread that was made, and not kept, ends",
        removed(),
        f"{_CUT}::test_an_interrupt_at_each_instant_of_making_a_thread_leaves_none[consumer]",
    ),
    Mutant(
        "a-client-that-is-not-watched",
        "B43: a client is watched over from the moment that it has its thread",
        (
            removed(),
            instead(
                "self._thread = thread\n"
                "self._watched = watch(self, 'a Consumer', thread, partial(thread.stop, self.inner.close))"
            ),
        ),
        (f"{_CUT}::test_a_client_whose_first_call_was_interrupted_ends_when_it_is_dropped[consumer]",),
    ),
    one_change(
        "the-last-call-keeps-its-client",
        "B43: a client that is dropped ends, whatever was called last",
        removed(),
        f"{_CUT}::test_a_client_whose_first_call_was_interrupted_ends_when_it_is_dropped[consumer]",
    ),
    one_change(
        "unchanged-offset-never-committed-again",
        "schedule 65: a reader that polls keeps its commit alive",
        never(),
        f"{_QUIET}::test_65_a_quiet_topic_costs_no_commit[holds-True]",
        f"{_QUIET}::test_65_a_reader_that_never_lives_long_keeps_its_commit",
    ),
    one_change(
        "lost-position-told-once",
        "schedule 68: an error that needs a decision stays until it is made",
        always(),
        f"{_TRUNCATIONS}::test_68_a_truncation_is_told_until_a_seek[holds]",
    ),
    one_change(
        "epoch-checked-by-an-error",
        "schedule 68: an epoch counts as checked once it was, not when the question failed (KIP-320)",
        instead("state.error, state.checked_epoch = (error, epoch)"),
        f"{_TRUNCATIONS}::test_68_an_epoch_is_checked_once_it_was[holds]",
    ),
    one_change(
        "judged-by-an-older-epoch",
        "C35: what a leader says of an epoch is held against what had been read when it was asked",
        always(),
        f"{_TRUNCATIONS}::test_187_records_come_while_a_leader_is_asked[holds]",
    ),
    one_change(
        "taken-batch-takes-records",
        "C1: append: a batch takes no record once it was taken off its queue",
        removed(),
        f"{_ACCUMULATOR}::test_a_batch_that_was_taken_or_dropped_takes_no_record[take]",
    ),
    one_change(
        "failed-batch-takes-records",
        "C1: append: a batch that has failed takes no record, whose future would never end",
        removed(),
        f"{_ACCUMULATOR}::test_a_batch_that_was_taken_or_dropped_takes_no_record[drop]",
    ),
    one_change(
        "two-open-batches-of-a-partition",
        "C1: append: a batch with another one behind it takes no record: a thread's records keep their order",
        removed(),
        f"{_ACCUMULATOR}::test_of_a_partitions_batches_only_the_last_is_open",
    ),
    one_change(
        "closed-producer-takes-records",
        "C1: append: a producer that was closed takes no record, by the fast path neither",
        removed(),
        f"{_ACCUMULATOR}::test_nothing_is_taken_after_close",
    ),
    one_change(
        "an-answer-for-both-halves",
        "C1: append: of a split batch each record has the answer of its own half",
        part("answer if answer.first <= index < answer.after else None", "answer"),
        f"{_FUTURES}::test_of_a_split_batch_each_record_has_the_answer_of_its_half",
    ),
    one_change(
        "what-comes-too-late-is-sent",
        "C23: what would be answered too late is not sent",
        always(),
        "tests/client/test_producer_faults.py"
        "::test_records_that_come_faster_than_they_are_taken_are_acknowledged_as_fast_as_they_are",
    ),
    one_change(
        "forgotten-queue-begins-at-an-old-sequence",
        "C1: a sequence is given once per producer id, epoch and partition, over queues that come and go (KIP-98)",
        never(),
        f"{_TOPICS}::test_a_queue_that_is_made_again_repeats_no_sequence[0-idle]",
        f"{_TOPICS}::test_a_queue_that_is_made_again_repeats_no_sequence[0-hidden]",
    ),
    one_change(
        "aborted-records-are-read",
        "C18: a reader of committed records gets none of an aborted transaction",
        value("False"),
        f"{_COMMITTED}::test_aborted_records_and_markers_are_left_out[poll]",
        f"{_COMMITTED}::test_aborted_records_and_markers_are_left_out[columns]",
    ),
    one_change(
        "markers-are-records",
        "C18: a marker is no record, of a committed transaction neither",
        value("False"),
        f"{_COMMITTED}::test_aborted_records_and_markers_are_left_out[poll]",
    ),
    one_change(
        "an-abort-outlives-its-marker",
        "C18: behind its abort marker a producer's next transaction is read",
        removed(),
        f"{_COMMITTED}::test_aborted_records_and_markers_are_left_out[poll]",
    ),
    one_change(
        "damaged-markers-are-believed",
        "C18: a marker that rotted is an error: it could show what was aborted",
        removed(),
        f"{_COMMITTED}::test_a_damaged_marker_is_told_with_its_place[poll]",
    ),
    one_change(
        "an-end-without-an-answer-ends-the-next",
        "schedule 130: an end of a transaction that may still be under way is one of an older epoch (KAFKA-17754)",
        removed(),
        f"{_ENDS}::test_130_an_end_that_comes_late_ends_nothing[holds]",
    ),
    one_change(
        "what-failed-is-committed",
        "schedule 131: a transaction that lost a record is not committed",
        never(),
        f"{_ENDS}::test_131_a_transaction_that_lost_a_record_is_not_committed[holds]",
    ),
    Mutant(
        "a-record-comes-between-transactions",
        "schedule 132: no record is taken between a commit and the next transaction, by the fast path neither",
        (never(), removed()),
        (f"{_ENDS}::test_132_a_record_that_is_sent_during_a_commit_is_refused[holds]",),
    ),
    one_change(
        "sequences-go-on-behind-a-lost-batch",
        "C19: behind a batch that may be lost a transaction begins under the next epoch, at sequence 0",
        removed(),
        f"{_TRANSACTIONS}::test_a_lost_batch_leaves_no_gap_in_the_next_transaction[OlderCluster]",
    ),
    one_change(
        "a-commit-that-ended-meanwhile-is-none",
        "C19: a commit whose caller gave up, and that ended since, is told to the next call",
        instead("return False"),
        f"{_TRANSACTIONS}::test_a_caller_that_gives_up_does_not_stop_a_commit[True-TransactionalCluster]",
    ),
    one_change(
        "an-abort-waits-for-what-the-old-leader-has",
        "C19: an abort does not wait for a batch whose leader has changed, and which is sent nowhere any more",
        never(),
        f"{_TRANSACTIONS}::test_an_abort_is_not_held_up_by_an_election[TransactionalCluster]",
    ),
    one_change(
        "epoch-stays-behind-an-end",
        "C19: each end of a transaction gives the epoch of the next one (KIP-890)",
        removed(),
        f"{_TRANSACTIONS}::test_a_block_counts_whole_or_not_at_all[TransactionalCluster]",
    ),
    one_change(
        "a-renewal-takes-a-transactions-offset-back",
        "C19: offsets that a transaction commits are not committed anew beside it",
        removed(),
        f"{_TRANSACTIONS}::test_offsets_of_transactions_are_not_committed_anew_beside_them",
    ),
    one_change(
        "delayed-commit-signed-anew-over-tenures",
        "C7: a commit that waited is signed with a newer epoch only for what was held all the while (KIP-848)",
        part("self.progress.tenures(tenures) == tenures", "True"),
        f"{_BACKGROUND}::test_a_delayed_commit_sets_no_newer_one_back",
    ),
    one_change(
        "what-an-unanswered-commit-replaced-counts",
        "C7: of a commit without an answer nobody knows whether it was made",
        removed(),
        f"{_BACKGROUND}::test_a_commit_without_an_answer_may_have_been_made",
    ),
    one_change(
        "half-a-first-note-is-refused",
        "schedule 84: a copy whose first round was noted by half begins anew",
        part("1", "0"),
        "tests/tools/test_copy_plan.py::test_a_note_that_was_changed_is_refused",
    ),
    Mutant(
        "copy-follows-into-another-topic",
        "schedule 63: a copy goes on in the topics that it was begun with, or not at all",
        (
            part(
                "str(self._described.topic_id or '') != planned.source_id",
                "str(self._described.topic_id or '') is None",
            ),
            never(),
            never(),
            value("None"),
            never(),
        ),
        (f"{_ANEW}::test_63_a_copy_that_follows_stops_when_a_topic_is_made_anew[holds-t]",),
    ),
)
