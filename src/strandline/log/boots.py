"""Which boots of the machine a log directory has seen, and the mark that its last process stopped cleanly.

Two facts about the boot are kept: in which one a process last *used* the directory, noted before anything else of it is
changed, and in which one the logs were last *recovered*, noted when all of them were. A process that begins in the boot
in which the directory was recovered finds every write of the processes before it. One that begins in a boot in which
nobody has used it yet finds what is on the disk, and nothing that is in the page cache alone.
"""

from __future__ import annotations

from strandline.log.checkpoints import CLEAN_SHUTDOWN, decode_properties, encode_properties, read_clean_shutdown
from strandline.log.disk import Disk, DiskFull, read_file, write_file_durably

FILE_NAME = ".boot-id"

_RECOVERED = "recovered.boot.id"
_USED = "used.boot.id"
_TAKEN_BACK = b"taken back"


class Boots:
    """The file, and what it says of this boot."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self._now = disk.boot_id()
        self._recovered, self._used = self._read()

    def _read(self) -> tuple[str, str]:
        if not self._disk.exists(self._path):
            return "", ""
        data = read_file(self._disk, self._path)
        values = decode_properties(data)
        if _USED in values:
            return values.get(_RECOVERED, ""), values[_USED]
        text = data.decode("utf-8", "replace").strip()  # as versions before this one wrote it
        return text, text

    @property
    def fresh(self) -> bool:
        """No process of this boot has used the directory: what is read comes from the disk. False where the system
        does not tell its boots apart."""
        return bool(self._now and self._used) and self._now != self._used

    @property
    def recovered(self) -> bool:
        """The logs were recovered in this boot: every completed write since is still there."""
        return bool(self._now) and self._now == self._recovered

    def note_used(self) -> None:
        """A process of this boot begins to use the directory. Raises DiskError."""
        if self._now != self._used:
            self._write(self._recovered, self._now)

    def note_recovered(self) -> None:
        """The logs are recovered. Not before: a power cut before this point is another one for the next start.

        Raises DiskError.
        """
        if self._now and (self._now, self._now) != (self._recovered, self._used):
            self._write(self._now, self._now)

    def _write(self, recovered: str, used: str) -> None:
        """On a full disk the file goes, for which no room is needed: then nothing is known of either boot."""
        try:
            write_file_durably(self._disk, self._path, encode_properties({_RECOVERED: recovered, _USED: used}))
        except DiskFull:
            if self._disk.exists(self._path):
                self._disk.unlink(self._path)
                self._disk.sync_dir(self._directory)
            recovered = used = ""
        self._recovered, self._used = recovered, used


def take_clean_mark(disk: Disk, directory: str) -> int | None:
    """The broker epoch of the last process if it stopped cleanly, else None. The mark is gone durably when this returns
    (KAFKA-10471).

    It is written over first: should its name come back after a power cut, because the sync of the directory failed and
    a later one could not tell, it vouches for nothing. A mark is believed by the next start alone.

    Raises DiskError.
    """
    path = f"{directory}/{CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return None
    broker_epoch = read_clean_shutdown(disk, path)
    file = disk.open(path)
    try:
        file.pwrite(_TAKEN_BACK.ljust(file.size()), 0)
        disk.sync_now([file])
    except DiskFull:
        pass  # a file system that writes nothing in place: then the name alone goes
    finally:
        file.close()
    disk.unlink(path)
    disk.sync_dir(directory)
    return broker_epoch
