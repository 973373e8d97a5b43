"""Mutants of rule B19: rot is never served."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, never, one_change, part, removed, value

_ROT = "tests/log/test_rot.py"
_SCRUB = "tests/log/test_scrub.py"
_SCHEDULES = "tests/schedules/recovery/test_rot.py"
_HEALING = "tests/replica/test_healing.py"
_MACHINE = "tests/controller/machine/test_rotten_replicas.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "rot-is-served",
        "B19: the CRC of what was read holds",
        always(),
        f"{_ROT}::test_the_last_bits_of_every_batch_count",
    ),
    one_change(
        "deleted-epochs-are-rot",
        "B19: of batches wholly below the log start no epoch is known",
        never(),
        f"{_SCRUB}::test_what_lies_below_the_log_start_is_of_epochs_that_are_forgotten",
    ),
    one_change(
        "holes-of-former-segments-are-filled",
        "B19: what comes late for a segment that left the log is not written",
        part("segment not in log.segments", "False"),
        f"{_SCRUB}::test_a_segment_that_left_the_log_is_not_written",
    ),
    one_change(
        "holes-mended-meanwhile-are-found",
        "B19: a scrub says what is rotten when it ends",
        always(),
        f"{_SCRUB}::test_a_hole_that_is_mended_during_a_scrub_is_none",
    ),
    one_change(
        "what-stands-in-a-hole-is-a-batch",
        "B19: an entry of an index that lies in a hole leads behind it",
        part("hole.position <= position < hole.end", "False"),
        f"{_SCRUB}::test_whatever_rots_is_healed",
    ),
    one_change(
        "base-offsets-are-believed",
        "B19: a batch begins where the one before it ended",
        never(),
        f"{_ROT}::test_no_flipped_bit_is_served[150]",
    ),
    one_change(
        "leader-epochs-are-believed",
        "B19: a batch is of the leader epoch that the log knows",
        value("(-1, ...[1])"),
        f"{_ROT}::test_no_flipped_bit_is_served[150]",
    ),
    one_change(
        "last-piece-goes-anyway",
        "B19: the last piece of a batch goes if the whole holds",
        part("crc != header.crc", "False"),
        f"{_ROT}::test_a_batch_in_parts_is_never_whole",
    ),
    one_change(
        "time-is-looked-up-in-rot",
        "B19: a time that is answered was written",
        never(),
        f"{_ROT}::test_no_time_is_looked_up_in_rot",
    ),
    one_change(
        "rotten-end-is-waited-for",
        "B19: a batch that says it ends beyond what is committed is looked at",
        removed(),
        f"{_ROT}::test_no_flipped_bit_is_served[150]",
    ),
    one_change(
        "whatever-comes-fills-the-hole",
        "B19: only what belongs into a hole is written there (schedule 80)",
        part(
            "intact_end(batches, hole.offset, log.epochs, log.log_start_offset, hole.next_offset)",
            "(hole.end - hole.position, hole.next_offset)",
        ),
        f"{_SCRUB}::test_what_does_not_fit_is_refused",
    ),
    one_change(
        "a-cut-goes-on-behind-the-hole",
        "B8: a cut where a hole begins takes it along",
        value("None"),
        f"{_SCRUB}::test_a_cut_takes_the_hole_along",
    ),
    one_change(
        "a-cut-takes-what-rotted-before-it",
        "schedule 88: a log is not cut inside of what has rotted",
        never(),
        f"{_SCRUB}::test_no_cut_lands_inside_of_a_hole",
        f"{_SCRUB}::test_no_cut_goes_by_a_header_that_has_rotted",
    ),
    one_change(
        "what-rotted-before-a-cut-stays",
        "schedule 88: what has rotted before a cut is healed first",
        part("(hole := plog.rot.before_cut(cut.offset)) is not None", "... and False"),
        f"{_SCHEDULES}::test_88_a_log_is_cut_inside_of_a_hole[holds-combined]",
    ),
    one_change(
        "producers-in-a-hole-are-forgotten",
        "schedule 88: what rotted before a cut is healed before the producers are read anew",
        part("found[1].offset < offset", "found[1].offset < offset < found[1].next_offset"),
        f"{_HEALING}::test_a_cut_behind_a_hole_forgets_no_producer",
    ),
    one_change(
        "rot-that-a-cut-meets-is-not-told",
        "schedule 88: rot that a cut meets is looked into",
        removed(),
        f"{_SCHEDULES}::test_88_a_log_is_cut_inside_of_a_hole[holds-combined]",
    ),
    one_change(
        "watermark-beyond-a-hole",
        "schedule 88: while a hole is fetched the high watermark does not pass it",
        never(),
        f"{_SCHEDULES}::test_88_a_log_is_cut_inside_of_a_hole[holds-combined]",
        f"{_HEALING}::test_a_hole_is_healed_up_to_where_the_logs_part",
    ),
    one_change(
        "a-hole-is-filled-beyond-the-cut",
        "schedule 88: of what is to be cut nothing is healed",
        dropped("0 <= self.parts_at <= left.offset"),
        f"{_HEALING}::test_a_hole_is_healed_up_to_where_the_logs_part",
    ),
    one_change(
        "logs-part-behind-every-hole",
        "schedule 88: a log may part from its leader's before the hole that is fetched",
        dropped("cut.offset >= self.hole[1].offset"),
        f"{_HEALING}::test_the_logs_part_before_the_hole",
    ),
    one_change(
        "holes-outlive-their-records",
        "B19: what was deleted is missed no more",
        always(),
        f"{_SCRUB}::test_a_cut_takes_the_hole_along",
    ),
    one_change(
        "rot-is-not-reported",
        "schedule 80: a broker says that a replica has rotted",
        part("self._collect_rotten", "ReplicaSet"),
        f"{_SCHEDULES}::test_80_a_leaders_log_rots[holds-combined]",
    ),
    one_change(
        "rotten-leader-leads-on",
        "schedule 80: a replica that has rotted leads nothing where a whole one is left",
        part("lambda node: room(node) and self.is_fit(node, topic, partition)", "room"),
        f"{_SCHEDULES}::test_80_a_leaders_log_rots[holds-combined]",
        f"{_MACHINE}::test_a_leader_with_rot_leads_no_more",
    ),
    one_change(
        "whole-replica-does-not-take-over",
        "schedule 80: the first replica that is healed leads",
        part("found + healed", "found"),
        f"{_MACHINE}::test_where_all_have_rotted_the_first_that_is_healed_leads",
    ),
    one_change(
        "rotten-replica-joins",
        "schedule 80: a replica joins once its whole leader has healed it",
        part("not state.is_whole(node_id, topic, partition)", "False"),
        f"{_MACHINE}::test_a_leader_with_rot_leads_no_more",
    ),
    one_change(
        "rotten-replicas-join-no-rotten-leader",
        "schedule 80: what is gone everywhere does not stop the partition",
        dropped("state.is_whole(partition.leader, topic, partition)"),
        f"{_MACHINE}::test_where_all_have_rotted_the_first_that_is_healed_leads",
    ),
    one_change(
        "rot-is-not-scrubbed",
        "schedule 80: what a read met is looked into",
        never(),
        f"{_SCHEDULES}::test_80_a_leaders_log_rots[holds-combined]",
    ),
    one_change(
        "holes-stay",
        "schedule 80: a follower fetches what has rotted",
        part("bool(rot)", "False"),
        f"{_SCHEDULES}::test_80_a_leaders_log_rots[holds-combined]",
        f"{_SCHEDULES}::test_80_every_replica_rots_elsewhere[holds]",
    ),
    one_change(
        "mended-holes-are-not-synced",
        "A9: what was healed counts once it is synced",
        removed(),
        f"{_SCHEDULES}::test_80_the_power_fails_once_it_is_whole[holds]",
    ),
    one_change(
        "no-scrub",
        "B19: what nobody reads is scrubbed",
        never(),
        f"{_SCHEDULES}::test_80_the_scrub_finds_what_nobody_reads[holds]",
    ),
    one_change(
        "refused-logs-stay",
        "schedule 81: a log that recovery refused is fetched again",
        part("damaged", "False"),
        f"{_SCHEDULES}::test_81_a_log_is_refused_after_a_kill[holds-combined]",
    ),
    one_change(
        "refused-logs-are-set-aside-by-anybody",
        "schedule 81: a log that nobody else leads stays",
        value("True"),
        f"{_SCHEDULES}::test_81_nobody_else_leads[holds]",
    ),
)
