"""Mutants: the in-sync replicas and the high watermark."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant

TABLE: tuple[Mutant, ...] = ()
