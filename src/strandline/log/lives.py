"""Which processes have used a directory: by this an older copy of it is told from the directory itself.

A copy that was made while another process ran, or a snapshot that is put back, looks whole: its logs agree with its own
checkpoints. But the controller has the incarnation id of the process that registered last, and the copy has never
heard of it.

A registration may be committed without its process learning of that. So the directory keeps the ids of all lives since
the last one that is known to have been registered, and each registration sends them.
"""

from __future__ import annotations

from uuid import UUID

import structlog

from strandline.log.checkpoints import decode_checkpoint, decode_id, encode_checkpoint, encode_id
from strandline.log.disk import Disk, DiskFull, read_file, write_file_durably
from strandline.proto.errors import CorruptLogError

log = structlog.get_logger("strandline.log")

INCARNATIONS = "incarnations"

LIVES_MAX = 1000
"""A node that never reaches a controller gives up after a minute and is started again by its supervisor: this is most
of a day. Of more lives the oldest is kept, which was registered, and the newest."""


class Lives:
    """The incarnation ids of a directory, oldest first."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{INCARNATIONS}"
        self._ids = self._read()
        self.noted = False
        """The disk knows that the present life uses the directory."""

    def _read(self) -> tuple[UUID, ...]:
        if not self._disk.exists(self._path):
            return ()
        advice = "Nothing is to be done: this node's replicas count as lost until they have caught up."
        try:
            return tuple(decode_checkpoint(self._path, read_file(self._disk, self._path), decode_id, advice))
        except CorruptLogError as error:
            log.error("which processes used this directory cannot be read", error=str(error))
            return ()

    @property
    def ids(self) -> tuple[UUID, ...]:
        """Of all lives since the last one known to have been registered; the present one is the last."""
        return self._ids

    def begin(self, incarnation_id: UUID) -> None:
        """A life begins: durable before anybody hears of it.

        On a full disk it goes on all the same. Only if its registration is committed, and it never learns of that, does
        the next life count as a copy: which costs a catching up and no data.

        Raises DiskError.
        """
        ids = (*self._ids, incarnation_id)
        if len(ids) > LIVES_MAX:
            log.warning("an unregistered process of this directory is forgotten", incarnation=str(ids[1]))
            ids = (ids[0], *ids[2:])
        self._ids = ids
        try:
            self._write()
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
        write_file_durably(self._disk, self._path, encode_checkpoint(map(encode_id, self._ids)))
