"""Mutants of rule B22: what leaves the disks is in the object store."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed, value

_TESTS = "tests/replica/test_tiering.py"
_READS = "tests/replica/test_tier_reads.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "local-retention-takes-what-was-not-copied",
        "B22: what is not in the object store stays on the disks",
        value("1 << 62"),
        f"{_TESTS}::test_nothing_leaves_the_disks_that_is_not_in_the_store",
    ),
    one_change(
        "uncommitted-segments-are-copied",
        "B22: what is not committed is not copied",
        never(),
        f"{_TESTS}::test_nothing_is_copied_that_is_not_committed",
    ),
    one_change(
        "each-segment-begins-the-tier",
        "B22: the metadata may not show yet what this leader has just added",
        dropped("copied_to == tier.end_offset"),
        f"{_TESTS}::test_segments_are_added_before_the_metadata_show_the_first",
    ),
    one_change(
        "deleted-records-come-back-with-the-tier",
        "B22: the tier begins at the log start",
        part("max(plog.log_start_offset, segment.base_offset) if piece.is_first or deleted else AS_IT_IS", "AS_IT_IS"),
        f"{_TESTS}::test_a_tier_begins_where_its_first_records_were_deleted",
    ),
    one_change(
        "unanswered-segments-are-deleted",
        "B22: what may be in the metadata is not deleted",
        instead("await self._delete(self._prefix(partition), [segment])"),
        f"{_TESTS}::test_lost_calls_lose_nothing",
    ),
    one_change(
        "unanswered-segments-are-copied-again",
        "B22: what was copied is offered again, and not copied again",
        removed(),
        f"{_TESTS}::test_lost_calls_lose_nothing",
    ),
    one_change(
        "refused-segments-are-deleted",
        "schedule 87: what was refused may be in from a call before",
        value("await self._delete(self._prefix(partition), [segment]) or ..."),
        f"{_TESTS}::test_a_refused_retry_of_what_is_in_deletes_nothing",
    ),
    one_change(
        "deletions-in-the-tier-are-answered-at-once",
        "B22: deleted records are gone once the metadata say so",
        never(),
        f"{_TESTS}::test_records_are_deleted_from_the_tier_at_a_clients_word",
    ),
    one_change(
        "deletions-outrun-additions",
        "schedule 90: a deletion is answered once the metadata know of it, though the tier does not reach it yet",
        part("self.state.log_config.remote_storage", "self.state.tier.find(plog.log_start_offset - 1)"),
        f"{_TESTS}::test_what_is_deleted_while_it_is_copied_stays_deleted[False]",
    ),
    one_change(
        "additions-forget-what-is-deleted",
        "schedule 90: what is added brings along that its front was deleted",
        dropped("deleted"),
        f"{_TESTS}::test_the_log_start_never_goes_back_into_what_is_added[False]",
    ),
    one_change(
        "unclean-leaders-begin-below-the-tier",
        "B22: what was copied outlives every disk",
        always(),
        f"{_TESTS}::test_an_empty_leader_begins_behind_the_tier",
    ),
    one_change(
        "unclean-leaders-keep-what-parted-from-the-tier",
        "B22: what was copied was committed, and what parts from it was not",
        dropped("plog.epoch_at(end - 1) == tier.segments[-1].last_epoch"),
        f"{_TESTS}::test_a_leader_that_parted_from_the_tier_begins_behind_it",
    ),
    one_change(
        "followers-send-readers-of-the-tier-away",
        "B22: a follower that the metadata have not reached does not say that records are gone",
        never(),
        f"{_READS}::test_a_follower_answers_from_the_tier_too",
    ),
    one_change(
        "epochs-of-the-tier-are-unknown",
        "B22: readers of old records are not told that their log has parted (KIP-320)",
        value("None"),
        f"{_READS}::test_epochs_of_what_is_in_the_tier_are_known",
    ),
    one_change(
        "fetches-wait-for-the-store-to-the-end",
        "B22: a store that does not answer holds up nobody who reads something else",
        part("self._wait_ms / 1000", "None"),
        f"{_READS}::test_a_store_that_does_not_answer_holds_nobody_up",
    ),
    one_change(
        "size-of-the-tier-is-not-counted",
        "B22: whole retention counts what is in the store",
        part("tier.size_bytes + uncopied_bytes", "uncopied_bytes"),
        f"{_TESTS}::test_age_and_size_take_whole_segments_from_the_front",
    ),
)
