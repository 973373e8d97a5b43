"""What a user of the client is told who has made a mistake: once, and with the way out. No broker is needed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import strandline.client
from strandline.client import Admin, Consumer, Producer, aio, errors
from strandline.client.batch_sender import BatchSender
from strandline.client.config import AdminConfig
from strandline.client.errors import BrokerUnreachable, ClientTimeout, ClosedError
from strandline.client.loop_thread import LoopThread
from strandline.client.session import Session
from strandline.proto.errors import ConfigError, StrandlineError
from tests.client.test_limits import LIMIT_S, OF_AIO, SLACK_S, new
from tests.ports import free_port


async def refusal(bootstrap: str) -> str:
    """What is told when no address of the list answers."""
    session = Session(bootstrap, AdminConfig({}))
    with pytest.raises(BrokerUnreachable) as refused:
        await session.network.to_any([])
    await session.close()
    return str(refused.value)


@pytest.mark.parametrize(
    ("bootstrap", "told"),
    [
        ("127.0.0.1:1", "cannot connect to 127.0.0.1:1: Connection refused. Is the cluster running"),
        ("127.0.0.1:1,127.0.0.1:2", "cannot connect to 127.0.0.1:1, 127.0.0.1:2: Connection refused. Is the cluster"),
    ],
)
def test_an_address_without_a_broker_is_told_once(bootstrap: str, told: str) -> None:
    assert asyncio.run(refusal(bootstrap)).startswith(told)


def test_addresses_that_fail_differently_are_told_each() -> None:
    async def main() -> None:
        async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            rude = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            told = await refusal(f"127.0.0.1:1,{rude}")
        assert told.startswith(f"cannot connect to 127.0.0.1:1, {rude}: 127.0.0.1:1: Connection refused; {rude}: "), (
            told
        )

    asyncio.run(main())


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.describe_topics("orders"),
        lambda admin: admin.delete_topics("orders"),
        lambda admin: admin.describe_groups("kitchen"),
        lambda admin: admin.delete_groups("kitchen"),
    ],
)
def test_one_name_is_not_taken_for_the_names_of_its_letters(ask: Callable[[aio.Admin], Awaitable[object]]) -> None:
    async def main() -> None:
        async with aio.Admin("127.0.0.1:1") as admin:
            with pytest.raises(TypeError, match=r"several names are expected: \['(orders|kitchen)'\], not "):
                await ask(admin)

    asyncio.run(main())


@pytest.mark.parametrize(("kind", "word"), [(Producer, "producer"), (Consumer, "consumer"), (Admin, "admin")])
def test_a_setting_that_does_not_exist_names_the_command_that_lists_them(
    kind: Callable[..., object], word: str
) -> None:
    with pytest.raises(ConfigError, match=f"`strandline config client {word}` lists them"):
        kind("127.0.0.1:1", bogus=1)


def test_a_topic_is_not_taken_for_a_partition() -> None:
    topics: Any = ["orders"]
    with Consumer("127.0.0.1:1") as consumer, pytest.raises(TypeError, match=r"\('orders', 0\) say, not the name of a"):
        consumer.assign(topics)


@pytest.mark.filterwarnings("error")  # a coroutine that nobody awaits is one
def test_a_closed_client_says_that_it_is_closed() -> None:
    producer, consumer = Producer("127.0.0.1:1"), Consumer("127.0.0.1:1")
    admin = Admin("127.0.0.1:1", default_api_timeout_ms=100)
    with pytest.raises(ClientTimeout):
        admin.list_topics()
    for client in (producer, consumer, admin):
        client.close()
        client.close()
    uses: list[Callable[[], object]] = [
        lambda: producer.send("orders", b"soup"),
        consumer.poll,
        lambda: consumer.assign([("orders", 0)]),
        lambda: consumer.beginning_offsets([("orders", 0)]),
        admin.list_topics,
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="is closed"):
            use()


def test_every_error_can_be_caught_by_the_package_s_name_for_it() -> None:
    """What docs/client.md says is raised is imported from where everything else of the client is."""
    told = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StrandlineError)}
    told |= {ConfigError}
    assert {kind.__name__: getattr(strandline.client, kind.__name__) for kind in told} == {k.__name__: k for k in told}
    assert {kind.__name__ for kind in told} <= set(strandline.client.__all__)


ANYWHERE = {
    "subscription", "assignment", "paused", "stop", "stopped", "state", "fetch_requests_sent", "finish_run",
    "take_back", "deserialized", "next_polled", "group_id", "topic_id", "put_back", "start_anew", "wake_poll", "expect",
    "transaction_state", "group_metadata",
}  # fmt: skip
"""Calls that look, or that note something for the next one: they need no loop."""


@pytest.mark.parametrize("ended", [True, False])
def test_an_asynchronous_client_is_refused_on_another_loop(ended: bool) -> None:
    """Nobody would send what is queued there, nor wake who waits. The loop that the client was used on first has ended
    (two times `asyncio.run`), or runs in another thread."""

    async def used_first(cls: type) -> Any:
        client = new(cls, f"127.0.0.1:{free_port()}")
        first = {aio.Admin: "list_topics", aio.Producer: "send", aio.Consumer: "poll"}.get(cls, "answers")
        if cls is not BatchSender:
            with contextlib.suppress(StrandlineError):
                async with asyncio.timeout(LIMIT_S + SLACK_S):
                    await OF_AIO[cls][first](client)
        return client

    async def all_used_first() -> list[Any]:
        return await asyncio.gather(*(used_first(cls) for cls in OF_AIO))

    async def refused(client: Any, call: Callable[[Any], Any]) -> str:
        try:
            result = call(client)
            if inspect.isawaitable(result):
                await result
        except StrandlineError as error:
            return str(error)
        return "it was done"

    async def every_call() -> None:
        clients = run(all_used_first())
        for client in clients:
            for name, call in OF_AIO[type(client)].items():
                if name not in ANYWHERE:
                    told = await refused(client, call)
                    assert "belongs to the event loop that used it first" in told, (client, name, told)
                    assert ("which has ended" in told) == ended
        for client in clients if not ended else []:
            run(client.__aexit__() if isinstance(client, BatchSender) else client.close())

    elsewhere = LoopThread("elsewhere", [])

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        if not ended:
            return elsewhere.wait(lambda: work)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, work).result()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # those of the loop that has ended cannot be closed
        try:
            asyncio.run(every_call())
        finally:
            elsewhere.stop(_nothing)
            gc.collect()


async def _nothing() -> None:
    pass
