"""Invariants of the quorum, held at run time: they are no `assert`s, which `python -O` leaves out."""

from __future__ import annotations

from strandline.proto.errors import FatalError


def ensure(holds: bool, invariant: str, **facts: object) -> None:
    """Stop the node where an invariant does not hold: our own mistake, or a disk that lied.

    Raises:
        FatalError: `holds` is false; the sentence has the invariant's name and the facts.
    """
    if not holds:
        told = ", ".join(f"{name} {fact}" for name, fact in facts.items())
        raise FatalError(f"internal error: the quorum's invariant {invariant} does not hold" + (told and f" ({told})"))
