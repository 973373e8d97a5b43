"""Who may read a node's files: nobody but the user that runs it.

Everything in a data directory is somebody's: records, and in the metadata log the salted keys of every SCRAM user. What
is made here is made so (`FILE_MODE`, `DIRECTORY_MODE`), whatever the umask says. What an older build made, or an
operator's mkdir, is closed to other accounts when the node takes its directory; a group that was let in stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import structlog

from strandline.log.loading import METADATA_DIRECTORY

log = structlog.get_logger("strandline.log")

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""Of what is made."""


def close_to_others(directory: str) -> None:
    """Take the rights of other accounts from a data directory, from what stands in it, and from the metadata log's
    files. One line says so; what may not be changed is a line too, and keeps no node from starting."""
    closed = []
    for path in _looked_at(directory):
        try:
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            if mode & stat.S_IRWXO and not os.path.islink(path):  # rule A19/secrets-for-every-account
                os.chmod(path, mode & ~stat.S_IRWXO)
                closed.append(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("other accounts of this machine may read the node's files", path=path, error=error.strerror)
            return
    if closed:
        log.warning(
            "other accounts of this machine could read the node's files: they no longer can",
            directory=directory,
            files=len(closed),
        )


def _looked_at(directory: str) -> Iterator[str]:
    yield directory
    for parent in (directory, os.path.join(directory, METADATA_DIRECTORY)):
        try:
            names = os.listdir(parent)
        except OSError:
            continue
        for name in names:
            yield os.path.join(parent, name)
