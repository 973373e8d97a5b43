"""What the tests of exports share: commands as a user types them, topics, and what lies in a lake at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from strandline.cli.main import main
from strandline.client import Producer
from strandline.lake.commits import DATA, Lake

DAY_MS = 86_400_000
FIRST_DAY_MS = 1_767_571_200_000
"""2026-01-05, long past: brokers refuse a time that is far ahead of theirs."""

KEPT = {"retention.ms": "-1"}
"""For topics of such old records: retention would take them before they are exported."""

DOOMED = """
import os, signal, sys, threading
from strandline.cli.main import main
from strandline.tools.lake.export import Export

moment = float(sys.argv[1])
run = Export.run

def doomed(self, **how):
    timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
    return run(self, **how)

Export.run = doomed
main(sys.argv[2:])
"""
"""A command that is killed so many seconds after its export has begun."""


def lake(bootstrap: str, *words: str, expect: int = 0) -> Result:
    """`strandline lake ...`."""
    told = CliRunner().invoke(main, ["lake", *words], env={"STRANDLINE_BOOTSTRAP": bootstrap})
    assert told.exit_code == expect, (told.output, told.exception)
    return told


def document(told: Result) -> Any:
    return json.loads(told.stdout)


def export_killed(bootstrap: str, moment_s: float, *words: str, environment: Mapping[str, str] | None = None) -> None:
    """`strandline lake export ... --follow`, which ends by SIGKILL and by nothing else."""
    command = [sys.executable, "-c", DOOMED, str(moment_s), "lake", "export", *words, "--follow"]
    surroundings = {**os.environ, "STRANDLINE_BOOTSTRAP": bootstrap, **(environment or {})}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def send(producer: Producer, topic: str, numbers: Iterable[int], *, days: int = 3) -> None:
    """Records whose values are these numbers, of several days."""
    sent = []
    for number in numbers:
        time_ms = FIRST_DAY_MS + number % days * DAY_MS
        sent.append(producer.send(topic, b"%d" % number, key=b"%d" % (number % 100), timestamp_ms=time_ms))
    producer.flush()
    for future in sent:
        future.result()


def files(place: str | Path) -> list[str]:
    """Those that count, as paths."""
    there = Lake(place)
    return [there.store.location(f"{DATA}/{name}") for name in there.state().files]


def in_duckdb(paths: list[str], query: str) -> list[tuple[Any, ...]]:
    """A query over the table `rows` of these files."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.from_parquet(paths, hive_partitioning=True).create_view("rows")
        found: list[tuple[Any, ...]] = connection.execute(query).fetchall()
        return found


def assert_each_once(places: Iterable[tuple[int, int, int]], want: int, ends: Mapping[int, int]) -> None:
    """Rows of (partition, offset, number): every offset up to the ends once, every number below `want` once."""
    rows = list(places)
    seen = Counter((partition, offset) for partition, offset, _ in rows)
    assert max(seen.values()) == 1, [place for place, times in seen.items() if times > 1][:5]
    there = {(partition, offset) for partition, end in ends.items() for offset in range(end)}
    assert not there - seen.keys(), f"not in the lake: {sorted(there - seen.keys())[:5]}, ... of {len(there):,}"
    assert not seen.keys() - there, f"not in the topic: {sorted(seen.keys() - there)[:5]}"
    assert sorted(number for _, _, number in rows) == list(range(want))
