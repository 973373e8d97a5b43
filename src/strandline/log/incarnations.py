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
"""A node that never reaches a controller gives up after a minute and is started again by its supervisor: this is most
of a day. Of more lives the oldest is kept, which was registered, and the newest."""


def incarnation_of_epoch(broker_epoch: int) -> UUID:
    """Id that stands for an incarnation of which only the broker epoch is known, in the place of an id that is
    drawn."""
    return UUID(int=broker_epoch)


class Incarnations:
    """The incarnation ids of a directory, oldest first.

    By them an older copy of a directory is told from the directory itself. A copy that was made while another process
    ran, or a snapshot that is put back, looks whole: its logs agree with its own checkpoints. But the controller has
    the incarnation id of the process that registered last, and the copy has never heard of it.

    A registration may be committed without its process learning of that. So the directory keeps the ids of all lives
    since the last one that is known to have been registered, and each registration sends them.

    A build that knows nothing of this file leaves no ids in it, and its directory would look like a copy. What it does
    leave, if it stopped in good order, is the clean mark with the broker epoch of its registration. So the life that
    stopped so is kept too, under its epoch (`incarnation_of_epoch`).
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{INCARNATIONS}"
        self._ids = self._read()
        self.noted = False
        """The disk knows that the present life uses the directory."""

    def _read(self) -> tuple[UUID, ...]:
        """Ids that stand in either of the file and its copy: a process that is named has used the directory."""
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
        """The directory is as the process with this broker epoch left it in good order: durable before its mark goes,
        for a start that is cut short would leave neither. Raises DiskError."""
        if broker_epoch < 0 or (life := incarnation_of_epoch(broker_epoch)) in self._ids:
            return
        self._ids = (life, *self._ids)  # in front: of too many lives the oldest stays
        try:
            self._write()  # rule B13/what-the-clean-mark-proves-goes-with-it
        except DiskFull:
            log.warning("no room to note which process stopped in good order here", path=self._path)

    def begin(self, incarnation_id: UUID) -> None:
        """A life begins: durable before anybody hears of it.

        On a full disk it goes on all the same. Only if its registration is committed, and it never learns of that, does
        the next life count as a copy: which costs a catching up and no data.

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
        """The present life's registration is committed: no earlier one matters any more. Raises DiskError."""
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
    """The file, and what it says of this boot.

    Two facts about the boot are kept: in which one a process last *used* the directory, noted before anything else of
    it is changed, and in which one the logs were last *recovered*, noted when all of them were. A process that begins
    in the boot in which the directory was recovered finds every write of the processes before it. One that begins in a
    boot in which nobody has used it yet finds what is on the disk, and nothing that is in the page cache alone.
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
        """The logs were recovered in this boot: every completed write since is still there."""
        return bool(self._now) and self._now == self._recovered

    def note_used(self) -> None:
        """A process of this boot begins to use the directory. Raises DiskError."""
        if self._now != self._used:  # rule A9/boot-noted-when-all-is-well
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
    """The broker epoch of the last process if it stopped cleanly, else None. The mark is gone durably when this returns
    (KAFKA-10471), and what it proves of that life stands among the `incarnations`.

    It is written over first: should its name come back after a power cut, because the sync of the directory failed and
    a later one could not tell, it vouches for nothing. A mark is believed by the next start alone.

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
        pass  # a file system that writes nothing in place: then the name alone goes
    finally:
        file.close()
    disk.unlink(path)  # rule B13/clean-marker-outlives-the-start
    # rule B13/clean-marker-outlives-the-start/2, rule B13/deletion-of-the-clean-marker-is-not-synced
    disk.sync_dir(directory)
    return broker_epoch
