"""Mutants of rule B21: what the metadata say of a tier."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, dropped, instead, never, one_change, part, removed, value

_MACHINE = "tests/controller/machine/test_tiers.py"
_SETTINGS = "tests/controller/machine/test_tiering.py"
_IMAGE = "tests/controller/metadata/test_tiers.py"
_FEED = "tests/cluster/node/test_replica_feed.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "deposed-leader-changes-the-tier",
        "B21: only the leader of the present epoch is heard",
        part("leader_epoch", "partition.leader_epoch"),
        f"{_MACHINE}::test_only_the_leader_of_this_epoch_is_heard",
        f"{_MACHINE}::test_deposed_leader_is_fenced_even_where_its_change_is_in",
    ),
    one_change(
        "controller-that-is-behind-judges-tiers",
        "B21: a controller that does not know the leader's epoch judges nothing",
        never(),
        f"{_MACHINE}::test_only_the_leader_of_this_epoch_is_heard",
    ),
    one_change(
        "any-replica-changes-the-tier",
        "B21: only the leader is heard",
        part("sender", "partition.leader"),
        f"{_MACHINE}::test_only_the_leader_of_this_epoch_is_heard",
    ),
    one_change(
        "gaps-in-a-tier",
        "B21: each segment begins where the one before it ends",
        part("segment.base_offset == end_offset", "segment.base_offset >= end_offset"),
        f"{_MACHINE}::test_segments_that_do_not_continue_the_tier_are_refused",
        f"{_IMAGE}::test_records_that_do_not_fit_stop_the_node",
    ),
    one_change(
        "overlaps-in-a-tier",
        "B21: each segment begins where the one before it ends",
        part("segment.base_offset == end_offset", "segment.base_offset <= end_offset"),
        f"{_MACHINE}::test_segments_that_do_not_continue_the_tier_are_refused",
        f"{_IMAGE}::test_records_that_do_not_fit_stop_the_node",
    ),
    one_change(
        "what-was-deleted-is-added-again",
        "B21: nothing below the start is added",
        value("False"),
        f"{_MACHINE}::test_start_beyond_the_end_leaves_no_segment",
        f"{_IMAGE}::test_records_that_do_not_fit_stop_the_node",
    ),
    one_change(
        "segments-of-epochs-to-come",
        "B21: a segment holds no record of a later epoch than its leader's",
        part("segment.last_epoch > leader_epoch", "False"),
        f"{_MACHINE}::test_segments_that_do_not_continue_the_tier_are_refused",
    ),
    one_change(
        "a-retry-of-a-tier-change-is-refused",
        "B21: a change that is in already is a success that writes nothing",
        part("bool(left)", "False"),
        f"{_MACHINE}::test_retry_of_a_change_that_is_in_is_a_success_that_writes_nothing",
    ),
    one_change(
        "same-offsets-are-a-retry",
        "B21: a retry is known by its ids: another attempt is another object",
        part(
            "left == [segment.segment_id for segment in tier.segments[-len(left):]]",
            "add[-1].end_offset == tier.end_offset",
        ),
        f"{_MACHINE}::test_retry_of_a_change_that_is_in_is_a_success_that_writes_nothing",
    ),
    one_change(
        "a-retry-behind-the-start-is-refused",
        "B21: nothing that was refused is in the tier",
        part("segment.end_offset > tier.start_offset", "True"),
        f"{_MACHINE}::test_retry_is_a_success_where_the_start_has_passed_a_part_of_it",
    ),
    one_change(
        "tier-start-goes-back",
        "B21: the start of a tier only rises",
        part("change.start_offset > tier.start_offset", "change.start_offset >= 0"),
        f"{_MACHINE}::test_start_only_rises",
    ),
    one_change(
        "segments-below-the-start-stay",
        "B21: a raised start forgets what lies wholly below",
        part("self.segments[gone:]", "self.segments"),
        f"{_IMAGE}::test_start_forgets_what_lies_wholly_below",
    ),
    one_change(
        "topics-without-the-setting-are-tiered",
        "B21: only topics with remote.storage.enable get segments",
        removed(),
        f"{_MACHINE}::test_topics_without_the_setting_get_no_segments",
    ),
    one_change(
        "snapshot-without-tiers",
        "B21: tiers are in snapshots",
        instead("if row.of.name not in ('tiers', 'deleted_tiers'):\n    ..."),
        f"{_IMAGE}::test_snapshot_adds_up_to_the_same_image",
    ),
    one_change(
        "deleted-topics-leave-their-objects",
        "B21: a deleted topic is remembered until its objects are gone",
        never(),
        f"{_IMAGE}::test_deleted_topic_is_remembered_until_its_objects_are_gone",
        f"{_MACHINE}::test_reaped_topics_are_forgotten",
    ),
    one_change(
        "first-copies-of-deleted-topics-stay",
        "B21: a deleted topic is remembered if only a copy of it was under way",
        dropped("enabled"),
        f"{_IMAGE}::test_topic_that_may_have_left_objects_is_remembered",
    ),
    one_change(
        "full-tiers-are-turned-off",
        "B21: a tier that holds segments is not turned off",
        never(),
        f"{_SETTINGS}::test_a_tier_is_not_turned_off_while_it_holds_segments",
    ),
    one_change(
        "tiered-topics-are-compacted",
        "B21: what is tiered is not compacted",
        never(),
        f"{_SETTINGS}::test_what_cannot_be_together_is_refused",
    ),
    one_change(
        "replicas-do-not-hear-of-tiers",
        "B21: a broker hears of the tiers of its replicas",
        removed(),
        f"{_FEED}::test_replicas_hear_of_their_tiers",
    ),
)
