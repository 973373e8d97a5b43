"""Rewriting at a start: data that may be only in the page cache are written again, so that a sync of them counts.

The kernel forgets a failed sync: it marks the pages clean, readers still see them, and the next sync of the file
succeeds without writing them (schedule 32). The log that met the failure is fenced, but only in the memory of a
process, which a supervisor starts again within seconds. So a start in the same boot, after any other than a clean stop,
takes nothing above the recovery point for durable (schedule 47). It needs no record of the failure, which a failing
disk might not store:

- the batches that recovery has verified are written again, from the memory in which they were verified: the same bytes
  at the same place, which makes their pages dirty again;
- the size of each such file is set again;
- every name that the process relies on is moved away and back, which makes its directory dirty again;
- then all of it is synced, and the log counts only when that has succeeded.

The power may fail at any instant of this: the bytes are those that were there, and `restore_names` brings back names
that were away. None of it needs space.

Small files that are written under a temporary name and renamed are synced before that: a process that sees such a file
sees what is on the disk, and only its name may not be there.
"""

from __future__ import annotations

from strandline.log.disk import LOCK_FILE, Disk, DiskError, DiskFull, File
from strandline.proto.marks import mark

AWAY = ".anew"
"""Suffix of a name while it is moved away."""

_CHUNK_BYTES = 1 << 20

_STAY = (LOCK_FILE, "lost+found")
"""Names that stay: the lock that this process holds, and the file system's own directory."""


class Rewriting:
    """The rewriting of one start of a node, with counts of what was written."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.content_bytes = 0
        self.names = 0
        self._unsynced: list[File] = []

    def content(self, file: File) -> ContentAgain:
        """Begin to rewrite `file`, which is read in the order of positions."""
        return ContentAgain(self, file)

    def written(self, file: File, size: int) -> None:
        """Take note that `size` more bytes of `file` were written again."""
        self.content_bytes += size
        self._unsynced.append(file)

    def sync(self) -> None:
        """Sync the files written since the last call. Raises DiskError."""
        files = list(dict.fromkeys(self._unsynced))
        self._unsynced.clear()
        self._disk.sync_now(files)

    def whole(self, file: File) -> None:
        """Rewrite all of a small file that is written in place. Raises DiskError."""
        again = self.content(file)
        again.take(0, memoryview(file.pread(file.size(), 0)))
        again.end()

    def size(self, file: File, size: int) -> None:
        """Set the file's size to `size`, even if it is that already. Raises DiskError."""
        if file.size() == size:
            file.truncate(size + 1)  # rule A9/size-not-set-again
        file.truncate(size)

    def names_in(self, directory: str) -> None:
        """Move every name in `directory` away and back, except those that stay. The caller syncs it. Raises
        DiskError."""
        for name in self._disk.listdir(directory):
            if name not in _STAY:  # rule A9/names-not-made-again, rule A9/the-lock-is-renamed
                self._name(f"{directory}/{name}")

    def _name(self, path: str) -> None:
        self._disk.rename(path, path + AWAY)
        self._disk.rename(path + AWAY, path)
        self.names += 1


class ContentAgain:
    """Verified bytes of one file that are written again, in large writes."""

    def __init__(self, rewriting: Rewriting, file: File) -> None:
        self._rewriting = rewriting
        self._file = file
        self._position = 0
        self._parts: list[memoryview] = []
        self._bytes = 0

    def take(self, position: int, data: memoryview) -> None:
        """Add the bytes at `position`. Raises DiskError."""
        if self._bytes >= _CHUNK_BYTES or position != self._position + self._bytes:
            self.end()
        if not self._parts:
            self._position = position
        self._parts.append(data)
        self._bytes += len(data)

    def end(self) -> None:
        """Write the remaining bytes. Raises DiskError."""
        if self._bytes:
            mark("written-again")
            self._file.pwrite(b"".join(self._parts), self._position)  # rule A9/read-again-not-written-again
            self._rewriting.written(self._file, self._bytes)
        self._parts = []
        self._bytes = 0


def restore_names(disk: Disk, directory: str) -> None:
    """Restore the names that a start which was cut short had moved away, before anything in `directory` is looked up.

    The caller syncs the directory before it relies on the names. Raises DiskError, FileNotFoundError.
    """
    for name in disk.listdir(directory):
        if name.endswith(AWAY):  # rule A9/names-stay-away
            away, home = f"{directory}/{name}", f"{directory}/{name.removesuffix(AWAY)}"
            if disk.exists(home):  # a file system that lost one half of a rename: both names lead to one file
                disk.unlink(away)
            else:
                disk.rename(away, home)


def refusal(error: Exception, path: str) -> DiskError:
    """Return the error for a node that cannot start, because data that it relies on cannot be made durable."""
    if isinstance(error, DiskFull):
        return DiskFull(error.errno, f"there is no room to start in ({error}): make some, then start again", path)
    number = error.errno if isinstance(error, DiskError) else None
    return DiskError(
        number or 5,
        f"what the last process of this node wrote cannot be written again and synced ({error}), so none of it counts "
        "as durable, and the node does not start. The disk is failing: replace it; other replicas have what was "
        "acknowledged",
        path,
    )
