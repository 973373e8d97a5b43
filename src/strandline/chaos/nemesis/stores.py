"""Faults of the object store, of all nodes at once: it is away, slow, refuses calls (503), answers a write that it has
carried out with an error, refuses to delete.

Each is undone by itself; two of a kind at once end with the first of them. What an object holds is left alone: stores
keep several copies and checksums of their own, so that rot in one is no fault to be survived but one to be noticed
(`tests/log/tier`), and nothing could be demanded of the end of such a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.chaos.sim.object_store import StoreFaults

if TYPE_CHECKING:
    from strandline.chaos.nemesis.nemesis import Nemesis

_OFTEN = (0.1, 0.5, 0.9)


def away(nemesis: Nemesis) -> None:
    """Nobody answers: who asks learns of it by the timeout, or by what is asked after the store is back."""
    _strike(nemesis, "away", True, "the object store is away")


def slow(nemesis: Nemesis) -> None:
    """Many times slower; what takes longer than the timeout is carried out all the same."""
    factor = nemesis.rng.choice((5.0, 30.0, 200.0))
    _strike(nemesis, "slow_factor", factor, f"the object store is {factor:.0f} times slower")


def refuse(nemesis: Nemesis) -> None:
    """503 to some calls or most; nothing is done then."""
    _strike_some(nemesis, "refused", "calls of the object store are refused")


def lose_answers(nemesis: Nemesis) -> None:
    """Writes and deletions are carried out, and answered with an error."""
    _strike_some(nemesis, "answers_lost", "answers of the object store to writes are lost")


def keep(nemesis: Nemesis) -> None:
    """Deletions are refused, as by a lock on objects or a missing right."""
    _strike_some(nemesis, "deletes_refused", "deletions in the object store are refused")


def _strike_some(nemesis: Nemesis, name: str, what: str) -> None:
    probability = nemesis.rng.choice(_OFTEN)
    _strike(nemesis, name, probability, f"{probability:.0%} of the {what}")


def _strike(nemesis: Nemesis, name: str, value: float, what: str) -> None:
    store = nemesis.store
    if store is None:
        return
    setattr(store.faults, name, value)
    duration_ms = nemesis.later(lambda: setattr(store.faults, name, getattr(StoreFaults(), name)))
    nemesis.note(f"{what} for {duration_ms} ms")
