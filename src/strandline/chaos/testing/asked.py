"""Faults that a test asked for: did they strike?"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class FaultNeverStruck(AssertionError):
    """A test asked for a fault that nothing met: it has not tested what it says."""


class AskedFault:
    """One fault, as asked for.

    Attributes:
        what: the call, in words.
        required: the test fails if nothing meets the fault.
    """

    def __init__(self, what: str, required: bool, count: Callable[[], int]) -> None:
        self.what = what
        self.required = required
        self._count = count

    @property
    def met(self) -> int:
        """How many requests, syncs or connections it has struck so far."""
        return self._count()

    def __repr__(self) -> str:
        return f"<{self.what}: met {self.met} times>"


def check_met(faults: Sequence[AskedFault]) -> None:
    """Raises FaultNeverStruck, naming every required fault that was never met."""
    unmet = [fault.what for fault in faults if fault.required and not fault.met]
    if unmet:
        raise FaultNeverStruck(
            f"asked for, but never struck: {'; '.join(unmet)}. What the test shows, it shows without this fault. "
            "(Pass required=False where a fault may find nothing to strike.)"
        )
