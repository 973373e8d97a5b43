"""Work in steps: a generator that stops where somebody else may have the loop, and returns what it made.

Who drives it decides whether anything comes between two steps. A step is of `ITEMS` items, so that work on fewer has
one step alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

ITEMS = 250
"""A tenth of a millisecond or some of them, by what is done with each."""

FEW = 50
"""Of items that take some microseconds each, up to twenty: a message's elements, what a request names."""

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
K = TypeVar("K")
Steps = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    """Do all of it, with nothing between."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def whole(steps: Callable[P, Steps[T]]) -> Callable[P, T]:
    """The function that does all of it at once."""

    @wraps(steps)
    def function(*args: P.args, **kwargs: P.kwargs) -> T:
        return at_once(steps(*args, **kwargs))

    return function


class Pace:
    """Counts the items of one work through loops within loops: a step is of `FEW` of them, wherever they stand."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = FEW

    def is_due(self) -> bool:
        """One more item is done; true where a step ends."""
        self._left -= 1
        if self._left > 0:
            return False
        self._left = FEW
        return True


def each(make: Callable[[T], R], items: Iterable[T]) -> Steps[list[R]]:
    """What `make` makes of each item, in order."""
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
    """Items of an answer that are made as it is written, in the same steps: their number is known before.

    Args:
        make: called for each item, in order; where there are several sequences, with one item of each. They are equally
            long.
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
    """The second of each pair by the first, both in order."""
    groups: dict[K, list[T]] = {}
    for number, (key, item) in enumerate(items, 1):
        groups.setdefault(key, []).append(item)
        if number % ITEMS == 0:
            yield
    return groups


def let_go(items: list[T]) -> Steps[None]:
    """Empty a list that nobody needs any more: thousands of objects that end at once hold the loop as their making
    would."""
    while len(items) > ITEMS:
        del items[-ITEMS:]
        yield
    items.clear()


def parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items of each step. None have no step."""
    if len(items) <= ITEMS:
        return iter((items,) if items else ())
    return (items[start : start + ITEMS] for start in range(0, len(items), ITEMS))
