"""Methods of the blocking clients, made from those of their asynchronous twins: same arguments, same docstring.

A blocking client has its twin as `inner`. On that one's thread `wait` runs the coroutine that a function makes, and
`call` a function.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def waiting(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The twin of a coroutine function: the caller waits for its end."""

    @wraps(method)
    def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast(T, self.wait(partial(method, self.inner, *args, **kwargs)))

    return twin


def on_thread(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The twin of a function that only the client's thread may call."""

    @wraps(method)
    def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast(T, self.call(partial(method, self.inner, *args, **kwargs)))

    return twin


def direct(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The twin of a function that any thread may call."""

    @wraps(method)
    def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self.inner, *args, **kwargs)

    return twin
