"""Where a lake's files lie: a directory, or a prefix in S3, GCS or Azure (obstore).

A store does one thing that a lake stands on: `create` makes a name whole or not at all, and fails where it is taken. In
a directory that is a hard link, which needs a file system that has them (local disks, NFS); in an object store a put
that says `If-None-Match: *`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import uuid4

from strandline.log.tier.credentials import in_words, is_panic
from strandline.proto.errors import ConfigError, MissingExtra, StrandlineError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Obstore

ATTEMPTS = "attempts"
"""Below a directory: files that are being written."""

SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")


class StoreFailed(StrandlineError):
    """The object store refused or did not answer; the message is its own."""


class Stored(NamedTuple):
    """What a store says of a file: bytes, and when it was written (ms since 1970)."""

    size_bytes: int
    modified_ms: int


class Writing:
    """A file that is being written, as pyarrow wants one: it appears with `publish`, whole and durable, or not at all.

    What is not published is left to `upkeep.vacuum`; in an object store, to the bucket's rule for incomplete uploads.
    """

    closed = False

    def __init__(self, file: Any, publish: Callable[[], None]) -> None:
        self.size_bytes = 0
        self.publish = publish
        self._file = file

    def write(self, data: bytes) -> None:
        """Add bytes."""
        self._file.write(data)
        self.size_bytes += len(data)

    def flush(self) -> None:
        """Nothing to do before the end."""

    def close(self) -> None:
        """Nothing: an error must not make a half file appear."""


class Store(Protocol):
    """Files by their names, which have slashes."""

    place: str
    """As a user writes it."""

    def create(self, name: str, data: bytes) -> bool:
        """Make a file, whole and durable; False, and nothing done, where the name is taken."""

    def read(self, name: str) -> bytes | None:
        """A file; None: there is none."""

    def listed(self, folder: str) -> dict[str, Stored]:
        """Every file below a folder, by its name below it, sorted."""

    def writer(self, name: str) -> Writing:
        """A file to be written."""

    def open(self, name: str) -> Any:
        """A file to be read by pyarrow."""

    def delete(self, name: str) -> None:
        """Remove a file that is there."""

    def location(self, name: str) -> str:
        """Under which other programs find a file."""


def open_store(place: str | os.PathLike[str]) -> Store:
    """The store of a directory, or of a URL as s3://bucket/prefix; credentials and endpoint as AWS's environment has
    them (GCS and Azure likewise).

    Raises:
        ConfigError: a URL of another kind.
        MissingExtra: obstore is not installed.
    """
    text = str(place)
    scheme, mark, _rest = text.partition("://")
    if not mark:
        return LocalStore(Path(text))
    if scheme not in SCHEMES:
        raise ConfigError(
            "place of a lake", text, f"a directory, or a URL that begins with one of {', '.join(SCHEMES)}"
        )
    return ObjectStore(text)


class LocalStore:
    """A directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.place = str(directory)

    def create(self, name: str, data: bytes) -> bool:
        """See `Store`."""
        path = self.directory / name
        # Containers number their processes alike, so that a process id tells no two writers of a shared volume apart.
        written = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        with written.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(written, path)  # unlike a rename it fails where the name is taken
        except FileExistsError:
            return False
        finally:
            written.unlink()
        _sync_directory(path.parent)
        return True

    def read(self, name: str) -> bytes | None:
        """See `Store`."""
        try:
            return (self.directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def listed(self, folder: str) -> dict[str, Stored]:
        """See `Store`."""
        root = self.directory / folder
        found = {}
        for path in sorted(root.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                status = path.stat()
                found[path.relative_to(root).as_posix()] = Stored(status.st_size, status.st_mtime_ns // 1_000_000)
        return found

    def writer(self, name: str) -> Writing:
        """See `Store`."""
        path = self.directory / name
        written = self.directory / ATTEMPTS / name.replace("/", "+")
        written.parent.mkdir(parents=True, exist_ok=True)

        file = written.open("wb")

        def publish() -> None:
            file.flush()
            os.fsync(file.fileno())
            file.close()
            path.parent.mkdir(parents=True, exist_ok=True)
            written.replace(path)
            _sync_directory(path.parent)
            _sync_directory(path.parent.parent)

        return Writing(file, publish)

    def open(self, name: str) -> Any:
        """See `Store`."""
        return (self.directory / name).open("rb")

    def delete(self, name: str) -> None:
        """See `Store`."""
        (self.directory / name).unlink()

    def location(self, name: str) -> str:
        """See `Store`."""
        return str(self.directory / name)


class ObjectStore:
    """A prefix in an object store. Raises StoreFailed, MissingExtra."""

    def __init__(self, url: str) -> None:
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise MissingExtra.of(f"a lake at {url}", "lake", error) from error
        self.place = url.rstrip("/")
        self._store: Obstore = self._told(lambda: from_url(self.place))

    def create(self, name: str, data: bytes) -> bool:
        """See `Store`."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            self._told(lambda: obstore.put(self._store, name, data, mode="create", use_multipart=False))
        except AlreadyExistsError:
            return False
        return True

    def read(self, name: str) -> bytes | None:
        """See `Store`."""
        import obstore

        try:
            return bytes(self._told(lambda: obstore.get(self._store, name).bytes()))
        except FileNotFoundError:
            return None

    def listed(self, folder: str) -> dict[str, Stored]:
        """See `Store`."""
        import obstore

        chunks = self._told(lambda: list(obstore.list(self._store, f"{folder}/")))
        found = {
            entry["path"].removeprefix(f"{folder}/"): Stored(
                entry["size"], int(entry["last_modified"].timestamp() * 1000)
            )
            for chunk in chunks
            for entry in chunk
        }
        return dict(sorted(found.items()))

    def writer(self, name: str) -> Writing:
        """See `Store`."""
        import obstore

        file = self._told(lambda: obstore.open_writer(self._store, name))
        return Writing(file, lambda: self._told(file.close))

    def open(self, name: str) -> Any:
        """See `Store`."""
        import obstore

        return _Reading(self._told(lambda: obstore.open_reader(self._store, name)))

    def delete(self, name: str) -> None:
        """See `Store`."""
        import obstore

        self._told(lambda: obstore.delete(self._store, name))

    def location(self, name: str) -> str:
        """See `Store`."""
        return f"{self.place}/{name}"

    def _told(self, call: Callable[[], Any]) -> Any:
        """What a call gives; its errors as ours, but for names that are there and names that are not."""
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            return call()
        except (AlreadyExistsError, FileNotFoundError):
            raise
        except BaseError as error:
            raise StoreFailed(f"{self.place}: {in_words(error)}") from error
        except BaseException as error:
            if not is_panic(error):
                raise
            raise StoreFailed(f"{self.place}: {in_words(error)}") from error


class _Reading:
    """A file of obstore as pyarrow wants one."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int = -1) -> bytes:
        """So many bytes from where it stands, all without a number."""
        return bytes(self._file.read(size if size >= 0 else None))

    def close(self) -> None:
        """Nothing is held."""


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
