"""What of one log still has to reach the disk before its end offset may be called durable."""

from __future__ import annotations

from strandline.log.checkpoints import LEADER_EPOCHS, encode_epochs
from strandline.log.disk import Disk, DiskFull, File, write_file_durably
from strandline.log.epochs import LeaderEpochs

_EPOCHS_SYNCING = LEADER_EPOCHS + ".syncing.tmp"


class Unsynced:
    """Files written since the last sync, directories with new names, and the epoch checkpoint.

    The epoch checkpoint takes two groups: its temporary file is synced with the data of the first and then renamed; the
    second makes the new name durable. Until then recovery has the epochs of durable batches from the batches
    themselves.
    """

    __slots__ = (
        "_directories",
        "_directories_in_sync",
        "_directory",
        "_disk",
        "_epochs",
        "_files",
        "_in_sync",
        "_version_given_up",
        "_version_in_sync",
    )

    def __init__(self, disk: Disk, directory: str, epochs: LeaderEpochs) -> None:
        self._disk = disk
        self._directory = directory
        self._epochs = epochs
        self._files: dict[File, bool] = {}
        self._directories: dict[str, None] = {}
        self._directories_in_sync: list[str] = []
        self._in_sync: list[File] = []
        self._version_in_sync = -1
        self._version_given_up = -1

    @property
    def is_clean(self) -> bool:
        """Nothing is left to be synced."""
        return not self._files and not self._directories and not self._epochs_wait

    @property
    def is_settled(self) -> bool:
        """The epoch checkpoint and every name in the log's directory are durable."""
        # rule B8/recovery-point-before-the-names
        return not self._epochs.dirty and not self._directories and self._directory not in self._directories_in_sync

    @property
    def _epochs_wait(self) -> bool:
        return self._epochs.dirty and self._epochs.version != self._version_given_up

    def add(self, file: File) -> None:
        """`file` was written to."""
        self._files[file] = False

    def add_and_close(self, files: list[File]) -> None:
        """`files` were written to and are closed once synced."""
        for file in files:
            self._files[file] = True

    def add_directory(self, path: str) -> None:
        """A name was made in or removed from `path`."""
        self._directories[path] = None

    def close_later(self, file: File) -> bool:
        """`file` is out of the log, and closed once synced. False if nothing of it waits for that."""
        if file not in self._files:
            return False
        self._files[file] = True
        return True

    def drop(self, file: File) -> None:
        """`file` is deleted."""
        self._files.pop(file, None)

    def files(self) -> list[File]:
        """Files to be synced."""
        return list(self._files)

    def directories(self) -> list[str]:
        """Directories to be synced."""
        return list(self._directories)

    def begin(self) -> tuple[list[File], list[str]]:
        """What one sync has to cover; from now on unsynced is of the next. Raises DiskError."""
        files, directories = self.files(), self.directories()
        self._in_sync = [file for file, close in self._files.items() if close]
        if self._epochs.dirty:
            file = self._write_epochs()
            if file is not None:
                self._in_sync.append(file)
                files.append(file)  # rule B8/epoch-checkpoint-not-synced, rule B8/epoch-checkpoint-damaged-by-a-crash
        self._files = {}
        self._directories = {}
        self._directories_in_sync = directories
        return files, directories

    def _write_epochs(self) -> File | None:
        """The temporary file; None on a full disk: the epochs then wait for another sync, in the batches' keeping."""
        file = self._disk.open(f"{self._directory}/{_EPOCHS_SYNCING}", create=True)
        try:
            file.truncate(0)
            file.pwrite(encode_epochs(self._epochs.entries()), 0)
        except DiskFull:
            self._version_given_up = self._epochs.version
            file.close()
            return None
        self._version_in_sync = self._epochs.version
        return file

    def end(self) -> None:
        """The sync succeeded. Raises DiskError when the epoch checkpoint cannot be renamed."""
        self._close_synced()
        self._directories_in_sync = []
        if self._version_in_sync >= 0:
            if self._version_in_sync == self._epochs.version and self._epochs.dirty:
                self._disk.rename(f"{self._directory}/{_EPOCHS_SYNCING}", f"{self._directory}/{LEADER_EPOCHS}")
                self._epochs.written = self._version_in_sync
                self._directories[self._directory] = None  # schedule 20/epoch-checkpoints-name-not-synced
            self._version_in_sync = -1

    def flush_epochs(self) -> None:
        """Write the epoch checkpoint durably now, blocking. Raises DiskError."""
        if self._epochs.dirty:
            version = self._epochs.version
            write_file_durably(self._disk, f"{self._directory}/{LEADER_EPOCHS}", encode_epochs(self._epochs.entries()))
            self._epochs.written = version

    def abandon(self) -> None:
        """Nothing more will be synced: close what was only open for that."""
        self._in_sync += [file for file, close in self._files.items() if close]
        self._files = {}
        self._directories = {}
        self._version_in_sync = -1
        self._close_synced()

    def _close_synced(self) -> None:
        for file in self._in_sync:
            file.close()
        self._in_sync = []
