"""Mutants of what is copied to the object store, read from it and deleted there (rules B19, B23 and B56)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, condition, never, one_change, part, removed, value

_COPYING = "tests/log/tier/test_copying.py"
_READING = "tests/log/tier/test_reading.py"
_REAPING = "tests/log/tier/test_reaping.py"
_CONTRACT = "tests/log/tier/test_store_contract.py"
_LEFT = "tests/log/tier/test_left_attempts.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "rot-of-the-tier-is-served",
        "B19: what was read of the object store goes to nobody before it is found to hold",
        part("intact_end(data, header.base_offset, found.epochs, 0, limit)", "(len(data), limit)"),
        f"{_READING}::test_rot_goes_to_nobody",
    ),
    one_change(
        "a-bare-directory-is-the-store",
        "B23: a store whose mount is gone is away, and not empty",
        condition("False and ..."),
        f"{_CONTRACT}::test_nothing_is_written_below_a_mount_that_is_gone",
    ),
    one_change(
        "who-looks-makes-a-store",
        "B23: a directory below a mount that is gone is made no store by a command that only looks",
        part("False", "True"),
        "tests/cli/test_tier.py::test_who_looks_makes_no_store",
    ),
    one_change(
        "rot-goes-to-the-store",
        "B23: each batch is held against its CRC, offsets and leader epoch before it is copied",
        part(
            "intact_end(data, offset, log.epochs, log.log_start_offset, self.end_offset)",
            "(len(data), self.end_offset)",
        ),
        f"{_COPYING}::test_rot_is_never_copied",
    ),
    one_change(
        "other-bytes-than-were-looked-at-are-sent",
        "B23: what is sent is what was looked at",
        never(),
        f"{_COPYING}::test_what_rots_while_it_is_copied_is_not_copied",
    ),
    one_change(
        "segments-that-went-are-copied",
        "B23: a segment that its log has lost while it was looked at is not copied",
        never(),
        f"{_COPYING}::test_a_segment_that_goes_meanwhile",
    ),
    one_change(
        "young-objects-are-orphans",
        "B23: an object that may not be named yet is left alone",
        always(),
        "tests/cluster/node/test_tier_reaper.py::test_what_is_being_copied_stays_whatever_the_wall_clocks_say",
    ),
    one_change(
        "objects-that-were-named-since-go",
        "B23: the metadata are asked again before an object goes",
        value("True"),
        f"{_REAPING}::test_the_metadata_are_asked_again_before_an_object_goes",
    ),
    one_change(
        "unknown-topics-lose-their-objects",
        "B23: objects of a topic that is not known go by evidence of its deletion alone",
        value("True"),
        f"{_REAPING}::test_an_unknown_topic_goes_by_evidence_alone",
    ),
    one_change(
        "attempts-have-no-lock",
        "B56: a file that is being written has its writer's lock",
        removed(),
        f"{_LEFT}::test_what_this_process_is_writing_stays",
    ),
    one_change(
        "what-is-being-written-is-deleted",
        "B56: a file goes only where its lock is free",
        removed(),
        f"{_LEFT}::test_what_a_killed_process_has_left_is_deleted_by_the_next_that_writes",
    ),
    one_change(
        "locks-of-other-machines-are-believed-at-once",
        "B56: a file of another machine is watched before its lock counts",
        part("now_s - since_s >= UNTOUCHED_S", "True"),
        f"{_LEFT}::test_a_file_of_another_machine_is_watched_first",
        f"{_LEFT}::test_a_file_of_an_older_build_is_watched_first",
    ),
    one_change(
        "another-file-of-the-name-is-deleted",
        "B56: a file that got its name is no other one that has its old name",
        never(),
        f"{_LEFT}::test_a_file_that_has_got_its_name_is_no_other_one_of_its_old_name",
    ),
)
