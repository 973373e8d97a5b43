"""Mutants of rules B25, B27, B36 and B39: what a topic that is restored from the object store begins with, and who has
read more of it."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, never, one_change, part, value

_ADOPTION = "tests/controller/machine/test_adoption.py"
_CHAINS = "tests/log/tier/test_chains.py"
_PRODUCERS = "tests/log/tier/test_producers.py"
_RESTORING = "tests/log/tier/test_restoring.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "restored-topics-repeat-leader-epochs",
        "B25: the first leader epoch lies above those of all stored records",
        value("-1"),
        f"{_ADOPTION}::test_topic_and_tiers_are_one_batch",
    ),
    one_change(
        "restored-tiers-have-gaps",
        "B25: stored segments are taken over only if each begins where the one before it ends",
        dropped("place_fault(segment, one.segments[0].base_offset, end_offset)"),
        f"{_ADOPTION}::test_what_makes_no_tier_is_refused",
    ),
    one_change(
        "topics-are-restored-while-they-are-deleted",
        "B25: a topic whose objects are being deleted is not restored",
        never(),
        f"{_ADOPTION}::test_a_topic_that_is_being_deleted_is_not_restored",
    ),
    one_change(
        "what-parted-is-restored",
        "B25: records that gave way to those of a later leader epoch are left out",
        value("True"),
        f"{_CHAINS}::test_the_later_leader_epoch_counts_after_an_unclean_election",
    ),
    one_change(
        "gaps-are-passed-over-in-silence",
        "B25: nothing that was copied is left out unless that is agreed to",
        part("refusal and (not (found and allow_loss))", "not found"),
        f"{_RESTORING}::test_less_than_was_copied_is_refused",
    ),
    one_change(
        "rot-is-brought-to-another-store",
        "B25: what goes to another store is what was stored",
        part("crc != segment.header.log_crc", "False"),
        f"{_RESTORING}::test_other_bytes_than_were_stored_are_not_brought",
    ),
    one_change(
        "restored-producer-ids-are-given-out-again",
        "B27: the next producer id lies above all in what is taken over",
        always(),
        f"{_ADOPTION}::test_92_producer_ids_do_not_begin_again",
    ),
    one_change(
        "lost-producers-have-our-ids",
        "B27: of a lost cluster's producers those are not known whose ids were given out here before",
        part("ProducerIds(next_id, max(next_id, end))", "ProducerIds(ProducerId(0), max(next_id, end))"),
        f"{_ADOPTION}::test_92_producer_ids_do_not_begin_again",
    ),
    one_change(
        "lost-producers-are-ours",
        "B27: of the producers that a lost cluster's segments tell of those are known whose ids nobody has here",
        never(),
        f"{_PRODUCERS}::test_92_ids_of_a_lost_clusters_producers_may_be_others_here",
    ),
    one_change(
        "lost-producers-are-ours-where-snapshots-lack",
        "B27: so it is where their batches are read",
        value("True"),
        f"{_PRODUCERS}::test_92_ids_of_a_lost_clusters_producers_may_be_others_here",
    ),
    one_change(
        "one-snapshot-tells-of-all-ids",
        "B27: all segments' snapshots are asked for the ids of their producers",
        part("chain.segments", "...[-1:]"),
        f"{_RESTORING}::test_92_the_ids_of_all_producers_in_what_is_taken_over",
    ),
    one_change(
        "invented-ids-use-up-all",
        "B27: an id that no cluster can have reached raises nothing",
        part("number < PRODUCER_IDS_END", "True"),
        f"{_RESTORING}::test_92_the_ids_of_all_producers_in_what_is_taken_over",
    ),
    one_change(
        "epochs-share-producer-ids",
        "B27: each quorum epoch begins with producer ids of its own",
        part("max(state.image.next_producer_id, of_epoch)", "state.image.next_producer_id"),
        f"{_ADOPTION}::test_producer_ids_go_on_where_the_metadata_log_was_rolled_back",
    ),
    one_change(
        "clusters-share-producer-ids",
        "B27: each cluster has producer ids of its own",
        part("first_producer_id(state.image.cluster_id)", "0"),
        f"{_ADOPTION}::test_111_each_cluster_has_producer_ids_of_its_own",
    ),
    one_change(
        "what-the-lost-cluster-gave-out-last-is-given-out-again",
        "B27: the next producer id lies beyond what the lost cluster may have given out after what was stored",
        part("end + IDS_BEYOND", "end"),
        f"{_ADOPTION}::test_92_producer_ids_do_not_begin_again",
    ),
    one_change(
        "lost-producers-are-strangers",
        "B27: the producers of a lost cluster are known, whose ids lie nowhere near to ours",
        never(),
        f"{_ADOPTION}::test_111_each_cluster_has_producer_ids_of_its_own",
    ),
    one_change(
        "restored-partitions-begin-in-the-next-epoch",
        "B36: the first leader epoch lies above all that the lost cluster can have reached",
        part("EPOCHS_AHEAD if last_epoch + EPOCHS_AHEAD < INT32_MAX else 1", "1"),
        f"{_ADOPTION}::test_110_leader_epochs_begin_far_above_those_that_were_stored",
    ),
    one_change(
        "exports-pass-over-a-cut",
        "B39: an export into a lake that has more than was stored, of a log that has grown again, is refused",
        never(),
        "tests/acceptance/test_tiered_restore.py::test_readers_that_had_read_more_than_was_stored_are_told",
    ),
    one_change(
        "copies-pass-over-a-cut",
        "B39: a copy that has read more than its source's log kept, and which has grown again, ends",
        never(),
        "tests/tools/test_copy_simulated.py::test_a_source_that_was_cut_is_told",
    ),
    one_change(
        "commits-pass-over-a-cut",
        "B39: a consumer that begins at a committed offset asks a newer leader whether its log has what was read",
        value("2**31"),
        "tests/client/test_groups_simulated.py::test_a_committed_offset_behind_a_cut_is_noticed_at_the_start",
    ),
)
