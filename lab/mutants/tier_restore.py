"""Mutants of rule B25: what a topic that is restored from the object store begins with."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_ADOPTION = "tests/controller/machine/test_adoption.py"
_CHAINS = "tests/log/tier/test_chains.py"
_RESTORING = "tests/log/tier/test_restoring.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "restored-topics-repeat-leader-epochs",
        "B25: the first leader epoch lies above those of all stored records",
        "controller.machine.adoption:_last_epoch",
        "return one.segments[-1].last_epoch",
        "return -1",
        f"{_ADOPTION}::test_topic_and_tiers_are_one_batch",
    ),
    one_change(
        "restored-tiers-have-gaps",
        "B25: stored segments are taken over only if each begins where the one before it ends",
        "controller.machine.adoption:_last_epoch",
        "segment_fault(segment) or place_fault(segment, one.segments[0].base_offset, end_offset)",
        "segment_fault(segment)",
        f"{_ADOPTION}::test_what_makes_no_tier_is_refused",
    ),
    one_change(
        "topics-are-restored-while-they-are-deleted",
        "B25: a topic whose objects are being deleted is not restored",
        "controller.machine.adoption:_check_topic",
        "if topic.topic_id in state.image.deleted_tiers:",
        "if False:",
        f"{_ADOPTION}::test_a_topic_that_is_being_deleted_is_not_restored",
    ),
    one_change(
        "what-parted-is-restored",
        "B25: records that gave way to those of a later leader epoch are left out",
        "log.tier.chains:_is_of",
        "return epochs.entries() == _epochs_of(segment).entries()",
        "return True",
        f"{_CHAINS}::test_the_later_leader_epoch_counts_after_an_unclean_election",
    ),
    one_change(
        "gaps-are-passed-over-in-silence",
        "B25: nothing that was copied is left out unless that is agreed to",
        "log.tier.restoring:tiers_to_adopt",
        "if refusal and not (found and allow_loss):",
        "if not found:",
        f"{_RESTORING}::test_less_than_was_copied_is_refused",
    ),
    one_change(
        "rot-is-brought-to-another-store",
        "B25: what goes to another store is what was stored",
        "log.tier.restoring:_streamed",
        "crc != segment.header.log_crc",
        "False",
        f"{_RESTORING}::test_other_bytes_than_were_stored_are_not_brought",
    ),
)
