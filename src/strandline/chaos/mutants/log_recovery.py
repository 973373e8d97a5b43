"""Mutants: what a log is taken for after a stop."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant

TABLE: tuple[Mutant, ...] = ()
