"""What a user of the client is told who has made a mistake: once, and with the way out. No broker is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import strandline.client
from strandline.client import Admin, Consumer, Producer, aio, errors
from strandline.client.config import AdminConfig
from strandline.client.errors import BrokerUnreachable, ClientTimeout, ClosedError
from strandline.client.session import Session
from strandline.proto.errors import ConfigError, StrandlineError


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
