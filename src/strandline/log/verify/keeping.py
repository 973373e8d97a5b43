"""Copies of what a repair takes away, made and synced before anything is changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from strandline.log.overlay import Change
from strandline.log.segment import LOG_SUFFIX

_CHUNK_BYTES = 1 << 20


def keep(root: str, target: str, changes: Iterable[Change]) -> list[str]:
    """Make the directory `target` (in `root`, so that files can be linked), and keep in it what `changes` take away: a
    removed file as it is, the cut end of a segment as NAME.from-POSITION, any other changed file as it was before.

    Returns the names in `target`. Raises OSError: nothing was changed.
    """
    kept: list[str] = []
    Path(target).mkdir()  # never over the copies of another repair
    for change in changes:
        if change.before is None or (change.after not in (None, change.before)):
            continue  # new, or with another name alone
        source = Path(root) / change.before
        if change.after is None:
            kept.append(change.before)
            copy = _place(target, change.before)
            try:
                os.link(source, copy)
            except OSError:  # a file system without links
                shutil.copy2(source, copy)
        elif change.before.endswith(LOG_SUFFIX) and change.bytes_after < change.bytes_before:
            kept.append(f"{change.before}.from-{change.bytes_after}")
            copy = _place(target, kept[-1])
            _copy_from(source, copy, change.bytes_after)
        else:
            kept.append(change.before)
            copy = _place(target, change.before)
            shutil.copy2(source, copy)
        _sync(copy)
    for directory in sorted(_directories(target)):
        _sync(directory)
    _sync(Path(root))
    return kept


def _place(target: str, name: str) -> Path:
    path = Path(target) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _copy_from(source: Path, copy: Path, position: int) -> None:
    with source.open("rb") as reading, copy.open("wb") as writing:
        reading.seek(position)
        shutil.copyfileobj(reading, writing, _CHUNK_BYTES)


def _directories(target: str) -> Iterator[Path]:
    for directory, _, _ in os.walk(target):
        yield Path(directory)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
