"""The production ObjectStore: S3, Google Cloud Storage, Azure, or a directory, by the library `obstore`.

A directory is for tests, and for a file system that several nodes share. There everything is synced before it counts,
as in a log: `obstore` alone would leave that to the kernel.

The library aborts an upload whose source fails, and does not where the call is cancelled: S3 would keep its parts, and
charge for them. So whoever gives up lets the source fail, and waits a moment.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from strandline.log.tier.credentials import in_words, is_panic
from strandline.log.tier.store import StoredObject
from strandline.proto.errors import ConfigError, MissingExtra, ObjectMissing, StoreError
from strandline.proto.secrets import HIDDEN
from strandline.proto.tasks import shared

if TYPE_CHECKING:
    from strandline.log.tier.store import ObjectStore

T = TypeVar("T")

URL_KEY = "remote.log.storage.url"
OPTIONS_KEY = "remote.log.storage.options"
URLS = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY"

PART_BYTES = 5 << 20
"""Of a multipart upload at a time: the least that S3 allows. What is not larger goes in one request."""

_LET_GO_S = 0.05
"""The library's threads let go of a call's objects a moment after they have answered it. An interpreter that ends in
that moment is aborted (exit code 134), which one in 25 runs of `strandline tier verify` was."""

_PARTS_AT_ONCE = 2
_RETRIES = 2
_MARKER = ".strandline-store"
"""A file that a directory has once it is a store: one without it is what a mount has left behind that went."""

_CLIENT_OPTIONS = frozenset(
    {"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "proxy_excludes", "root_certificate"}
)
"""Options of the HTTP client instead of the store."""


def open_store(url: str, options: Mapping[str, str], *, timeout_ms: float, make: bool = True) -> ObjectStore:
    """The store at `url`; nothing is sent to it yet.

    Args:
        url: see URLS.
        options: by the names that `obstore` gives them (`aws_endpoint`, `aws_region`, ...), or of its HTTP client
            (`allow_http`, which an `http://` endpoint needs no mention of; `proxy_url`, `root_certificate`...). What is
            not among them, credentials first of all, comes from the environment (`AWS_ACCESS_KEY_ID`, ...) or from the
            machine's own role.
        timeout_ms: within it each call ends; of `put`, each part of the object.
        make: a directory becomes a store. Nodes do so; who only looks must not: one where a mount is gone, that were
            made a store, would be written to by the nodes.

    Raises:
        ConfigError: the URL or an option cannot stand. No option's value is shown.
        MissingExtra: `obstore` is not installed.
    """
    obstore = _library()
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(URL_KEY, f"{parts.scheme}://...", f"{URLS}; credentials come by the environment")
    if parts.scheme == "file":
        return _open_directory(obstore, url, options, timeout_ms, make)
    if parts.scheme not in ("s3", "gs", "az") or not parts.netloc:
        raise ConfigError(URL_KEY, url, URLS)
    client = {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
    config = {name: value for name, value in options.items() if name not in _CLIENT_OPTIONS}
    seconds = timedelta(milliseconds=timeout_ms)
    if any(value.startswith("http://") for value in config.values()):
        client.setdefault("allow_http", "true")
    client.setdefault("connect_timeout", f"{int(min(timeout_ms, 5000))}ms")
    retry = {"max_retries": _RETRIES, "retry_timeout": seconds, "backoff": {"max_backoff": seconds / 4}}
    try:
        made = obstore.store.from_url(
            url, config=config, client_options={**client, "timeout": seconds}, retry_config=retry
        )
    except obstore.exceptions.UnknownConfigurationKeyError as error:
        name = re.search(r"'([^']*)'", str(error))
        unknown = f"options of obstore for {parts.scheme}://; {name[1] if name else 'one of them'} is none"
        raise ConfigError(OPTIONS_KEY, dict(options), unknown) from None
    except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
        why = in_words(error)
        for value in filter(None, options.values()):
            why = why.replace(value, HIDDEN)
        raise ConfigError(URL_KEY, url, f"{URLS}, with the options that it needs: {why}") from None
    return _Remote(obstore, made, timeout_ms)


def _library() -> ModuleType:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise MissingExtra.of(URL_KEY, "tier", error) from None
    return obstore


def _open_directory(
    obstore: ModuleType, url: str, options: Mapping[str, str], timeout_ms: float, make: bool
) -> ObjectStore:
    parts = urlsplit(url)
    directory = unquote(parts.path).rstrip("/")
    if parts.netloc or not directory:
        raise ConfigError(URL_KEY, url, URLS)
    if options:
        raise ConfigError(OPTIONS_KEY, dict(options), f"nothing: a directory has no {', '.join(options)}")
    if not make and not os.path.exists(f"{directory}/{_MARKER}"):
        absent = f"a directory that a node has made a store, by its {_MARKER}; this one has none: its mount is gone, or"
        absent += " it is another one"
        raise ConfigError(URL_KEY, url, absent)
    try:
        if make:
            os.makedirs(directory, exist_ok=True)
            _sync_up(directory, _make(f"{directory}/{_MARKER}"))
        made = obstore.store.LocalStore(directory)
    except (OSError, obstore.exceptions.BaseError) as error:
        raise ConfigError(URL_KEY, url, f"a directory that can be made and read ({in_words(error)})") from None
    return _Directory(obstore, made, timeout_ms, directory)


class _Remote:
    """An ObjectStore over a store of obstore."""

    def __init__(self, obstore: ModuleType, store: Any, timeout_ms: float) -> None:
        self._obstore = obstore
        self._store = store
        self._timeout_s = timeout_ms / 1000

    async def put(self, key: str, chunks: AsyncIterator[bytes], size_bytes: int) -> None:
        """See `ObjectStore.put`."""
        if size_bytes <= PART_BYTES:
            data = b"".join([chunk async for chunk in chunks])
            if len(data) != size_bytes:
                raise StoreError(f"{len(data)} bytes were to be written to {key} instead of {size_bytes}")
            async with self._told(key):
                await self._obstore.put_async(self._store, key, data, use_multipart=False)
            return
        upload = Upload(
            lambda source: self._obstore.put_async(
                self._store, key, source, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
        )
        try:
            sent = 0
            async for chunk in chunks:
                sent += len(chunk)
                if sent > size_bytes:
                    break
                async with self._told(key):
                    await upload.send(chunk)
            if sent != size_bytes:
                raise StoreError(f"{sent} bytes or more were to be written to {key} instead of {size_bytes}")
            async with self._told(key):
                await upload.end()
        except BaseException:
            await upload.give_up()
            raise

    async def get(self, key: str, start: int, end: int) -> bytes:
        """See `ObjectStore.get`."""
        async with self._told(key):
            data = bytes(await self._obstore.get_range_async(self._store, key, start=start, end=end))
        if len(data) != end - start:
            raise StoreError(f"{key} ends at {start + len(data)}, before byte {end}")
        return data

    async def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        try:
            async with self._told(key):
                await self._obstore.delete_async(self._store, key)
        except ObjectMissing:
            pass

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """See `ObjectStore.list`."""
        pages = self._obstore.list(self._store, prefix or None)
        while True:
            async with self._told(prefix):
                page = await anext(pages, None)
            if page is None:
                return
            for item in page:
                yield StoredObject(item["path"], item["size"], int(item["last_modified"].timestamp() * 1000))

    async def copy(self, source: str, target: str) -> None:
        """See `ObjectStore.copy`."""
        async with self._told(source):
            await self._obstore.copy_async(self._store, source, target)

    async def close(self) -> None:
        """See `ObjectStore.close`."""
        if self._store is not None:
            self._store = None
            await asyncio.sleep(_LET_GO_S)

    @asynccontextmanager
    async def _told(self, key: str) -> AsyncIterator[None]:
        """One call, in the time that it has, with our errors for the library's."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except StoreError:
            raise
        except TimeoutError:
            raise StoreError(f"the object store gave no answer in {self._timeout_s:g} s ({key})") from None
        except (self._obstore.exceptions.BaseError, OSError, ValueError) as error:
            # A bucket that is missing is "not found" as well, and says nothing of the object.
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
                raise ObjectMissing(key) from None
            about = f" ({key})" if key else ""
            raise StoreError(f"the object store cannot do what was asked{about}: {in_words(error)}") from None
        except Exception as error:
            if not is_panic(error):
                raise
            raise StoreError(f"the object store cannot be asked: {in_words(error)}") from None


class _Directory(_Remote):
    """A directory: what is written to it is synced, with the names that lead there."""

    def __init__(self, obstore: ModuleType, store: Any, timeout_ms: float, directory: str) -> None:
        super().__init__(obstore, store, timeout_ms)
        self._root = directory

    async def put(self, key: str, chunks: AsyncIterator[bytes], size_bytes: int) -> None:
        """See `ObjectStore.put`."""
        await self._check_mounted(key)
        await super().put(key, chunks, size_bytes)
        await self._sync(key)

    async def get(self, key: str, start: int, end: int) -> bytes:
        """See `ObjectStore.get`."""
        await self._check_mounted(key)
        return await super().get(key, start, end)

    async def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        await self._check_mounted(key)
        await super().delete(key)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """See `ObjectStore.list`."""
        await self._check_mounted(prefix)
        async for item in super().list(prefix):
            if item.key != _MARKER:
                yield item

    async def copy(self, source: str, target: str) -> None:
        """See `ObjectStore.copy`."""
        await self._check_mounted(source)
        await super().copy(source, target)
        await self._sync(target)

    async def _check_mounted(self, key: str) -> None:
        """Raises StoreError."""
        async with self._told(key):
            # rule B23/a-bare-directory-is-the-store
            if not await _off_the_loop(lambda: os.path.exists(f"{self._root}/{_MARKER}")):
                raise StoreError(
                    f"{self._root} has no {_MARKER}: its mount is gone, or another directory is in its place"
                )

    async def _sync(self, key: str) -> None:
        await self._check_mounted(key)
        async with self._told(key):
            await _off_the_loop(lambda: _sync_up(self._root, key))


def _make(path: str) -> str:
    """An empty file, unless it is there; its name."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    return os.path.basename(path)


def _sync_up(root: str, key: str) -> None:
    """The file, and every directory from its own up to the one above the store's."""
    path = f"{root}/{key}"
    while len(path) >= len(root):
        _sync_path(path)
        path = path.rpartition("/")[0]
    _sync_path(path or "/")


def _sync_path(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


async def _off_the_loop(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


_GIVE_UP_S = 2.0
"""So long an abort may take: with the store away it cannot be told, and its own rules have to clear up."""


class _GivenUp(Exception):
    """What the source of an upload fails with that was given up."""


class Upload:
    """One upload, begun at once.

    Invariant: the library asks for a chunk when it has room for it, so one chunk at most waits here.
    """

    def __init__(self, begin: Callable[[AsyncIterator[bytes]], Awaitable[Any]]) -> None:
        """`begin` uploads what the iterator that it is given yields."""
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._given_up = asyncio.Event()
        self._upload: asyncio.Future[Any] = asyncio.ensure_future(begin(self._source()))

    async def _source(self) -> AsyncIterator[bytes]:
        while not self._given_up.is_set():
            chunk = await self._chunks.get()
            if self._given_up.is_set():
                break
            if chunk is None:
                return
            yield chunk
        raise _GivenUp

    async def send(self, chunk: bytes | None) -> None:
        """Returns once the chunk has its place; None: there are no more. Raises what the upload has failed with."""
        handed = asyncio.ensure_future(self._chunks.put(chunk))
        try:
            await asyncio.wait((handed, self._upload), return_when=asyncio.FIRST_COMPLETED)
        finally:
            handed.cancel()
        if self._upload.done():
            self._upload.result()

    async def end(self) -> None:
        """All chunks were sent; returns once the object is there. Raises what the upload has failed with."""
        await self.send(None)
        await shared(self._upload)

    async def give_up(self) -> None:
        """Let there be no object, if that can be told to the store in a moment."""
        self._given_up.set()
        while not self._chunks.empty():
            self._chunks.get_nowait()
        self._chunks.put_nowait(None)
        await asyncio.wait((self._upload,), timeout=_GIVE_UP_S)
        if not self._upload.done():
            self._upload.cancel()
        elif not self._upload.cancelled():
            self._upload.exception()
