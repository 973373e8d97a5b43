"""List of the processes, and the boots of the machine, that have used a log directory; and the mark of a clean stop."""

from __future__ import annotations

from uuid import UUID

import structlog

from strandline.log.checkpoints import (
    CLEAN_SHUTDOWN,
    check_checksum,
    decode_id,
    decode_properties,
    encode_id,
    encode_properties,
    read_clean_shutdown,
    read_twice,
    with_checksum,
    write_twice,
)
from strandline.log.disk import Disk, DiskFull, read_file, write_file_durably
from strandline.proto.errors import CorruptLogError

log = structlog.get_logger("strandline.log")

INCARNATIONS = "incarnations"

INCARNATIONS_MAX = 1000
"""Maximum incarnation ids that are kept. A node that never reaches a controller gives up after a minute and is started
again by its supervisor: this is most of a day. If there are more, the oldest (which was registered) and the newest are
kept."""


def incarnation_of_epoch(broker_epoch: int) -> UUID:
    """Return the id that stands for an incarnation of which only the broker epoch is known, instead of a random id."""
    return UUID(int=broker_epoch)


class Incarnations:
    """The incarnation ids of a directory, oldest first.

    They distinguish a directory from an older copy of it. A copy made while another process ran, or a restored
    snapshot, looks whole: its logs agree with its own checkpoints. But the controller has the incarnation id of the
    process that registered last, which the copy lacks.

    A registration may be committed without its process learning of it. So the directory keeps the ids of all lives
    since the last one that is known to have been registered, and each registration sends them.

    A build without this file adds no ids, so its directory would look like a copy. If it stopped cleanly, it leaves the
    clean-shutdown marker with the broker epoch of its registration. So that life is kept, too, under its epoch
    (`incarnation_of_epoch`).
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{INCARNATIONS}"
        self._ids = self._read()
        self.noted = False
        """True once the disk names the present life as a user of the directory."""

    def _read(self) -> tuple[UUID, ...]:
        """Return the ids in the file or in its copy: a process named in either of them has used the directory."""
        advice = "Nothing is to be done: this node's replicas count as lost until they have caught up."
        try:
            either = read_twice(self._disk, self._path, decode_id, advice)
            return tuple(dict.fromkeys(one for ids in either for one in ids))  # rule B31/one-file-has-all-lives
        except CorruptLogError as error:
            log.error("which processes used this directory cannot be read", error=str(error))
            return ()

    @property
    def ids(self) -> tuple[UUID, ...]:
        """Ids of all lives since the last one known to have been registered; the present one is the last."""
        return self._ids

    def stopped(self, broker_epoch: int) -> None:
        """Add the process with this broker epoch, which left the directory in good order. Durable before its marker is
        deleted, as a start cut short would leave neither. Raises DiskError."""
        if broker_epoch < 0 or (life := incarnation_of_epoch(broker_epoch)) in self._ids:
            return
        self._ids = (life, *self._ids)  # in front: of too many lives the oldest stays
        try:
            self._write()  # rule B13/what-the-clean-mark-proves-goes-with-it
        except DiskFull:
            log.warning("no room to note which process stopped in good order here", path=self._path)

    def begin(self, incarnation_id: UUID) -> None:
        """Add the id of the life that begins; durable before another node hears of it.

        A full disk does not stop this. The next life counts as a copy then only if this one's registration is committed
        and it never learns of that. That costs catching up, and no data.

        Raises DiskError.
        """
        ids = (*self._ids, incarnation_id)
        if len(ids) > INCARNATIONS_MAX:
            log.warning("an unregistered process of this directory is forgotten", incarnation=str(ids[1]))
            ids = (ids[0], *ids[2:])
        self._ids = ids
        try:
            self._write()  # schedule 48/life-is-not-noted
            self.noted = True
        except DiskFull:
            log.warning("no room to note that this process uses the directory", path=self._path)

    def registered(self, incarnation_id: UUID) -> None:
        """Drop the ids of earlier lives, because the present life's registration is committed. Raises DiskError."""
        self._ids = (incarnation_id,)
        try:
            self._write()
        except DiskFull:
            return  # the longer list on disk says no less

    def _write(self) -> None:
        write_twice(self._disk, self._path, map(encode_id, self._ids))


FILE_NAME = ".boot-id"

_RECOVERED = "recovered.boot.id"
_USED = "used.boot.id"
_TAKEN_BACK = b"taken back"


class Boots:
    """The file `.boot-id` of a directory, and its meaning for the present boot of the machine.

    It holds two boots: the one in which a process last *used* the directory, written before anything else is changed,
    and the one in which the logs were last *recovered*, written after all of them were. A process that begins in the
    boot of the last recovery finds every write of the processes before it. One that begins in a boot in which no
    process has used the directory yet reads what is on the disk, and nothing that is only in the page cache.
    """

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
        try:
            check_checksum(data)
        except ValueError as error:
            log.warning("it is not known in which boot the directory was used", path=self._path, error=str(error))
            return "", ""
        values = decode_properties(data)
        if _USED in values:
            return values.get(_RECOVERED, ""), values[_USED]
        text = data.decode("utf-8", "replace").strip()  # as versions before this one wrote it
        return text, text

    @property
    def fresh(self) -> bool:
        """True if no earlier process of this boot has used the directory, so that what is read comes from the disk.
        False if the system does not distinguish its boots."""
        return bool(self._now and self._used) and self._now != self._used  # rule A9/every-boot-is-fresh

    @property
    def recovered(self) -> bool:
        """True if the logs were recovered in this boot: every completed write since is still there."""
        return bool(self._now) and self._now == self._recovered

    def note_used(self) -> None:
        """Record that a process of this boot uses the directory. Raises DiskError."""
        if self._now != self._used:  # rule A9/boot-noted-when-all-is-well
            self._write(self._recovered, self._now)

    def note_recovered(self) -> None:
        """Record that the logs are recovered. Not to be called earlier: after a power cut before it, the next start
        must recover as well.

        Raises DiskError.
        """
        if self._now and (self._now, self._now) != (self._recovered, self._used):
            self._write(self._now, self._now)

    def _write(self, recovered: str, used: str) -> None:
        """Write the file. On a full disk delete it, which takes no space: then nothing is known of either boot."""
        try:
            write_file_durably(
                self._disk, self._path, with_checksum(encode_properties({_RECOVERED: recovered, _USED: used}))
            )
        except DiskFull:
            if self._disk.exists(self._path):
                self._disk.unlink(self._path)
                self._disk.sync_dir(self._directory)
            recovered = used = ""
        self._recovered, self._used = recovered, used


def take_clean_mark(disk: Disk, directory: str, incarnations: Incarnations) -> int | None:
    """Return the broker epoch of the last process if it stopped cleanly, else None. The marker is durably gone when
    this returns (KAFKA-10471), and that life is among the `incarnations`.

    The marker is overwritten first. If its name comes back after a power cut, because the sync of the directory failed
    and a later one could not tell, it proves nothing. Only the next start believes a marker.

    Raises DiskError.
    """
    path = f"{directory}/{CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return None
    broker_epoch = read_clean_shutdown(disk, path)
    if broker_epoch is not None:
        incarnations.stopped(broker_epoch)
    file = disk.open(path)
    try:
        # rule B13/deletion-of-the-clean-marker-is-not-synced/2, rule B13/clean-mark-is-only-deleted
        file.pwrite(_TAKEN_BACK.ljust(file.size()), 0)
        disk.sync_now([file])
    except DiskFull:
        pass  # a file system that does not write in place: then only the name is deleted
    finally:
        file.close()
    disk.unlink(path)  # rule B13/clean-marker-outlives-the-start
    # rule B13/clean-marker-outlives-the-start/2, rule B13/deletion-of-the-clean-marker-is-not-synced
    disk.sync_dir(directory)
    return broker_epoch
