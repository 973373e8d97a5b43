"""Mutants: acks, reads, and the streams between replicas."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant

TABLE: tuple[Mutant, ...] = ()
