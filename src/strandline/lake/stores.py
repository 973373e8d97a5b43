"""Files of a lake: in a directory, or under a prefix in S3, GCS or Azure.

Both are an object store (`strandline.log.object_store`), used here by blocking calls. A store does one thing that a
lake stands on: `create` makes a name whole or not at all, and fails where it is taken. In a directory that is a hard
link; in an object store a put that says `If-None-Match: *`.
"""

from __future__ import annotations

import asyncio
import atexit
import io
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from strandline.log.object_store import (
    LET_GO_S,
    DirectoryStore,
    ObjectStore,
    StoredObject,
    Upload,
    Use,
    open_store,
)
from strandline.proto.errors import ObjectMissing

T = TypeVar("T")

LAKE = Use(
    "place of a lake",
    "options of a lake",
    "lake",
    "a directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX",
)

TIMEOUT_MS = 60_000
"""Longest wait for an answer of a store; of a file that is written, for each part."""

AT_ONCE_BYTES = 1 << 20
"""Bytes of a file that are read, or sent, at once."""


class Writing:
    """A file that is being written, as pyarrow wants one: it appears with `publish`, whole and durable, or not at all.

    What is not published is left to `upkeep.vacuum`; in an object store, to the bucket's rule for incomplete uploads.
    """

    closed = False

    def __init__(self, write: Callable[[bytes], object], publish: Callable[[], object]) -> None:
        self.size_bytes = 0
        self.publish = publish
        self._write = write

    def write(self, data: bytes) -> None:
        """Add bytes."""
        self._write(data)
        self.size_bytes += len(data)

    def flush(self) -> None:
        """Do nothing: data is written only at the end."""

    def close(self) -> None:
        """Drop the data: after an error no incomplete file may appear."""


class LakeStore:
    """Files of one lake by their names, which have slashes. Every method raises StoreError.

    Attributes:
        place: the directory or URL, as a user writes it.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """`place`: a directory, or a URL as s3://bucket/prefix; credentials and endpoint as AWS's environment has them
        (GCS and Azure likewise).

        Raises:
            ConfigError: a URL of another kind.
            MissingExtra: obstore is not installed.
        """
        text = str(place).removeprefix("file://")
        self._store: ObjectStore
        if "://" in text:
            self.place = text.rstrip("/")
            self._store = open_store(self.place, {}, timeout_ms=TIMEOUT_MS, use=LAKE)
            _let_go_at_exit()
        else:
            self.place = str(Path(text))
            self._store = DirectoryStore(os.path.abspath(text), TIMEOUT_MS, marked=False)

    def create(self, name: str, data: bytes) -> bool:
        """Make a file, whole and durable; False, and nothing done, where the name is taken."""
        return _run(self._store.create(name, data))

    def read(self, name: str) -> bytes | None:
        """All bytes of a file; None: there is none."""
        try:
            return _run(self._store.read(name))
        except ObjectMissing:
            return None

    def listed(self, folder: str) -> dict[str, StoredObject]:
        """Every file below a folder, by its name below it, sorted."""

        async def listed() -> dict[str, StoredObject]:
            return {item.key.removeprefix(f"{folder}/"): item async for item in self._store.list(folder)}

        return dict(sorted(_run(listed()).items()))

    def writer(self, name: str) -> Writing:
        """A file to be written."""

        sending = _Sending(self._store, name)
        return Writing(sending.write, sending.publish)

    def open(self, name: str) -> io.BufferedReader:
        """A file to be read by pyarrow. Raises ObjectMissing."""
        return io.BufferedReader(_Reading(self._store, name), AT_ONCE_BYTES)

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        _run(self._store.delete(name))

    def location(self, name: str) -> str:
        """Path or URL under which other programs find a file."""
        return f"{self.place}/{name}"


class _Sending:
    """A file on its way to a store. A small one is sent at once, when it is whole."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name
        self._waiting = bytearray()
        self._upload: Upload | None = None

    def write(self, data: bytes) -> None:
        """Add bytes. Raises StoreError."""
        self._waiting += data
        if len(self._waiting) >= AT_ONCE_BYTES:
            if self._upload is None:
                self._upload = _run(self._begin())
            self._send(self._upload)

    def publish(self) -> None:
        """Let the file appear. Raises StoreError."""
        if self._upload is None:
            _run(self._store.put(self._name, _once(bytes(self._waiting))))
            return
        if self._waiting:
            self._send(self._upload)
        _run(self._upload.end())

    async def _begin(self) -> Upload:
        return Upload(partial(self._store.put, self._name))

    def _send(self, upload: Upload) -> None:
        _run(upload.send(bytes(self._waiting)))
        self._waiting.clear()


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


class _Reading(io.RawIOBase):
    """A file of a store, read in pieces."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name
        self._size = _run(store.head(name)).size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        data = _run(self._store.get(self._name, self._position, end))
        buffer[: len(data)] = data
        self._position = end
        return len(data)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of a thread of its own, on which all stores of this process are asked."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="strandline-lake", daemon=True).start()
    return loop


os.register_at_fork(after_in_child=_loop.cache_clear)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a call to a store. An interrupt (Ctrl-C) ends it."""
    done = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return done.result()
    except BaseException:
        done.cancel()
        raise


@cache
def _let_go_at_exit() -> None:
    """The library's threads need a moment before the interpreter ends: see `RemoteStore.close`."""
    atexit.register(lambda: _run(asyncio.sleep(LET_GO_S)))
