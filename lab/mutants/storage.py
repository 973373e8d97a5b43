"""Mutants of what quorum and partitions share in storage, for schedules 18 and 20."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, Patch, one_change

_SCHEDULES = "tests/schedules/quorum/test_storage.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "append-after-an-io-error",
        "B18: a log is fenced after an I/O error",
        "log.log_state:LogState._check_usable",
        "if self.failure is not None:",
        "if False:",
        f"{_SCHEDULES}::test_18_append_after_an_io_error",
    ),
    one_change(
        "epoch-checkpoint-not-synced",
        "B8: the epoch checkpoint is synced before it has its name",
        "log.unsynced:Unsynced.begin",
        "                files.append(file)",
        "                pass",
        "tests/log/test_syncer.py::test_epochs_take_two_groups",
    ),
    Mutant(
        "epoch-checkpoint-damaged-by-a-crash",
        "B8: an epoch checkpoint that a crash damaged costs nothing",
        (
            Patch("log.unsynced:Unsynced.begin", "                files.append(file)", "                pass"),
            Patch("log.epoch_recovery:load_epochs", "ValueError):\n        return None", "ValueError):\n        raise"),
        ),
        (f"{_SCHEDULES}::test_20_the_machine_crashes_after_an_election",),
    ),
)
