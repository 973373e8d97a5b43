"""The ObjectStore port, the only way to an object store, and its production implementations: S3, Google Cloud Storage
and Azure through the library `obstore`, and a directory.

Tiered storage and lakes use it. The simulator's double (`strandline.chaos.sim.object_store`) can be slow, away or
refuse. `tests/log/tier/test_store_contract.py` tests all of them against one contract.

A directory needs no library. It is for tests, for lakes, and for a file system that several nodes share. Everything in
it is synced before it counts, as in a log. Unfinished files of dead processes are deleted (rule B56): a writer locks
its file, and the system releases the lock when the process ends.

The library aborts an upload whose source fails, but not one whose call is cancelled: S3 would keep its parts, and
charge for them. So to give an upload up, let its source fail, and wait a moment.
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
    """Purpose for which a store is opened, named in errors.

    Attributes:
        url_key: setting with the URL.
        options_key: setting with the options.
        extra: extra of the package that installs the library.
        allowed: description of the allowed URLs.
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
"""URL schemes of buckets."""

PART_BYTES = 5 << 20
"""Size of a part of a multipart upload: the minimum of S3. An object up to this size is sent in one request."""

ATTEMPTS = "attempts"
"""Folder of a directory for files that are being written, and for the unfinished files of dead processes."""

SWEEP_S = 60.0
"""Seconds between looks for unfinished files in `attempts/`, by a process that writes."""

UNTOUCHED_S = 900.0
"""Seconds for which another machine's file must be unchanged before its lock is believed: some file systems do not show
locks to other machines. A live writer fails within the timeout of one call."""

LET_GO_S = 0.05
"""Seconds to wait at closing: the library's threads release a call's objects a moment after they have answered it. An
interpreter that ends in that moment is aborted (exit code 134), as one in 25 runs of `strandline tier verify` was."""

_PARTS_AT_ONCE = 2
_RETRIES = 5
_PAGE = 1000
"""Files of a directory listed in one call in a thread."""

_MARKER = ".strandline-store"
"""Name of a file in each directory that is a store. A directory without it is the empty mount point of a mount that is
gone."""

_GIVE_UP_S = 2.0
"""Longest wait in seconds for the end of an aborted upload: a store that is away cannot be told, and its own rules must
clean up."""

_CLIENT_OPTIONS = frozenset(
    {"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "proxy_excludes", "root_certificate"}
)
"""Options of the HTTP client instead of the store."""

_ENDPOINTS = re.compile(r"(AWS|GOOGLE|AZURE)_(\w+_)?ENDPOINT(_URL)?")
"""Environment variables with the address of a store."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object in a listing.

    Attributes:
        modified_ms: wall time of its creation by the store's clock, in milliseconds since 1970.
    """

    key: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Objects by key: names joined by `/`. Each object is written once, and never changed.

    Every method raises StoreError if the store is away, slow or refuses, within the timeout that it was opened with.
    """

    async def put(self, key: str, chunks: AsyncIterator[bytes], size_bytes: int | None = None) -> None:
        """Write an object of `size_bytes` (None: of any size). It appears whole or not at all, and is durable when this
        returns.

        After an error it may exist all the same. An error of `chunks` is raised, and then there is no object. `chunks`
        is read as fast as the store accepts it; at most 20 MiB of it are in memory. An existing object is replaced.

        Raises:
            StoreError: also if `chunks` do not have `size_bytes`; then there is no object.
        """

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object, whole and durable, unless its key is taken; return False if it is.

        After an error the object may exist all the same, and after a retry the key may be taken by this very call.
        """

    async def get(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of an object; at least one.

        Raises:
            ObjectMissing: there is no such object.
            StoreError: also if the object is shorter than `end`.
        """

    async def read(self, key: str) -> bytes:
        """Return all bytes of an object. Raises ObjectMissing if there is none."""

    async def head(self, key: str) -> StoredObject:
        """Return size and time of an object. Raises ObjectMissing if there is none."""

    async def delete(self, key: str) -> None:
        """Delete an object; no error if there is none."""

    def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Yield all objects whose keys begin with `prefix` and `/` (all objects if it is empty), in no order. An object
        that is made or deleted meanwhile may be missing or not."""

    async def copy(self, source: str, target: str) -> None:
        """Copy an object to the key `target`, inside of the store; the copy appears whole or not at all.

        Raises:
            ObjectMissing: there is no such source.
        """

    async def close(self) -> None:
        """Release the store's resources. Idempotent."""


def open_store(
    url: str, options: Mapping[str, str], *, timeout_ms: float, make: bool = True, use: Use = TIER
) -> ObjectStore:
    """Open the store at `url`; nothing is sent to it yet.

    Args:
        url: URL as in `use.allowed`.
        options: options by the names of `obstore` (`aws_endpoint`, `aws_region`, ...), or of its HTTP client
            (`allow_http`, which an `http://` endpoint implies; `proxy_url`, `root_certificate`...). Other options,
            credentials above all, come from the environment (`AWS_ACCESS_KEY_ID`, ...) or from the machine's own role.
        timeout_ms: time limit of each call; for `put`, of each part of the object.
        make: True to make a directory a store, as nodes do. Readers must not: if they made a store of a directory whose
            mount is gone, nodes would write to it.

    Raises:
        ConfigError: the URL or an option is not allowed. Option values are not shown.
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
    """Run one call within its time limit; errors of the library and of the system become this module's."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except StoreError:
        raise
    except TimeoutError:
        raise StoreError(f"the object store gave no answer in {timeout_s:g} s ({key})") from None
    except Exception as error:
        # A missing bucket is "not found", too, which says nothing about the object.
        if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
            raise ObjectMissing(key) from None
        if is_panic(error):
            raise StoreError(f"the object store cannot be asked: {in_words(error)}") from None
        if not isinstance(error, OSError | ValueError) and not _is_of_library(error):
            raise
        about = f" ({key})" if key else ""
        raise StoreError(f"the object store cannot do what was asked{about}: {in_words(error)}") from None


class RemoteStore:
    """ObjectStore in a bucket, through a store of obstore."""

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
    """Raise StoreError unless a source had as many bytes as announced."""
    if size_bytes is not None and sent != size_bytes:
        raise StoreError(f"{sent} bytes or more were to be written to {key} instead of {size_bytes}")


class DirectoryStore:
    """ObjectStore in a directory. Files are synced, with the names that lead to them.

    Files are written in `attempts/`, and get their names once they are whole. A writer first deletes, now and then,
    unfinished files of dead processes there.
    """

    def __init__(self, directory: str, timeout_ms: float, *, marked: bool = True) -> None:
        """`marked`: the directory must have a marker, or every call fails, as its mount is gone."""
        self._root = directory
        self._timeout_s = timeout_ms / 1000
        self._marked = marked
        self._left = _Left(directory)
        self._swept_s: float | None = None
        self._synced: set[str] = set()
        """Folders whose names are durable; folders are never removed."""

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
        """Implement `ObjectStore.create`. By a hard link, which fails if the name is taken: the file system must
        support hard links (local disks do, and NFS)."""
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
        """Return the path of an object. Raises StoreError for a key that leads out of the store."""
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
                        continue  # it was deleted meanwhile

    async def _do(self, key: str, work: Callable[[], T]) -> T:
        async with _within(self._timeout_s, key):
            return await _in_thread(work)

    async def _sweep(self) -> None:
        """Delete unfinished files of dead processes, if it is time to look. Errors are ignored until the next time."""
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
        """Make the name of a file durable, and those of the folders that lead to it, unless this process has done that
        already. Raises StoreError if the file was written below a mount point whose mount is gone."""
        self._require_marker()
        folder = os.path.dirname(f"{self._root}/{key}")
        if folder not in self._synced:
            _sync_up(self._root, os.path.dirname(key))
            self._synced.add(folder)
        else:
            _sync_path(folder)


class _Attempt:
    """A file that is being written and does not have its name yet. Used in one thread at a time, and blocks.

    Invariant: its lock is held from before the first byte is written until it has its name.
    """

    def __init__(self, root: str, path: str) -> None:
        """Create and lock the file. Raises OSError."""
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
        """Give the file its name, replacing any; durable except for the name itself. Raises OSError."""
        self._end()
        os.replace(self._written, self._path)
        self._waits = False
        self.file.close()

    def link(self) -> bool:
        """Give the file its name; False if the name is taken. Raises OSError."""
        self._end()
        try:
            os.link(self._written, self._path)
        except FileExistsError:
            return False
        return True

    def give_up(self) -> None:
        """Remove the file from `attempts/`. Raises OSError."""
        try:
            if self._waits:  # else the file has its name, and another attempt may have this temporary name
                os.unlink(self._written)
        finally:
            self._waits = False
            self.file.close()

    def _end(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        os.makedirs(os.path.dirname(self._path), exist_ok=True)


class _Left:
    """Files in `attempts/` that no process writes any more: those of dead processes."""

    def __init__(self, root: str) -> None:
        self._folder = f"{root}/{ATTEMPTS}"
        self._seen: dict[str, tuple[tuple[int, int, int], float]] = {}

    def delete(self, now_s: float) -> None:
        """Delete the files that are certainly left over. Blocking; `now_s` is monotonic time. Raises OSError."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return
        seen, self._seen = self._seen, {}
        for name in names:
            try:
                descriptor = os.open(f"{self._folder}/{name}", os.O_WRONLY)
            except FileNotFoundError:
                continue  # it got its name meanwhile, or was given up
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
        """Delete a file whose lock is held, unless it got its name meanwhile and another file has this name now."""
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
    """Return an id of this boot: until it ends, all processes of the machine see each other's locks. "" if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip().replace("-", "")
    except OSError:
        return ""


def _own(descriptor: int) -> bool:
    """Lock a new file until it is closed; False if another process, which looked for left files, locked it first, and
    deletes it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # rule B56/attempts-have-no-lock
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system has no locks: no file in it counts as left over
    return os.fstat(descriptor).st_nlink > 0


def _is_left(descriptor: int) -> bool:
    """Return True if no process writes the file; its lock is held from then on, until it is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # rule B56/what-is-being-written-is-deleted
    except OSError:
        return False
    return True


def _seen(path: str, key: str) -> StoredObject:
    status = os.stat(path)
    return StoredObject(key, status.st_size, status.st_mtime_ns // 1_000_000)


def _make(path: str) -> str:
    """Make an empty file, unless it exists; return its name."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    return os.path.basename(path)


def _sync_up(root: str, key: str) -> None:
    """Sync a file or folder, and every directory from its own up to the parent of the store's."""
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
    """Error with which the source of an upload fails when it is given up."""


class Upload:
    """One upload, which begins at once.

    Invariant: the library asks for a chunk when it has room for it, so at most one chunk waits here.
    """

    def __init__(self, begin: Callable[[AsyncIterator[bytes]], Awaitable[Any]]) -> None:
        """`begin` uploads the bytes of the iterator that it gets."""
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
        """Pass on a chunk, once there is room for it; None: there are no more. Raises the error of the upload, if it
        failed."""
        handed = asyncio.ensure_future(self._chunks.put(chunk))
        try:
            await asyncio.wait((handed, self._upload), return_when=asyncio.FIRST_COMPLETED)
        finally:
            handed.cancel()
        if self._upload.done():
            self._upload.result()

    async def end(self) -> None:
        """End the upload after the last chunk; returns once the object exists. Raises the error of the upload, if it
        failed."""
        await self.send(None)
        await shared(self._upload)

    async def give_up(self) -> None:
        """Abort the upload, so that there is no object, unless the store cannot be told within a moment."""
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
    """Kind of store, with the places where its credentials are looked for.

    Attributes:
        role: parts of the address of the machine's own role, and of errors about it, by which the kind is recognised.
        looked_for: places where credentials are looked for, the environment first.
        not_read: places that other programs read, and obstore does not.
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
    """Return a store's error message; if credentials are missing, with the places where they are looked for."""
    for kind in _KINDS:
        if any(piece in why for piece in kind.role):
            return (
                f"no credentials. They are looked for here: {kind.looked_for}; then the machine's own role counts. "
                f"{kind.not_read}. The last attempt: {why}"
            )
    return why


_PANICS = ("PanicException", "RustPanic")
"""Names of the library's exceptions for an endpoint that is no URL, from a call and from an awaited call. The first is
not an Exception, and neither can be imported."""


def in_words(error: BaseException) -> str:
    """Return an error of the library for users: its first line, without a URL's query, which may hold a signature."""
    line = re.sub(r"\?\S*", "?...", str(error).partition("\n")[0])[:500]
    return f"{line} (is the endpoint a URL?)" if is_panic(error) else explained(line)


def is_panic(error: BaseException) -> bool:
    """True if the library panicked."""
    return type(error).__name__ in _PANICS


def _is_of_library(error: BaseException) -> bool:
    """True if the library raised the error."""
    return type(error).__module__.partition(".")[0] == "obstore"
