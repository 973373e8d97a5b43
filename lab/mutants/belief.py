"""Mutants of rule B31: what one damaged checkpoint says is not believed without its copy."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, condition, dropped, never, one_change, part

_CHECKPOINTS = "tests/log/test_checkpoints.py"
_COPY = "tests/log/test_checkpoint_copy.py"
_DIRECTORIES = "tests/log/test_log_dirs.py"
_FINDINGS = "tests/log/test_findings.py"
_REPLICATED = "tests/schedules/recovery/test_belief.py"
_RETENTION = "tests/log/test_retention.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "time-indexes-are-believed",
        "B31: a segment goes by its age once its batches say the same",
        never(),
        f"{_RETENTION}::test_98_a_time_index_alone_takes_no_record",
        f"{_REPLICATED}::test_98_one_bit_in_a_time_index_takes_no_record",
    ),
    one_change(
        "a-time-index-stays-wrong",
        "B31: a time index that contradicts the batches is built anew",
        part("not held", "False"),
        f"{_RETENTION}::test_98_a_time_index_alone_takes_no_record",
    ),
    one_change(
        "log-starts-are-believed",
        "B31: a log start counts where two files say it",
        part("min(self.start_claimed, entries[0][1] if entries else 0)", "self.start_claimed"),
        f"{_COPY}::test_99_damage_to_one_file_changes_nothing",
        f"{_REPLICATED}::test_99_one_bit_in_a_log_start_hides_no_record",
    ),
    one_change(
        "a-damaged-checkpoint-has-no-copy",
        "B31: a damaged checkpoint is built anew from its copy",
        part("name not in copies", "True"),
        f"{_COPY}::test_99_damage_to_one_file_changes_nothing",
    ),
    one_change(
        "the-higher-promise-counts",
        "B31: of two offsets of which neither is proven the lower one counts",
        part("min", "max"),
        f"{_COPY}::test_99_damage_to_one_file_changes_nothing",
    ),
    one_change(
        "lost-promises-are-no-doubt",
        "B31: where neither a checkpoint nor its copy can be read its logs count as cut",
        dropped("checkpoints.in_doubt"),
        f"{_COPY}::test_neither_can_be_read",
    ),
    one_change(
        "one-files-word-is-copied",
        "B31: what one file alone says does not become what two say",
        part("dict(encoded)", "encoded"),
        f"{_COPY}::test_what_one_file_says_does_not_become_what_two_say",
    ),
    one_change(
        "identity-is-believed",
        "B31: what says whose a directory is has a checksum",
        part(
            "said and said != [with_checksum(body)[len(body):]]", "False and said != [with_checksum(body)[len(body):]]"
        ),
        f"{_CHECKPOINTS}::test_a_flipped_bit_makes_nobody_else_of_a_directory",
    ),
    one_change(
        "what-only-we-read-stands-once",
        "B31: who used a directory, and where replicas lie, stands in two files",
        part("(path, copy_of(path))", "(path,)"),
        f"{_FINDINGS}::test_damage_to_one_file_takes_no_life",
        f"{_DIRECTORIES}::test_damage_to_one_note_of_places_changes_nothing",
    ),
    one_change(
        "one-file-has-all-lives",
        "B31: whom one of two files names has used the directory",
        part("either", "either[:1]"),
        f"{_FINDINGS}::test_damage_to_one_file_takes_no_life",
    ),
    one_change(
        "any-of-two-notes-counts",
        "B31: of two notes of where replicas lie the newer one counts",
        part("max", "min"),
        f"{_DIRECTORIES}::test_damage_to_one_note_of_places_changes_nothing",
    ),
    one_change(
        "findings-are-believed",
        "B31: what earlier starts found has a checksum",
        condition("False and ..."),
        f"{_CHECKPOINTS}::test_a_flipped_bit_in_what_only_we_read",
    ),
)
