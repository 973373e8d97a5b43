"""Faults that a test requested, and whether they struck; settings, as texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence


class FaultNeverStruck(AssertionError):
    """A required fault had no effect, so that the test has not tested what it claims."""


class RequestedFault:
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
        """Number of requests, syncs or connections that it has struck so far."""
        return self._count()

    def __repr__(self) -> str:
        return f"<{self.what}: met {self.met} times>"


def assert_met(asked: Sequence[RequestedFault], fault: RequestedFault | None, times: int) -> None:
    """Check that a fault (None: each required one of `asked`) was met at least `times` times. Raises FaultNeverStruck
    if it was not."""
    for each in asked if fault is None else [fault]:
        met = each.met
        if met < times and (each.required or each is fault):
            raise FaultNeverStruck(f"{each.what} was met {met} times, not {times}")


def check_met(faults: Sequence[RequestedFault]) -> None:
    """Check that every required fault was met. Raises FaultNeverStruck, which names the others."""
    unmet = [fault.what for fault in faults if fault.required and not fault.met]
    if unmet:
        raise FaultNeverStruck(
            f"asked for, but never struck: {'; '.join(unmet)}. What the test shows, it shows without this fault. "
            "(Pass required=False where a fault may find nothing to strike.)"
        )


def as_texts(settings: Mapping[str, object] | None) -> dict[str, str]:
    """Settings as Kafka writes them: 2 and True mean "2" and "true"."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in (settings or {}).items()
    }
