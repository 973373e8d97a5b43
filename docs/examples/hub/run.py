"""Runs the hub: two sources, three sinks, each a process that is killed and started again while the others go on.

python run.py 127.0.0.1:9092 --directory hub

At the end every sink must hold exactly what the inputs hold; the exit code is 0 only then. A second run in the same
directory goes on with the flights that come next (--departures of more than the first run's).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

import held
from hub import DEPARTURES, PARTITIONS, PLANES
from inputs import Inputs, Row
from rich.console import Console
from rich.table import Table
from search import search

from strandline.client import Admin, Consumer, NewTopic

HERE = Path(__file__).parent
SOURCES = {"files": DEPARTURES, "table": PLANES}
SINKS = ("sqlite", "search", "spark")

FLIGHTS_MIN = 1000
"""So that each program has something to do when it is killed."""

WAIT_S = 300.0
PAUSE_S = 0.2


class Failed(SystemExit):
    """What went wrong, in a sentence; exit code 1."""


class Hub:
    """The programs as processes; each writes what it has to say into logs/NAME.log."""

    def __init__(self, bootstrap: str, directory: Path, inputs: Inputs, sinks: Sequence[str] = SINKS) -> None:
        self.directory = directory
        self.inputs = inputs
        self.sinks = tuple(sinks)
        self._bootstrap = bootstrap
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands = {
            "files": ("files_source.py", inputs.files, directory / "files.place"),
            "table": ("table_source.py", inputs.database, directory / "table.place"),
            "sqlite": ("sqlite_sink.py", directory / "airports.db"),
            "search": ("search_sink.py", directory / "index"),
            "spark": ("spark_sink.py", directory / "lake"),
        }
        (directory / "logs").mkdir(parents=True, exist_ok=True)

    @property
    def programs(self) -> tuple[str, ...]:
        """Every source and sink."""
        return (*SOURCES, *self.sinks)

    def start(self, name: str) -> None:
        """Start a program, in a process group of its own: Spark's has a JVM beside it."""
        script, *arguments = self._commands[name]
        command = [sys.executable, str(HERE / script), self._bootstrap, *map(str, arguments)]
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self, name: str) -> None:
        """SIGKILL to a program and what it has started; returns when it is gone."""
        process = self._processes.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait(self, condition: Callable[[], str]) -> None:
        """Return once `condition` has nothing to wait for (it says what for).

        Raises:
            Failed: a program ended by itself, or it takes longer than WAIT_S.
        """
        deadline = time.monotonic() + WAIT_S
        while waits_for := condition():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    end = self._log(name).read_text(errors="replace")[-2000:]
                    raise Failed(f"{name} ended with exit code {process.returncode}; its log ends:\n{end}")
            if time.monotonic() > deadline:
                raise Failed(f"after {WAIT_S:.0f} s: {waits_for}; see {self.directory / 'logs'}")
            time.sleep(PAUSE_S)

    def lacking(self, sinks: Sequence[str], topics: Sequence[str]) -> str:
        """Which of the sinks have not applied everything that the inputs hold for these topics; empty: all have."""
        goal = self._goal(topics)
        behind = [sink for sink in sinks if not goal.items() <= held.places(sink, self.directory).items()]
        return f"{', '.join(behind)} not up to the inputs' ends ({', '.join(topics)})" if behind else ""

    def has_begun(self, name: str, before: object) -> str:
        """Whether a program has done anything since `progress` was `before`."""
        return f"{name} does nothing" if self.progress(name) == before else ""

    def progress(self, name: str) -> object:
        """Of a sink its places; of a source how many records its topic has."""
        if name in SOURCES:
            return records_of(self._bootstrap, SOURCES[name])
        return held.places(name, self.directory)

    def _goal(self, topics: Sequence[str]) -> held.Places:
        files = self.inputs.file_places() if DEPARTURES in topics else {}
        return files | (self.inputs.table_places() if PLANES in topics else {})

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def __enter__(self) -> Self:
        for name in self.programs:
            self.start(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._processes):
            self.kill(name)


def records_of(bootstrap: str, topic: str) -> int:
    """How many records a topic has."""
    with Consumer(bootstrap) as consumer:
        return sum(consumer.end_offsets([(topic, part) for part in consumer.partitions_for(topic)]).values())


def create_topics(bootstrap: str, goes_on: bool) -> None:
    """Make the topics. Raises Failed where they hold another run's records."""
    with Admin(bootstrap) as admin:
        there = set(admin.list_topics())
        missing = [NewTopic(name, parts) for name, parts in PARTITIONS.items() if name not in there]
        if missing:
            admin.create_topics(missing)
    holding = [name for name in PARTITIONS if name in there and records_of(bootstrap, name)]
    if holding and not goes_on:
        raise Failed(
            f"the cluster holds another run's {' and '.join(holding)}: name its --directory, or delete them with: "
            + "; ".join(f"strandline topic delete {name} --yes" for name in holding)
        )


def kill_each(hub: Hub, flights: Sequence[Row], say: Callable[[str], None]) -> None:
    """Kill each program in the midst of its work, let the others do theirs without it, and start it again.

    Raises:
        Failed: one that is not killed does not go on.
    """
    size = len(flights) // (2 * len(hub.programs))
    slices = [flights[begin : begin + size] for begin in range(0, size * 2 * len(hub.programs), size)]
    rest = flights[size * 2 * len(hub.programs) :]
    for number, name in enumerate(hub.programs):
        before = hub.progress(name)
        hub.inputs.write(slices[2 * number])
        hub.wait(partial(hub.has_begun, name, before))
        hub.kill(name)
        stood = hub.progress(name)
        hub.inputs.write([*slices[2 * number + 1], *(rest if name == hub.programs[-1] else ())])
        sinks = [sink for sink in hub.sinks if sink != name]
        topics = [topic for topic in PARTITIONS if topic != SOURCES.get(name)]
        hub.wait(partial(hub.lacking, sinks, topics))
        if hub.progress(name) != stood and name not in SOURCES:
            raise Failed(f"{name} went on although it was killed")
        say(f"{name:6} killed; without it {', '.join(sinks)} hold everything of {' and '.join(topics)}; started again")
        hub.start(name)
    hub.wait(partial(hub.lacking, hub.sinks, list(PARTITIONS)))


def table_of(verdicts: Sequence[held.Verdict]) -> Table:
    """What each sink holds."""
    table = Table("sink", "what", title="What each sink holds, beside the inputs")
    for heading in ("inputs", "held", "missing", "too many"):
        table.add_column(heading, justify="right")
    for verdict in verdicts:
        numbers = (verdict.expected.total(), verdict.held.total(), verdict.missing, verdict.too_many)
        style = None if verdict.right else "red"
        table.add_row(verdict.sink, verdict.what, *(f"{number:,}" for number in numbers), style=style)
    return table


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap", help="a broker's address, as 127.0.0.1:9092")
    parser.add_argument(
        "--directory", type=Path, default=Path("hub"), help="for inputs, results and logs (%(default)s)"
    )
    parser.add_argument(
        "--departures", type=int, default=20_000, help="flights in the end (%(default)s; 336776 are all)"
    )
    parser.add_argument("--without-spark", action="store_true", help="the other sinks alone")
    options = parser.parse_args()
    console = Console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # in an orderly way: the programs end with this one

    def say(words: str) -> None:
        console.print(words, highlight=False, soft_wrap=True)
        sys.stdout.flush()

    create_topics(options.bootstrap, goes_on=(options.directory / "inputs").exists())
    inputs = Inputs(options.directory / "inputs")
    flights = list(islice(inputs.flights(options.departures), options.departures))
    if len(flights) < FLIGHTS_MIN:
        raise Failed(f"{len(flights)} flights to come, {FLIGHTS_MIN} are needed: name more --departures")
    sinks = [sink for sink in SINKS if sink != "spark" or not options.without_spark]
    with Hub(options.bootstrap, options.directory, inputs, sinks) as hub:
        say(f"{len(flights):,} flights to come, from {' and '.join(SOURCES)} to {', '.join(sinks)}")
        kill_each(hub, flights, say)
        say(f"in the topics: {', '.join(f'{records_of(options.bootstrap, topic):,} {topic}' for topic in PARTITIONS)}")
    verdicts = [verdict for verdict in held.verdicts(options.directory, inputs) if verdict.sink in sinks]
    console.print(table_of(verdicts))
    for hit in search(str(options.directory / "index"), "boeing 737", limit=2):
        say(f"found by 'boeing 737': {hit}")
    wrong = [f"{verdict.sink}'s {verdict.what}" for verdict in verdicts if not verdict.right]
    if wrong:
        raise Failed(f"not what the inputs hold: {', '.join(wrong)}")
    say("complete, and nothing twice")


if __name__ == "__main__":
    main()
