"""The offset up to which the metadata log is known to be durable, so that recovery knows damage from a torn tail.

After a power cut a bad batch at the log's end was never synced and is cut. Below this point it was: cutting there could
drop what a majority counted on, so the node refuses to start (rule E5, no silent truncation of a voter). The file is
written now and then: it may lag behind the truth, and must never be ahead of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from crc32c import crc32c

from strandline.log.checkpoints import decode_properties, encode_properties
from strandline.log.disk import Disk, DiskFull, read_file, write_file_durably
from strandline.log.offset_checkpoints import LastLife
from strandline.proto.errors import CorruptLogError

FILE_NAME = "recovery-point.properties"
_CLEAN = "clean"
_ADVICE = (
    "The start writes it anew, and takes what does not parse at the log's end for never synced. A controller that cuts "
    "an end so is in doubt about it until it has caught up with the others"
)


class RecoveryPoint:
    """The file, and what it says."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self.offset = 0
        self.clean = False
        """The process before stopped in order, and its log ended at `offset`."""

    def read(self) -> LastLife:
        """State that the last process left.

        Raises:
            CorruptLogError: the file is not what was written.
        """
        if not self._disk.exists(self._path):
            return LastLife()
        data = read_file(self._disk, self._path)
        values = decode_properties(data)
        try:
            if not data.endswith(b"\n"):  # half a boot's id would be taken for another boot
                raise ValueError("the last line is not whole")
            if "crc" in values and values.pop("crc") != _crc(values):  # rule A14/damaged-recovery-point-is-believed
                raise ValueError("its checksum does not hold")
            offset, boot_id = int(values["recovery.point"]), values["boot.id"]
        except (KeyError, ValueError) as error:
            raise CorruptLogError(self._path, 0, None, f"not a recovery point ({error!r})", _ADVICE) from error
        self.offset, self.clean = offset, values.get(_CLEAN) == "true"
        return LastLife(recovery_point=offset, same_boot=bool(boot_id) and boot_id == self._disk.boot_id())

    def note(self, offset: int, *, clean: bool = False) -> None:
        """Note that everything below `offset` is durable; `clean`: that is all, and nothing follows in this life. On
        a full disk the file stays behind, and what it says of a clean stop does not stay. Raises DiskError."""
        try:
            self._write(offset, clean=clean)
        except DiskFull:
            if self.clean:  # rule A22/clean-mark-outlives-a-full-disk
                self._unlink()
            self.lower_to(offset)

    def _write(self, offset: int, *, clean: bool = False) -> None:
        values = {"recovery.point": str(offset), "boot.id": self._disk.boot_id()}
        if clean:
            values[_CLEAN] = "true"
        write_file_durably(self._disk, self._path, encode_properties({"crc": _crc(values)} | values))
        self.offset, self.clean = offset, clean

    def lower_to(self, offset: int) -> None:
        """The log is about to be cut at `offset`: the file must not say more. On a full disk it says nothing at all
        from now on, for a name can be given up without room. Raises DiskError.
        """
        if self.offset > offset:
            try:
                self._write(offset)
            except DiskFull:
                self._unlink()  # rule E5/recovery-point-is-lowered-only-with-room

    def _unlink(self) -> None:
        self._disk.unlink(self._path)
        self._disk.sync_dir(self._directory)
        self.offset, self.clean = 0, False


def _crc(values: Mapping[str, str]) -> str:
    return str(crc32c(encode_properties(values)))
