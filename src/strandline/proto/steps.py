"""Work in steps: generators that yield where other work may run on the event loop, and return their result.

Whoever drives a generator decides whether other work runs between two steps. A step handles `ITEMS` items, so that
fewer items are one step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

ITEMS = 250
"""Items in a step: it takes one to some tenths of a millisecond, by what is done with each."""

FEW = 50
"""Items in a step that take up to twenty microseconds each: elements of a message, things that a request names."""

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
K = TypeVar("K")
Steps = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    """Run all steps without a pause, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def whole(steps: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Make a plain function of a generator function: it runs all steps without a pause."""

    @wraps(steps)
    def function(*args: P.args, **kwargs: P.kwargs) -> T:
        return at_once(steps(*args, **kwargs))

    return function


class Pace:
    """Counts items over nested loops, so that a step ends after each `FEW` of them, in whichever loop."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = FEW

    def is_due(self) -> bool:
        """Count one more item; true if the step ends here."""
        self._left -= 1
        if self._left > 0:
            return False
        self._left = FEW
        return True


def each(make: Callable[[T], R], items: Iterable[T]) -> Steps[list[R]]:
    """Results of `make` for each item, in order."""
    made: list[R] = []
    for number, item in enumerate(items, 1):
        made.append(make(item))
        if number % FEW == 0:
            yield
    return made


class Counted(Protocol[R_co]):
    """Items whose number is known."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[R_co]: ...


class Mapped(Generic[R]):
    """Items of a response that are made while it is written, in the same steps; their number is known before.

    Args:
        make: called with each item, in order; with several sequences, which are equally long, with one item of each.
    """

    __slots__ = ("_items", "_make")

    def __init__(self, make: Callable[..., R], *items: Counted[Any]) -> None:
        self._make = make
        self._items = items

    def __len__(self) -> int:
        return len(self._items[0])

    def __iter__(self) -> Iterator[R]:
        return map(self._make, *self._items)


def grouped(items: Iterable[tuple[K, T]]) -> Steps[dict[K, list[T]]]:
    """Group pairs: the second items of pairs by their first item, both in order of appearance."""
    groups: dict[K, list[T]] = {}
    for number, (key, item) in enumerate(items, 1):
        groups.setdefault(key, []).append(item)
        if number % ITEMS == 0:
            yield
    return groups


def let_go(items: list[T]) -> Steps[None]:
    """Empty a list in steps: to free thousands of objects at once would hold the event loop as long as to make them."""
    while len(items) > ITEMS:
        del items[-ITEMS:]
        yield
    items.clear()


def parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Slices of `ITEMS` items, one for each step; no items, no slice."""
    if len(items) <= ITEMS:
        return iter((items,) if items else ())
    return (items[start : start + ITEMS] for start in range(0, len(items), ITEMS))
