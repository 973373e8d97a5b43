"""The ObjectStore port, the only way to an object store, and its production twins: S3, Google Cloud Storage and Azure
by the library `obstore`, and a directory.

Tiered storage and lakes use it. The simulator's double (`strandline.chaos.sim.object_store`) is slow, away or refuses
as a nemesis has it. `tests/log/tier/test_store_contract.py` holds all of them to one contract.

A directory needs no library. It is for tests, for lakes, and for a file system that several nodes share. Everything in
it is synced before it counts, as in a log. What a process was writing that died is deleted (rule B56): its writer holds
the file's lock, which the system lets go of when the process ends.

The library aborts an upload whose source fails, and does not where the call is cancelled: S3 would keep its parts, and
charge for them. So whoever gives up lets the source fail, and waits a moment.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from itertools import count, islice
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import structlog

from strandline.proto.errors import ConfigError, MissingExtra, ObjectMissing, StoreError
from strandline.proto.marks import mark
from strandline.proto.secrets import HIDDEN
from strandline.proto.tasks import shared

log = structlog.get_logger("strandline.log")

T = TypeVar("T")


class Use(NamedTuple):
    """Purpose that a store is opened for: what errors name.

    Attributes:
        url_key: the setting that has the URL.
        options_key: the setting that has the options.
        extra: of the package, which brings the library.
        allowed: what the URL may be.
    """

    url_key: str
    options_key: str
    extra: str
    allowed: str


TIER = Use(
    "remote.log.storage.url",
    "remote.log.storage.options",
    "tier",
    "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY",
)
SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
"""Schemes of the URLs of buckets."""

PART_BYTES = 5 << 20
"""Size of a part of a multipart upload: the least that S3 allows. What is not larger goes in one request."""

ATTEMPTS = "attempts"
"""Folder of a directory: files that are being written, and what those have left that died meanwhile."""

SWEEP_S = 60.0
"""Seconds between looks at what is left in `attempts/`, of a process that writes."""

UNTOUCHED_S = 900.0
"""So long a file of another machine must have been as it is before its lock is believed: there are file systems whose
locks no other machine sees. A writer that lives fails within the timeout of one call."""

LET_GO_S = 0.05
"""The library's threads let go of a call's objects a moment after they have answered it. An interpreter that ends in
that moment is aborted (exit code 134), which one in 25 runs of `strandline tier verify` was."""

_PARTS_AT_ONCE = 2
_RETRIES = 5
_PAGE = 1000
"""Files of a directory that are listed in one turn of a thread."""

_MARKER = ".strandline-store"
"""A file that a directory of tiered storage has once it is a store: one without it is what a mount has left behind that
went."""

_GIVE_UP_S = 2.0
"""Longest wait for the end of an upload that is aborted: with the store away it cannot be told, and its own rules have
to clear up."""

_CLIENT_OPTIONS = frozenset(
    {"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "proxy_excludes", "root_certificate"}
)
"""Options of the HTTP client instead of the store."""

_ENDPOINTS = re.compile(r"(AWS|GOOGLE|AZURE)_(\w+_)?ENDPOINT(_URL)?")
"""Variables of the environment that have the address of a store."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object, as a listing has it.

    Attributes:
        modified_ms: when it came to be, in milliseconds since 1970, in the store's own wall time.
    """

    key: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Objects by their keys: names joined by `/`. Each object is written once, and never changed.

    Every method raises StoreError where the store is away, slow or refuses, within the timeout that it was opened with.
    """

    async def put(self, key: str, chunks: AsyncIterator[bytes], size_bytes: int | None = None) -> None:
        """Write an object of `size_bytes` in all (None: as many as there are); it appears whole or not at all, and is
        durable when this returns.

        After an error it may be there all the same. What `chunks` raises is raised, and then there is no object.
        `chunks` is read as fast as the store takes it; no more than 20 MiB of it are in memory. An object that is there
        already is replaced.

        Raises:
            StoreError: also where `chunks` are not `size_bytes`; then there is no object.
        """

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object, whole and durable, unless its key is taken; False where it is.

        After an error it may be there all the same, and where it was tried again the key may be taken by this very
        call.
        """

    async def get(self, key: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of an object; at least one.

        Raises:
            ObjectMissing: there is no such object.
            StoreError: also where the object is shorter than `end`.
        """

    async def read(self, key: str) -> bytes:
        """All bytes of an object. Raises ObjectMissing where there is none."""

    async def head(self, key: str) -> StoredObject:
        """Size and time of an object. Raises ObjectMissing where there is none."""

    async def delete(self, key: str) -> None:
        """Delete an object; one that is not there is fine."""

    def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """All objects whose keys begin with `prefix` and `/` (every object where it is empty), in no order. An object
        that comes or goes meanwhile is there or not."""

    async def copy(self, source: str, target: str) -> None:
        """Make `target` an object of the same bytes, inside of the store; it appears whole or not at all.

        Raises:
            ObjectMissing: there is no such source.
        """

    async def close(self) -> None:
        """Let go of what the store was reached with. Idempotent."""


def open_store(
    url: str, options: Mapping[str, str], *, timeout_ms: float, make: bool = True, use: Use = TIER
) -> ObjectStore:
    """The store at `url`; nothing is sent to it yet.

    Args:
        url: as `use.allowed` says.
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
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(use.url_key, f"{parts.scheme}://...", f"{use.allowed}; credentials come by the environment")
    if parts.scheme == "file":
        return _open_directory(url, options, timeout_ms, make, use)
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise ConfigError(use.url_key, url, use.allowed)
    obstore = _library(use)
    client = {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
    config = {name: value for name, value in options.items() if name not in _CLIENT_OPTIONS}
    seconds = timedelta(milliseconds=timeout_ms)
    endpoints = [value for name, value in os.environ.items() if _ENDPOINTS.fullmatch(name)]
    if any(value.startswith("http://") for value in (*config.values(), *endpoints)):
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
        raise ConfigError(use.options_key, dict(options), unknown) from None
    except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
        why = in_words(error)
        for value in filter(None, options.values()):
            why = why.replace(value, HIDDEN)
        raise ConfigError(use.url_key, url, f"{use.allowed}, with the options that it needs: {why}") from None
    return RemoteStore(obstore, made, timeout_ms)


def _library(use: Use) -> ModuleType:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise MissingExtra.of(use.url_key, use.extra, error) from None
    return obstore


def _open_directory(url: str, options: Mapping[str, str], timeout_ms: float, make: bool, use: Use) -> ObjectStore:
    parts = urlsplit(url)
    directory = unquote(parts.path).rstrip("/")
    if parts.netloc or not directory:
        raise ConfigError(use.url_key, url, use.allowed)
    if options:
        raise ConfigError(use.options_key, dict(options), f"nothing: a directory has no {', '.join(options)}")
    if not make and not os.path.exists(f"{directory}/{_MARKER}"):
        absent = f"a directory that a node has made a store, by its {_MARKER}; this one has none: its mount is gone, or"
        absent += " it is another one"
        raise ConfigError(use.url_key, url, absent)
    try:
        if make:
            os.makedirs(directory, exist_ok=True)
            _sync_up(directory, _make(f"{directory}/{_MARKER}"))
            _Left(directory).delete(0.0)
        os.listdir(directory)
    except OSError as error:
        raise ConfigError(use.url_key, url, f"a directory that can be made and read ({in_words(error)})") from None
    return DirectoryStore(directory, timeout_ms)


@asynccontextmanager
async def _within(timeout_s: float, key: str) -> AsyncIterator[None]:
    """One call, in the time that it has, with our errors for those of the library and of the system."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except StoreError:
        raise
    except TimeoutError:
        raise StoreError(f"the object store gave no answer in {timeout_s:g} s ({key})") from None
    except Exception as error:
        # A bucket that is missing is "not found" as well, and says nothing of the object.
        if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
            raise ObjectMissing(key) from None
        if is_panic(error):
            raise StoreError(f"the object store cannot be asked: {in_words(error)}") from None
        if not isinstance(error, OSError | ValueError) and not _is_of_library(error):
            raise
        about = f" ({key})" if key else ""
        raise StoreError(f"the object store cannot do what was asked{about}: {in_words(error)}") from None


class RemoteStore:
    """An ObjectStore over a bucket: a store of obstore."""

    def __init__(self, obstore: ModuleType, store: Any, timeout_ms: float) -> None:
        self._obstore = obstore
        self._store = store
        self._timeout_s = timeout_ms / 1000

    async def put(self, key: str, chunks: AsyncIterator[bytes], size_bytes: int | None = None) -> None:
        """Implement `ObjectStore.put`."""
        first, sent = [], 0
        async for chunk in chunks:
            first.append(chunk)
            sent += len(chunk)
            if sent > PART_BYTES:
                break
        else:
            _check_size(key, sent, size_bytes)
            async with _within(self._timeout_s, key):
                await self._obstore.put_async(self._store, key, b"".join(first), use_multipart=False)
            return
        upload = Upload(
            lambda source: self._obstore.put_async(
                self._store, key, source, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
        )
        try:
            async with _within(self._timeout_s, key):
                await upload.send(b"".join(first))
            first.clear()
            async for chunk in chunks:
                sent += len(chunk)
                if size_bytes is not None and sent > size_bytes:
                    break
                async with _within(self._timeout_s, key):
                    await upload.send(chunk)
            _check_size(key, sent, size_bytes)
            async with _within(self._timeout_s, key):
                await upload.end()
        except BaseException:
            await upload.give_up()
            raise

    async def create(self, key: str, data: bytes) -> bool:
        """Implement `ObjectStore.create`."""
        async with _within(self._timeout_s, key):
            try:
                await self._obstore.put_async(self._store, key, data, mode="create", use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                return False
        return True

    async def get(self, key: str, start: int, end: int) -> bytes:
        """Implement `ObjectStore.get`."""
        async with _within(self._timeout_s, key):
            data = bytes(await self._obstore.get_range_async(self._store, key, start=start, end=end))
        if len(data) != end - start:
            raise StoreError(f"{key} ends at {start + len(data)}, before byte {end}")
        return data

    async def read(self, key: str) -> bytes:
        """Implement `ObjectStore.read`."""
        async with _within(self._timeout_s, key):
            return bytes(await (await self._obstore.get_async(self._store, key)).bytes_async())

    async def head(self, key: str) -> StoredObject:
        """Implement `ObjectStore.head`."""
        async with _within(self._timeout_s, key):
            return _stored(await self._obstore.head_async(self._store, key))

    async def delete(self, key: str) -> None:
        """Implement `ObjectStore.delete`."""
        try:
            async with _within(self._timeout_s, key):
                await self._obstore.delete_async(self._store, key)
        except ObjectMissing:
            pass

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Implement `ObjectStore.list`."""
        pages = self._obstore.list(self._store, prefix or None)
        while True:
            async with _within(self._timeout_s, prefix):
                page = await anext(pages, None)
            if page is None:
                return
            for item in page:
                yield _stored(item)

    async def copy(self, source: str, target: str) -> None:
        """Implement `ObjectStore.copy`."""
        async with _within(self._timeout_s, source):
            await self._obstore.copy_async(self._store, source, target)

    async def close(self) -> None:
        """Implement `ObjectStore.close`."""
        if self._store is not None:
            self._store = None
            await asyncio.sleep(LET_GO_S)


def _stored(item: Mapping[str, Any]) -> StoredObject:
    return StoredObject(item["path"], item["size"], int(item["last_modified"].timestamp() * 1000))


def _check_size(key: str, sent: int, size_bytes: int | None) -> None:
    """Raises StoreError unless a source had as many bytes as was said."""
    if size_bytes is not None and sent != size_bytes:
        raise StoreError(f"{sent} bytes or more were to be written to {key} instead of {size_bytes}")


class DirectoryStore:
    """An ObjectStore in a directory: what is written to it is synced, with the names that lead there.

    Files are written in `attempts/`, and get their names once they are whole. Whoever writes deletes first, now and
    then, what others have left there.
    """

    def __init__(self, directory: str, timeout_ms: float, *, marked: bool = True) -> None:
        """`marked`: the directory has a marker, without which nothing is done in it: its mount would be gone."""
        self._root = directory
        self._timeout_s = timeout_ms / 1000
        self._marked = marked
        self._left = _Left(directory)
        self._swept_s: float | None = None
        self._synced: set[str] = set()
        """Folders whose names are durable: nobody removes them."""

    async def put(self, key: str, chunks: AsyncIterator[bytes], size_bytes: int | None = None) -> None:
        """Implement `ObjectStore.put`."""
        await self._check_mounted(key)
        await self._sweep()
        first, sent = [], 0
        async for chunk in chunks:
            first.append(chunk)
            sent += len(chunk)
            if sent > PART_BYTES:
                break
        else:
            _check_size(key, sent, size_bytes)
            await self._do(key, lambda: self._write(key, b"".join(first)))
            return
        attempt = await self._do(key, lambda: _Attempt(self._root, self._path(key)))
        try:
            await self._do(key, lambda: attempt.file.writelines(first))
            async for chunk in chunks:
                sent += len(chunk)
                if size_bytes is not None and sent > size_bytes:
                    break
                await self._do(key, partial(attempt.file.write, chunk))
            _check_size(key, sent, size_bytes)
            await self._check_mounted(key)
            await self._do(key, attempt.replace)
        except BaseException:
            await asyncio.wait((_in_thread(attempt.give_up),), timeout=_GIVE_UP_S)
            raise
        await self._do(key, lambda: self._sync_names(key))

    async def create(self, key: str, data: bytes) -> bool:
        """Implement `ObjectStore.create`. It is a hard link, which fails where the name is taken: the file system must
        have them (local disks do, and NFS)."""
        await self._check_mounted(key)

        def link() -> bool:
            attempt = _Attempt(self._root, self._path(key))
            try:
                attempt.file.write(data)
                if not attempt.link():
                    return False
            finally:
                attempt.give_up()
            self._sync_names(key)
            return True

        return await self._do(key, link)

    async def get(self, key: str, start: int, end: int) -> bytes:
        """Implement `ObjectStore.get`."""
        await self._check_mounted(key)

        def read() -> bytes:
            with open(self._path(key), "rb") as file:
                file.seek(start)
                return file.read(end - start)

        data = await self._do(key, read)
        if len(data) != end - start:
            raise StoreError(f"{key} ends before byte {end}")
        return data

    async def read(self, key: str) -> bytes:
        """Implement `ObjectStore.read`."""
        await self._check_mounted(key)

        def read() -> bytes:
            with open(self._path(key), "rb") as file:
                return file.read()

        return await self._do(key, read)

    async def head(self, key: str) -> StoredObject:
        """Implement `ObjectStore.head`."""
        await self._check_mounted(key)
        return await self._do(key, lambda: _seen(self._path(key), key))

    async def delete(self, key: str) -> None:
        """Implement `ObjectStore.delete`."""
        await self._check_mounted(key)
        await self._sweep()
        try:
            await self._do(key, lambda: os.unlink(self._path(key)))
        except ObjectMissing:
            pass

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Implement `ObjectStore.list`."""
        await self._check_mounted(prefix)
        found = self._walk(prefix)
        while page := await self._do(prefix, lambda: list(islice(found, _PAGE))):
            for item in page:
                yield item

    async def copy(self, source: str, target: str) -> None:
        """Implement `ObjectStore.copy`."""
        await self._check_mounted(source)

        def copy() -> None:
            with open(self._path(source), "rb") as file:
                attempt = _Attempt(self._root, self._path(target))
                try:
                    shutil.copyfileobj(file, attempt.file)
                    attempt.replace()
                finally:
                    attempt.give_up()
            self._sync_names(target)

        await self._do(source, copy)

    async def close(self) -> None:
        """Implement `ObjectStore.close`."""

    def _path(self, key: str) -> str:
        """Path of an object. Raises StoreError for a key that leads out of the store."""
        if any(part in ("", ".", "..") for part in key.split("/")):
            raise StoreError(f"{key} is no key of an object")
        return f"{self._root}/{key}"

    def _walk(self, prefix: str) -> Iterator[StoredObject]:
        def failed(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):  # a folder that is not there has no objects
                raise error

        for path, folders, names in os.walk(f"{self._root}/{prefix}".rstrip("/"), onerror=failed):
            if path == self._root and ATTEMPTS in folders:
                folders.remove(ATTEMPTS)
            for name in names:
                if name != _MARKER:
                    try:
                        yield _seen(f"{path}/{name}", f"{path}/{name}"[len(self._root) + 1 :])
                    except FileNotFoundError:
                        continue  # it went meanwhile

    async def _do(self, key: str, work: Callable[[], T]) -> T:
        async with _within(self._timeout_s, key):
            return await _in_thread(work)

    async def _sweep(self) -> None:
        """Delete what others have left, if it is time to look. An error waits for the next time."""
        now_s = asyncio.get_running_loop().time()
        if self._swept_s is not None and now_s - self._swept_s < SWEEP_S:
            return
        self._swept_s = now_s
        try:
            await self._do(ATTEMPTS, lambda: self._left.delete(now_s))
        except StoreError:
            pass

    async def _check_mounted(self, key: str) -> None:
        """Check that the directory of the store is mounted. Raises StoreError."""
        if self._marked:
            await self._do(key, self._require_marker)

    def _require_marker(self) -> None:
        # rule B23/a-bare-directory-is-the-store
        if self._marked and not os.path.exists(f"{self._root}/{_MARKER}"):
            raise StoreError(f"{self._root} has no {_MARKER}: its mount is gone, or another directory is in its place")

    def _write(self, key: str, data: bytes) -> None:
        attempt = _Attempt(self._root, self._path(key))
        try:
            attempt.file.write(data)
            attempt.replace()
        finally:
            attempt.give_up()
        self._sync_names(key)

    def _sync_names(self, key: str) -> None:
        """Make the name of a file durable, and those of the folders that lead there, unless this process did that
        already. Raises StoreError where the file was written below a mount that went."""
        self._require_marker()
        folder = os.path.dirname(f"{self._root}/{key}")
        if folder not in self._synced:
            _sync_up(self._root, os.path.dirname(key))
            self._synced.add(folder)
        else:
            _sync_path(folder)


class _Attempt:
    """A file that is being written, which has not its name yet. Used in one thread at a time, and blocks.

    Invariant: its lock is held from before the first byte is written until it has its name.
    """

    def __init__(self, root: str, path: str) -> None:
        """Begin it. Raises OSError."""
        self._path = path
        name = os.path.basename(path)
        os.makedirs(f"{root}/{ATTEMPTS}", exist_ok=True)
        for number in count():  # several processes may write to the directory, and number themselves alike
            self._written = f"{root}/{ATTEMPTS}/{_boot()}-{os.getpid()}-{number}-{name}"
            try:
                descriptor = os.open(self._written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue
            if not _own(descriptor):
                os.close(descriptor)
                continue
            self.file = open(descriptor, "wb")  # noqa: SIM115
            self._waits = True
            break

    def replace(self) -> None:
        """Give it its name, durable but for the name itself. Raises OSError."""
        self._end()
        os.replace(self._written, self._path)
        self._waits = False
        self.file.close()

    def link(self) -> bool:
        """Give it its name as well; False where that is taken. Raises OSError."""
        self._end()
        try:
            os.link(self._written, self._path)
        except FileExistsError:
            return False
        return True

    def give_up(self) -> None:
        """Let there be nothing in `attempts/`. Raises OSError."""
        try:
            if self._waits:  # else it has got its name, and another attempt may have this one
                os.unlink(self._written)
        finally:
            self._waits = False
            self.file.close()

    def _end(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        os.makedirs(os.path.dirname(self._path), exist_ok=True)


class _Left:
    """Files in `attempts/` that nobody writes any more: those of processes that died."""

    def __init__(self, root: str) -> None:
        self._folder = f"{root}/{ATTEMPTS}"
        self._seen: dict[str, tuple[tuple[int, int, int], float]] = {}

    def delete(self, now_s: float) -> None:
        """Delete those of which it is certain. Blocking; `now_s` is of a monotonic clock. Raises OSError."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return
        seen, self._seen = self._seen, {}
        for name in names:
            try:
                descriptor = os.open(f"{self._folder}/{name}", os.O_WRONLY)
            except FileNotFoundError:
                continue  # it has got its name meanwhile, or was given up
            try:
                status = os.fstat(descriptor)
                looks = status.st_ino, status.st_size, status.st_mtime_ns
                before = seen.get(name)
                since_s = before[1] if before is not None and before[0] == looks else now_s
                here = bool(_boot()) and name.startswith(f"{_boot()}-")
                # rule B56/locks-of-other-machines-are-believed-at-once
                if (here or now_s - since_s >= UNTOUCHED_S) and _is_left(descriptor):
                    self._unlink(name, status)
                else:
                    self._seen[name] = looks, since_s
            finally:
                os.close(descriptor)

    def _unlink(self, name: str, locked: os.stat_result) -> None:
        """Delete a file whose lock is held, unless it has got its name before, and another one has this name now."""
        path = f"{self._folder}/{name}"
        try:
            if not os.path.samestat(os.stat(path), locked):  # rule B56/another-file-of-the-name-is-deleted
                return
            os.unlink(path)
        except FileNotFoundError:
            return
        mark("attempt-of-the-dead-deleted")
        log.info(
            "a file that a process was writing into the store when it died is deleted",
            file=path,
            size_bytes=locked.st_size,
        )


@cache
def _boot() -> str:
    """Name of the kernel's life: all processes of this machine see each other's locks until it ends. "" without."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip().replace("-", "")
    except OSError:
        return ""


def _own(descriptor: int) -> bool:
    """Lock a file that was just made, until it is closed; False where somebody that looks for what is left came
    between, and deletes it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # rule B56/attempts-have-no-lock
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system has no locks: nothing counts as left in it
    return os.fstat(descriptor).st_nlink > 0


def _is_left(descriptor: int) -> bool:
    """Whether nobody writes a file; its lock is held from now on, until it is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # rule B56/what-is-being-written-is-deleted
    except OSError:
        return False
    return True


def _seen(path: str, key: str) -> StoredObject:
    status = os.stat(path)
    return StoredObject(key, status.st_size, status.st_mtime_ns // 1_000_000)


def _make(path: str) -> str:
    """An empty file, unless it is there; its name."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    return os.path.basename(path)


def _sync_up(root: str, key: str) -> None:
    """Sync a file or folder, and every directory from its own up to the one above the store's."""
    path = f"{root}/{key}".rstrip("/")
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


def _in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(None, work)


class _GivenUp(Exception):
    """Error by which the source of an upload that was given up fails."""


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


class _Kind(NamedTuple):
    """Kind of store, and where credentials for it come from.

    Attributes:
        role: a piece of the address at which the machine's own role is asked for, and of errors about it.
        looked_for: where credentials are looked for, the environment first.
        not_read: where others look, and obstore does not.
    """

    role: tuple[str, ...]
    looked_for: str
    not_read: str


_KINDS = (
    _Kind(
        ("/latest/api/token", "/latest/meta-data/iam"),
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN with them), or AWS_WEB_IDENTITY_TOKEN_FILE and "
        "AWS_ROLE_ARN, in the environment; aws_access_key_id and aws_secret_access_key among the options of the store",
        "Profiles (~/.aws, AWS_PROFILE) are not read. A public bucket: aws_skip_signature=true",
    ),
    _Kind(
        ("computeMetadata", "metadata.google.internal"),
        "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT (a file), GOOGLE_SERVICE_ACCOUNT_KEY, in the "
        "environment; google_service_account among the options of the store; the file that `gcloud auth "
        "application-default login` writes",
        "A public bucket: google_skip_signature=true",
    ),
    _Kind(
        ("/metadata/identity/oauth2/token", "Account must be specified"),
        "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN, or AZURE_CLIENT_ID, "
        "AZURE_CLIENT_SECRET and AZURE_TENANT_ID) in the environment; azure_storage_account_name and the like among "
        "the options of the store",
        "A public container: azure_skip_signature=true",
    ),
)


def explained(why: str) -> str:
    """Words of a store; where it found no credentials, which ones are looked for, and where."""
    for kind in _KINDS:
        if any(piece in why for piece in kind.role):
            return (
                f"no credentials. They are looked for here: {kind.looked_for}; then the machine's own role counts. "
                f"{kind.not_read}. The last attempt: {why}"
            )
    return why


_PANICS = ("PanicException", "RustPanic")
"""Names of what the library raises for an endpoint that is no URL: from a call, and from one that is awaited. The first
is no Exception, and neither can be imported."""


def in_words(error: BaseException) -> str:
    """An error of the library as a user gets to see it: its first line, without the query of a URL, which may hold a
    signature."""
    line = re.sub(r"\?\S*", "?...", str(error).partition("\n")[0])[:500]
    return f"{line} (is the endpoint a URL?)" if is_panic(error) else explained(line)


def is_panic(error: BaseException) -> bool:
    """Whether the library panicked."""
    return type(error).__name__ in _PANICS


def _is_of_library(error: BaseException) -> bool:
    """Whether the library raised it."""
    return type(error).__module__.partition(".")[0] == "obstore"
