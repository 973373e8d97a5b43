"""What stays in one of Spark's Python processes from one task to the next: what is imported, and a reader.

Spark reuses the process (`spark.python.worker.reuse`), and many tasks read a few thousand records: connections, the
first metadata and the collector cost such a task more than its records do.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark import TaskContext

from strandline.client.range_reader import RangeReader


class _Kept(NamedTuple):
    key: tuple[str, frozenset[tuple[str, Any]]]
    reader: RangeReader


_idle: list[_Kept] = []
"""The reader of the last task, at most one; empty while a task has it."""

_settled: list[bool] = []


@contextmanager
def task_reader(bootstrap: str, settings: Mapping[str, Any]) -> Iterator[RangeReader]:
    """The reader of this process's tasks, or outside of a task one that is closed at the end.

    A reader is kept for the next task with the same settings, until then with idle connections: Spark ends processes
    that have had no task for a minute. After an error, or a task that wanted no more rows, it is closed.
    """
    if TaskContext.get() is None:
        with RangeReader(bootstrap, **settings) as reader:
            yield reader
        return
    key = (bootstrap, frozenset(settings.items()))
    kept = _idle.pop() if _idle else None
    if kept is not None and kept.key != key:
        kept.reader.close()
        kept = None
    if kept is None:
        kept = _Kept(key, RangeReader(bootstrap, **settings))
    try:
        yield kept.reader
    except BaseException:
        kept.reader.close()
        raise
    _idle.append(kept)
    settle()


def settle() -> None:
    """A task has run: what it has imported stays for good.

    Spark has the collector look through everything after each task: 15 to 30 ms for the modules of Spark, Arrow and
    this package, which are no garbage, and the next task waits for it.
    """
    if not _settled and TaskContext.get() is not None:
        _settled.append(True)
        gc.freeze()


@atexit.register
def _close() -> None:
    while _idle:
        _idle.pop().reader.close()
