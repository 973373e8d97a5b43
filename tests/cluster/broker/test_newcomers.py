"""Connections that nobody serves yet: they are accepted and let in within the time of strangers (rule A44)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from test_loop_time import Site, drained, run

from strandline.cluster.broker import newcomers as newcomers_module
from strandline.cluster.broker.loop_time import STRANGERS_MS
from strandline.cluster.broker.newcomers import Newcomers


def of(site: Site) -> Newcomers:
    return Newcomers("PLAINTEXT", asyncio.Protocol, site.loop_time)


def taking(site: Site, name: str) -> Callable[[], None]:
    """Takes a turn of strangers."""

    def take() -> None:
        site.clock.now_ms += STRANGERS_MS
        site.done.append(name)

    return take


def come(site: Site, newcomers: Newcomers, name: str, address: str = "10.0.0.9") -> None:
    newcomers.arrived(address, taking(site, name), partial(site.done.append, f"{name} dropped"))


def test_newcomers_are_let_in_one_after_the_other_and_fairly_by_address() -> None:
    async def body(site: Site) -> None:
        newcomers = of(site)
        for number in range(20):
            come(site, newcomers, f"m{number}")
        come(site, newcomers, "alice", "10.0.0.1")
        assert site.done == ["m0"], "who comes when nobody else does waits for nothing"
        assert len(newcomers) == 20
        await drained(site, 21)
        assert "alice" in site.done[:4]
        assert len(newcomers) == 0

    run(body)


def test_accepting_waits_for_its_turn() -> None:
    """Until then the listener looks away; it and those that it has accepted have turns alike."""

    async def body(site: Site) -> None:
        newcomers = of(site)
        again = partial(newcomers.accepted, taking(site, "accepted"))
        assert newcomers.may_come(again)
        again()
        assert not newcomers.may_come(again)
        for number in range(10):
            come(site, newcomers, f"m{number}")
        assert site.done == ["accepted"]
        await drained(site, 4)
        assert site.done.count("accepted") == 2

    run(body)


def test_newcomers_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one more the last one of the address that has most goes."""
    monkeypatch.setattr(newcomers_module, "WAITING_MAX", 4)

    async def body(site: Site) -> None:
        newcomers = of(site)
        for number in range(4):
            come(site, newcomers, f"m{number}")
        come(site, newcomers, "alice", "10.0.0.1")
        come(site, newcomers, "bob", "10.0.0.2")
        assert site.done == ["m0", "m3 dropped"]
        assert len(newcomers) == 4
        await drained(site, 6)
        assert {"m1", "m2", "alice", "bob"} <= set(site.done)

    run(body)


def test_a_listener_that_closes_drops_who_waits() -> None:
    async def body(site: Site) -> None:
        newcomers = of(site)
        again = taking(site, "accepted")
        for number in range(3):
            come(site, newcomers, f"m{number}")
        assert not newcomers.may_come(again)
        newcomers.close(again)
        assert site.done == ["m0", "m2 dropped", "m1 dropped"]
        assert len(newcomers) == 0
        site.ask(newcomers._accepting, "behind them", 0.0)
        await drained(site, 4)
        assert "accepted" not in site.done

    run(body)
