"""What every ObjectStore keeps: otherwise the simulator tests another program.

Run against the simulator's double, a directory, and an S3 server (moto).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.lake.stores import LakeStore
from strandline.log.object_store import ObjectStore, explained, open_store
from strandline.proto.errors import ConfigError, ObjectMissing, StoreError
from tests.log.tier.stores import S3, Bench, Directory, Simulated, chunked
from tests.s3_server import served_s3

MIB = 1 << 20


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """The address of an S3 server in this process."""
    yield from served_s3()


@pytest.fixture(params=["simulated", "directory", "s3"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Each store."""
    made: Bench
    if request.param == "simulated":
        made = Simulated()
    elif request.param == "directory":
        made = Directory(tmp_path)
    else:
        made = S3(request.getfixturevalue("s3_server"))
    yield made
    made.close()


def run(bench: Bench, work: Callable[[ObjectStore], Coroutine[Any, Any, None]]) -> None:
    """A test's body on the store's loop."""

    async def main() -> None:
        store = bench.store()
        await work(store)
        await store.close()

    bench.run(main())


async def keys(store: ObjectStore, prefix: str) -> list[str]:
    return sorted([item.key async for item in store.list(prefix)])


def test_an_object_is_what_was_put(bench: Bench) -> None:
    """Small ones and those of several parts; exactly the range that is asked for."""

    async def work(store: ObjectStore) -> None:
        for name, size in (("c/small", 10), ("c/d/large", 12 * MIB + 7)):
            data = bytes(range(256)) * (size // 256 + 1)
            await store.put(name, chunked(data[:size], MIB), size)
            for start, end in ((0, 1), (0, size), (size - 3, size), (size // 2, size // 2 + 2)):
                assert await store.get(name, start, end) == data[start:end]
            for start, end in ((0, size + 1), (size - 1, size + 1), (size, size + 1), (size + 5, size + 9)):
                with pytest.raises(StoreError) as caught:
                    await store.get(name, start, end)
                assert not isinstance(caught.value, ObjectMissing)
        items = {item.key: item for item in [item async for item in store.list("c")]}
        assert {key: item.size_bytes for key, item in items.items()} == {"c/small": 10, "c/d/large": 12 * MIB + 7}
        assert all(item.modified_ms > 1_000_000_000_000 for item in items.values())

    run(bench, work)


def test_a_key_is_created_once(bench: Bench) -> None:
    """And read whole, without its size being known; what is there stays as it was."""

    async def work(store: ObjectStore) -> None:
        assert await store.create("c/commits/1", b"one")
        assert not await store.create("c/commits/1", b"another")
        assert await store.create("c/empty", b"")
        assert [await store.read(key) for key in ("c/commits/1", "c/empty")] == [b"one", b""]
        found = await store.head("c/commits/1")
        assert (found.key, found.size_bytes, found.modified_ms > 1_000_000_000_000) == ("c/commits/1", 3, True)
        first, *others = await asyncio.gather(*(store.create("c/raced", b"%d" % n) for n in range(4)))
        assert sum((first, *others)) == 1
        await store.put("c/commits/1", chunked(b"replaced", 3), 8)
        assert await store.read("c/commits/1") == b"replaced"
        assert await keys(store, "") == ["c/commits/1", "c/empty", "c/raced"]
        for key in await keys(store, ""):
            await store.delete(key)

    run(bench, work)
    assert bench.leftovers() == []


def test_an_object_whose_size_nobody_knew_is_what_was_put(bench: Bench) -> None:
    async def work(store: ObjectStore) -> None:
        for size in (0, 10, 5 * MIB, 5 * MIB + 1, 12 * MIB + 7):
            data = bytes(range(256)) * (size // 256 + 1)
            await store.put("c/x", chunked(data[:size], MIB))
            assert await store.read("c/x") == data[:size]
            assert (await store.head("c/x")).size_bytes == size
        await store.delete("c/x")

    run(bench, work)
    assert bench.leftovers() == []


def test_what_is_missing_is_told_from_a_store_that_is_away(bench: Bench) -> None:
    async def work(store: ObjectStore) -> None:
        with pytest.raises(ObjectMissing):
            await store.get("c/none", 0, 3)
        with pytest.raises(ObjectMissing):
            await store.copy("c/none", "c/other")
        for call in (store.read, store.head):
            with pytest.raises(ObjectMissing):
                await call("c/none")
        await store.delete("c/none")
        assert await keys(store, "c") == []

    run(bench, work)


def test_an_object_appears_whole_or_not_at_all(bench: Bench) -> None:
    """A source that fails, and one that has other bytes than it said."""

    class Stop(Exception):
        pass

    async def failing(n_bytes: int) -> AsyncIterator[bytes]:
        for _ in range(n_bytes // MIB):
            yield bytes(MIB)
        raise Stop

    async def work(store: ObjectStore) -> None:
        for size in (2 * MIB, 12 * MIB):
            with pytest.raises(Stop):
                await store.put("c/failed", failing(size), size)
            for wrong in (size - 1, size + 1, size + MIB):
                with pytest.raises(StoreError):
                    await store.put("c/wrong", chunked(bytes(size), MIB), wrong)
            with pytest.raises(ObjectMissing):
                await store.get("c/wrong", 0, 1)
        assert await keys(store, "") == []

    run(bench, work)
    assert bench.leftovers() == []


def test_a_put_that_is_cancelled_leaves_nothing(bench: Bench) -> None:
    async def endless(begun: asyncio.Event) -> AsyncIterator[bytes]:
        for _ in range(7):
            yield bytes(MIB)
        begun.set()
        await asyncio.Event().wait()

    async def work(store: ObjectStore) -> None:
        begun = asyncio.Event()
        task = asyncio.ensure_future(store.put("c/x", endless(begun), 12 * MIB))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await keys(store, "c") == []

    run(bench, work)
    assert bench.leftovers() == []


def test_a_listing_has_what_lies_below_its_prefix(bench: Bench) -> None:
    """Whole names: the topic `a` is no beginning of the topic `ab`."""

    async def work(store: ObjectStore) -> None:
        for key in ("c/a/0/1.log", "c/a/1/1.log", "c/ab/0/1.log", "d/a/0/1.log"):
            await store.put(key, chunked(b"x", 1), 1)
        assert await keys(store, "c/a") == ["c/a/0/1.log", "c/a/1/1.log"]
        assert await keys(store, "c") == ["c/a/0/1.log", "c/a/1/1.log", "c/ab/0/1.log"]
        assert len(await keys(store, "")) == 4
        assert await keys(store, "nothing/here") == []

    run(bench, work)


def test_copy_and_delete(bench: Bench) -> None:
    async def work(store: ObjectStore) -> None:
        await store.put("c/a", chunked(b"abc", 2), 3)
        await store.copy("c/a", "d/e/b")
        assert await store.get("d/e/b", 0, 3) == b"abc"
        await store.delete("c/a")
        await store.delete("c/a")
        assert await keys(store, "") == ["d/e/b"]

    run(bench, work)


def test_a_store_that_is_away_is_told_within_the_timeout(bench: Bench) -> None:
    """By every call, and never as an object that is missing."""

    async def work(store: ObjectStore) -> None:
        loop = asyncio.get_running_loop()
        for call in (
            lambda: store.get("c/a", 0, 1),
            lambda: store.put("c/a", chunked(b"a", 1), 1),
            lambda: store.put("c/b", chunked(bytes(12 * MIB), MIB), 12 * MIB),
            lambda: store.delete("c/a"),
            lambda: store.copy("c/a", "c/b"),
            lambda: store.create("c/a", b"a"),
            lambda: store.read("c/a"),
            lambda: store.head("c/a"),
            lambda: keys(store, "c"),
        ):
            began = loop.time()
            with pytest.raises(StoreError) as caught:
                await call()
            assert not isinstance(caught.value, ObjectMissing)
            assert loop.time() - began < 2 * bench.timeout_s + 3, "and an abort that cannot be told"

    bench.send_away()
    run(bench, work)


def test_nothing_is_written_below_a_mount_that_is_gone(tmp_path: Path) -> None:
    """Nor deleted, nor said to be missing; and all is there once it is back."""
    bench = Directory(tmp_path)

    async def work(store: ObjectStore) -> None:
        await store.put("c/a", chunked(b"abc", 2), 3)
        bench.unmount()
        for call in (
            lambda: store.put("c/b", chunked(b"b", 1), 1),
            lambda: store.delete("c/a"),
            lambda: keys(store, ""),
        ):
            with pytest.raises(StoreError, match="its mount is gone"):
                await call()
        bench.mount()
        assert await store.get("c/a", 0, 3) == b"abc"
        assert await keys(store, "") == ["c/a"]

    run(bench, work)


@pytest.mark.parametrize(
    "url",
    ["", "bucket", "memory:///", "http://host/x", "s3://", "s3:///x", "file://host/x", "file:///", "s3://u:geheim@b/x"],
)
def test_a_wrong_url_is_refused_with_what_is_allowed(url: str) -> None:
    with pytest.raises(ConfigError, match=r"s3://BUCKET") as caught:
        open_store(url, {}, timeout_ms=1000)
    assert caught.value.key == "remote.log.storage.url"
    assert "geheim" not in str(caught.value)


def test_an_option_that_cannot_stand_is_refused_without_its_value() -> None:
    for option in ({"connect_timeout": "geheim"}, {"proxy_url": "geheim:geheim@"}, {"conditional_put": "geheim"}):
        with pytest.raises(ConfigError) as caught:
            open_store("s3://bucket/x", {"aws_region": "us-east-1", **option}, timeout_ms=1000)
        assert "geheim" not in str(caught.value)


def test_an_unknown_option_is_refused_without_its_value() -> None:
    for url in ("s3://bucket/x", "file:///tmp"):
        with pytest.raises(ConfigError, match="aws_secrt") as caught:
            open_store(url, {"aws_secrt": "geheim"}, timeout_ms=1000)
        assert caught.value.key == "remote.log.storage.options"
        assert "geheim" not in str(caught.value)


def test_without_credentials_it_says_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no address of the machine's own role alone, which whoever starts has never heard of."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody listens
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")

        async def look() -> None:
            store = open_store("s3://bucket/prefix", {}, timeout_ms=10_000, make=False)
            with pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as told:
                await keys(store, "")
            assert "no credentials" in str(told.value)
            assert "Profiles (~/.aws, AWS_PROFILE) are not read" in str(told.value)
            await store.close()

        asyncio.run(look())
        with pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
            LakeStore("s3://bucket/lake").listed("commits")


def test_an_endpoint_that_is_no_url_is_told_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library panics, which is no error of its own: a node's tier and a lake say what to look at."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no url")

    async def look() -> None:
        store = open_store("s3://bucket/prefix", {"aws_endpoint": "no url"}, timeout_ms=10_000, make=False)
        for call in (
            lambda: store.get("c/a", 0, 1),
            lambda: store.put("c/a", chunked(b"a", 1), 1),
            lambda: store.put("c/b", chunked(bytes(12 * MIB), MIB), 12 * MIB),
            lambda: keys(store, "c"),
        ):
            with pytest.raises(StoreError, match="is the endpoint a URL"):
                await call()
        await store.close()

    asyncio.run(look())
    with pytest.raises(StoreError, match="is the endpoint a URL"):
        LakeStore("s3://bucket/lake").listed("commits")


@pytest.mark.parametrize(
    ("said", "looked_for"),
    [
        ("GET http://169.254.169.254/computeMetadata/v1/instance: 403", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("GET http://169.254.169.254/metadata/identity/oauth2/token?...: 403", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("Generic MicrosoftAzure error: Account must be specified", "AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_the_other_clouds_say_it_too(said: str, looked_for: str) -> None:
    assert looked_for in explained(said)
    assert explained(said).endswith(said)
    assert explained("403 Forbidden: AccessDenied") == "403 Forbidden: AccessDenied"
