"""Tasks that nobody awaits end as foreseen, or are told (schedule 59)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from strandline.proto.errors import FatalError
from strandline.proto.tasks import Together, shared, spawn


async def returns() -> None:
    """Ends."""
    await asyncio.sleep(0)


async def fails() -> None:
    """Ends by an error."""
    await asyncio.sleep(0)
    raise ValueError("nobody foresaw this")


async def waits() -> None:
    """Never ends."""
    await asyncio.get_running_loop().create_future()


async def is_cancelled_from_inside() -> None:
    """Something that it waits for is cancelled, as libraries do to their own futures."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.cancel)
    await future


def told(
    work: Callable[[], Coroutine[Any, Any, None]], *, endless: bool = False, cancel: bool = False
) -> list[BaseException]:
    """What was reported of it."""
    reported: list[BaseException] = []

    async def main() -> None:
        task = spawn(work(), reported.append, endless=endless)
        await asyncio.sleep(0.001)
        if cancel:
            task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)

    asyncio.run(main())
    return reported


def test_an_exception_is_told_once() -> None:
    """Whoever started it hears of it, in the turn after."""
    (error,) = told(fails)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("endless", [False, True])
def test_a_cancellation_that_was_asked_for_is_no_news(endless: bool) -> None:
    """Its owner ends it so."""
    assert told(waits, endless=endless, cancel=True) == []


def test_a_cancellation_that_nobody_asked_for_is_told() -> None:
    """A library that cancels a future under a task ends the task, and nobody has meant that."""
    (error,) = told(is_cancelled_from_inside)
    assert isinstance(error, FatalError)
    assert "is_cancelled_from_inside was cancelled, and nobody had asked for it" in str(error)


def test_what_should_not_end_is_told_when_it_does() -> None:
    """A return is an end, too."""
    assert told(returns) == []
    (error,) = told(returns, endless=True)
    assert "returns has ended by itself" in str(error)


def test_shared_work_goes_on_without_a_caller_and_its_failure_is_told_to_the_others_alone() -> None:
    """`asyncio.shield` gave it to the loop's handler of unhandled errors, from Python 3.14 on."""
    unhandled: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        work = loop.create_task(fails())
        given_up, other = loop.create_task(shared(work)), loop.create_task(shared(work))
        loop.call_soon(given_up.cancel)
        with pytest.raises(ValueError, match="foresaw"):
            await other
        assert given_up.cancelled()
        with pytest.raises(ValueError, match="foresaw"):
            await shared(work)

    asyncio.run(main())
    assert not unhandled


def test_work_that_is_done_together() -> None:
    """A run serves those who asked before it began, each of whom hears of its failure; who asks meanwhile has the next.
    One who gives up ends it for nobody."""
    began: list[int] = []
    ends: list[asyncio.Future[None]] = []

    async def work() -> None:
        began.append(len(ends))
        ends.append(asyncio.get_running_loop().create_future())
        await ends[-1]

    async def ask_all() -> list[Any]:
        together = Together(work)
        first = [asyncio.create_task(together()) for _ in range(3)]
        while not began:
            await asyncio.sleep(0)
        second = [asyncio.create_task(together()) for _ in range(2)]
        await asyncio.sleep(0)
        second[0].cancel()
        ends[0].set_exception(ValueError("the first run failed"))
        while len(began) == 1:
            await asyncio.sleep(0)
        ends[1].set_result(None)
        return await asyncio.gather(*first, *second, return_exceptions=True)

    outcomes = [type(outcome) for outcome in asyncio.run(ask_all())]
    assert outcomes == [ValueError] * 3 + [asyncio.CancelledError, type(None)]
    assert began == [0, 1]
