"""Numbered schedules (docs/rules.md): bugs that others shipped, replayed against the production code.

A schedule is one function; `schedule` makes several tests of it: `[holds]` runs it as it is, and `[without-NAME]` takes
out the rule that the schedule is about, and must see it fail.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from lab.mutants import without
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.proto.errors import StrandlineError

FAILURES: tuple[type[BaseException], ...] = (AssertionError, InvariantViolated, StrandlineError, pytest.fail.Exception)
"""How a schedule may fail without its rule: what it asserts, an invariant, or an error that has a name."""


def schedule(number: int, *, rule: str, mutant: str | tuple[str, ...]) -> Callable[[Callable[..., Any]], Any]:
    """Turn a schedule into tests.

    The function is called `test_NUMBER_words`, says the schedule in its docstring, and may be `async` (it then runs in
    an event loop of its own) and take fixtures.

    Args:
        number: as in docs/rules.md.
        rule: the rule that forbids it, as `B8: truncate on a missed epoch`; without a number where the schedule is the
            only name of its rule.
        mutant: the mutant that takes that rule out; several where it has several clauses, each of which is needed.
    """
    names = (mutant,) if isinstance(mutant, str) else mutant

    def decorate(body: Callable[..., Any]) -> Any:
        assert body.__name__.startswith(f"test_{number:02}_"), f"{body.__name__} is not schedule {number}"
        assert body.__doc__
        assert rule

        def run(**fixtures: Any) -> None:
            if inspect.iscoroutinefunction(body):
                asyncio.run(body(**fixtures))
            else:
                body(**fixtures)

        @functools.wraps(body)
        def test(taken_out: str | None, **fixtures: Any) -> None:
            if taken_out is None:
                run(**fixtures)
                return
            with without(taken_out), pytest.raises(FAILURES):
                run(**fixtures)

        parameters = list(inspect.signature(body).parameters.values())
        own = inspect.Parameter("taken_out", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
        ids = ["holds", *(f"without-{name}" for name in names)]
        return pytest.mark.parametrize("taken_out", [None, *names], ids=ids)(test)

    return decorate
