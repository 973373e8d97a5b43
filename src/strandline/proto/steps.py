"""Work in steps: a generator that stops where somebody else may have the loop, and returns what it made.

Who drives it decides whether anything comes between two steps. A step is of `ITEMS` items, so that work on fewer has
one step alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

ITEMS = 250
"""A tenth of a millisecond or some of them, by what is done with each."""

P = ParamSpec("P")
T = TypeVar("T")
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
