"""Rule B56: what a process was writing into a store of files when it died is deleted, and nothing that is being written
is. The processes are real, and killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.log import object_store
from strandline.log.object_store import ATTEMPTS, PART_BYTES, DirectoryStore, open_store

WRITER = """
import asyncio, sys
from strandline.log.object_store import PART_BYTES, open_store

async def chunks():
    yield bytes(PART_BYTES + 1)
    yield bytes(1)
    print("writing", flush=True)
    await asyncio.sleep(3600)

asyncio.run(open_store(sys.argv[1], {}, timeout_ms=60_000).put("topic/00.log", chunks()))
"""


@contextmanager
def writing(store: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a write."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, f"file://{store}"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def attempts(store: Path) -> list[Path]:
    return sorted((store / ATTEMPTS).iterdir())


async def put(store: Path | DirectoryStore, key: str = "a/b", *chunks: bytes) -> None:
    async def given() -> AsyncIterator[bytes]:
        for chunk in chunks or (b"x",):
            yield chunk

    opened = open_store(f"file://{store}", {}, timeout_ms=60_000) if isinstance(store, Path) else store
    await opened.put(key, given())


def renamed(attempt: Path, boot: str) -> Path:
    """The same file, as of another machine."""
    return attempt.rename(attempt.with_name(f"{boot}-{attempt.name.partition('-')[2]}"))


def test_what_a_killed_process_has_left_is_deleted_by_the_next_that_writes(tmp_path: Path) -> None:
    """And not before it is killed."""
    directory = str(tmp_path)
    with writing(tmp_path) as process:
        (left,) = attempts(tmp_path)
        assert left.stat().st_size > PART_BYTES
        asyncio.run(put(DirectoryStore(directory, 60_000)))
        assert attempts(tmp_path) == [left], "it is being written"
        process.kill()
        process.wait()
        asyncio.run(put(DirectoryStore(directory, 60_000)))
        assert attempts(tmp_path) == []
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".strandline-store", "b"]


def test_what_this_process_is_writing_stays(tmp_path: Path) -> None:
    """Locks are of the file that is open, and not of the process."""
    attempt = object_store._Attempt(str(tmp_path), str(tmp_path / "a"))
    object_store._Left(str(tmp_path)).delete(0.0)
    assert len(attempts(tmp_path)) == 1
    attempt.replace()
    assert (tmp_path / "a").exists()


def test_a_store_that_is_opened_by_a_node_is_looked_through(tmp_path: Path) -> None:
    """Before anything is written; not by who only looks at it."""
    with writing(tmp_path):
        pass
    open_store(f"file://{tmp_path}", {}, timeout_ms=60_000, make=False)
    assert len(attempts(tmp_path)) == 1
    open_store(f"file://{tmp_path}", {}, timeout_ms=60_000)
    assert attempts(tmp_path) == []


def test_a_process_looks_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that writes for months deletes what others leave meanwhile."""
    monkeypatch.setattr(object_store, "SWEEP_S", 0.1)

    async def story() -> None:
        store = DirectoryStore(str(tmp_path), 60_000, marked=False)
        await put(store)
        with writing(tmp_path) as process:
            process.kill()
            process.wait()
        await asyncio.sleep(0.2)
        await put(store)

    asyncio.run(story())
    assert attempts(tmp_path) == []


def test_a_file_of_another_machine_is_watched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock may be one that nobody sees here: it goes when it has not changed for long, of which the clock of the
    process that looks tells, and no time of a file."""
    monkeypatch.setattr(object_store, "SWEEP_S", 0.0)
    monkeypatch.setattr(object_store, "UNTOUCHED_S", 0.5)

    async def story() -> None:
        store = DirectoryStore(str(tmp_path), 60_000, marked=False)
        with writing(tmp_path):
            pass
        (left,) = attempts(tmp_path)
        left = renamed(left, "0" * 32)
        os.utime(left, (0, 0))
        await put(store)
        await asyncio.sleep(0.3)
        with left.open("ab") as file:
            file.write(b"it grows")
        os.utime(left, (0, 0))
        await put(store)
        await asyncio.sleep(0.3)
        await put(store)
        assert attempts(tmp_path) == [left]
        await asyncio.sleep(0.6)
        await put(store)
        assert attempts(tmp_path) == []

    asyncio.run(story())


def test_a_file_of_an_older_build_is_watched_first(tmp_path: Path) -> None:
    """Those held no lock."""
    (tmp_path / ATTEMPTS).mkdir()
    left = tmp_path / ATTEMPTS / "17-0-00.log"
    left.write_bytes(b"x")
    asyncio.run(put(tmp_path))
    assert attempts(tmp_path) == [left]


def test_a_file_that_has_got_its_name_is_no_other_one_of_its_old_name(tmp_path: Path) -> None:
    """It is opened, gets its name, and the next attempt has the name of before: that one is not deleted."""
    left = object_store._Left(str(tmp_path))
    attempt = object_store._Attempt(str(tmp_path), str(tmp_path / "a"))
    (path,) = attempts(tmp_path)
    descriptor = os.open(path, os.O_WRONLY)
    locked = os.fstat(descriptor)
    attempt.replace()
    following = object_store._Attempt(str(tmp_path), str(tmp_path / "a"))
    assert attempts(tmp_path) == [path]
    assert object_store._is_left(descriptor)
    left._unlink(path.name, locked)
    attempt.give_up()
    assert attempts(tmp_path) == [path], "neither who looks nor the first attempt deletes what is of the next one"
    following.give_up()
    os.close(descriptor)
    assert attempts(tmp_path) == []


def test_who_comes_between_a_files_beginning_and_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is deleted before its writer has the lock: the writer begins another one."""
    own, met = object_store._own, []

    def late(descriptor: int) -> bool:
        if not met:
            met.append(descriptor)
            object_store._Left(str(tmp_path)).delete(0.0)
        return own(descriptor)

    monkeypatch.setattr(object_store, "_own", late)
    asyncio.run(put(tmp_path, "a", b"whole"))
    assert met
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert attempts(tmp_path) == []


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is written to as ever, and nothing counts as left in it."""
    with writing(tmp_path):
        pass

    def flock(_descriptor: int, _how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(object_store.fcntl, "flock", flock)
    asyncio.run(put(tmp_path, "a", b"whole"))
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert len(attempts(tmp_path)) == 1
