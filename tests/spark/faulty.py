"""The source and the sink with faults at chosen points, for jobs of a real Spark; workers import it by this name.

Every process of a job notes the points that it passes in one file. At the chosen one, by its number or by its name, a
fault strikes: the machine is lost, the driver alone, the executor, or the task's Python process. Points lie before
and behind each write to the ledger, before rows are sent, when all of them are acknowledged, and around the commit.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from strandline.spark.ledger import Ledger
from strandline.spark.sink import StreamSink
from strandline.spark.sink_options import SinkOptions, parse_sink_options
from strandline.spark.source import StrandlineDataSource
from strandline.spark.writer import TaskRun

FORMAT = "strandline-faulty"

WAYS = ("machine", "driver", "executor", "worker")


class Faults:
    """What the options `fault.*` say: read in every process of the job."""

    def __init__(self, options: dict[str, str]) -> None:
        given = {key.lower().removeprefix("fault."): value for key, value in options.items()}
        self._count = Path(given["count"])
        self._at = given["at"]
        self._way = given["way"]
        self._driver = int(given["driver"])

    def point(self, name: str) -> None:
        """Pass a point; at the chosen one the fault strikes."""
        with self._count.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            passed = file.read().splitlines()
            file.write(f"{name}\n")
            file.flush()
            if str(len(passed)) == self._at or (name == self._at and name not in passed):
                self._strike()

    def _strike(self) -> None:
        if self._way in ("machine", "driver"):
            os.killpg(self._driver, signal.SIGKILL)  # the driver's Python and its JVM
        if self._way == "executor":
            # The worker's daemon is the executor's child; in local mode that is the driver, JVM alone.
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(executor, signal.SIGKILL)
        if self._way != "driver":
            os.killpg(0, signal.SIGKILL) if self._way == "machine" else os.kill(os.getpid(), signal.SIGKILL)


class FaultySink(StreamSink):
    """The sink; its tasks and its commit pass points."""

    def __init__(self, options: SinkOptions, faults: Faults, schema: StructType) -> None:
        super().__init__(options, schema)
        self._faults = faults

    def write(self, iterator: Iterator[Any]) -> Any:
        """One task, with points on its way."""
        return self._with_points(lambda: super(FaultySink, self).write(iterator))

    def commit(self, messages: Any, batchId: int) -> None:
        """The epoch's end, with points before the ledger's entry and behind it."""
        self._faults.point("commit")
        self._with_points(lambda: super(FaultySink, self).commit(messages, batchId))
        self._faults.point("committed")

    def _with_points(self, act: Callable[[], Any]) -> Any:
        append, send, finish = Ledger._append, TaskRun._send, TaskRun._finish
        faults = self._faults

        def appending(self: Any, producer: Any, entry: Any) -> int:
            faults.point("before the ledger")
            offset = append(self, producer, entry)
            faults.point("behind the ledger")
            return offset

        def sending(self: Any, rows: Any) -> None:
            faults.point("before rows")
            send(self, rows)
            faults.point("rows under way")

        def finishing(self: Any) -> None:
            finish(self)
            faults.point("rows acknowledged")

        Ledger._append = appending  # type: ignore[method-assign]
        TaskRun._send, TaskRun._finish = sending, finishing  # type: ignore[method-assign]
        try:
            return act()
        finally:
            Ledger._append = append  # type: ignore[method-assign]
            TaskRun._send, TaskRun._finish = send, finish  # type: ignore[method-assign]


class FaultyDataSource(StrandlineDataSource):
    """The data source whose sink has faults."""

    @classmethod
    def name(cls) -> str:
        """Its own word, beside the real one."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """The sink of a streaming query."""
        told = {key: value for key, value in self.options.items() if key.lower().startswith("fault.")}
        rest = {key: value for key, value in self.options.items() if key not in told}
        return FaultySink(parse_sink_options(rest), Faults(told), schema)
