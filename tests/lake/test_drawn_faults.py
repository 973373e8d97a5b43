"""Exporters under drawn faults: real processes, real brokers, a seed that says what comes when.

Killed at any instant, two at once, a store that fails, retention that overtakes them, partitions that come, a topic
that is deleted and made anew, values that fit no schema. Held: each record that was acknowledged is in the lake or in
`bad` once, as what it was, in the order of offsets; or it stands among the offsets that the lake names as lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from strandline.client import Admin, Producer
from strandline.client.errors import StrandlineError, UnknownTopic
from strandline.client.types import LATEST, NewTopic
from strandline.cluster.node.dev import DevCluster
from strandline.lake.commits import COMMITS, Commit, Lake
from strandline.lake.upkeep import compact, verify
from tests.client.conftest import eventually
from tests.lake.stage import DAY_MS, FIRST_DAY_MS, KEPT, lake

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[lake]'")
pytestmark = pytest.mark.timeout(600)

SMALL = ("--commit-interval", "0.1", "--batch-rows", "40", "--batch-bytes", "4000", "--file-bytes", "3000")
PER_ROUND = 200

FAULTY = """
import os, signal, sys, threading
from strandline.cli.main import main
from strandline.lake.stores import LakeStore
from strandline.tools.lake.export import Export

moment, failing = float(sys.argv[1]), int(sys.argv[2])
run, left = Export.run, [failing]

def doomed(self, **how):
    timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
    print("begun", flush=True)
    return run(self, **how)

def fails(method):
    def step(self, *words):
        left[0] -= 1
        if not left[0]:
            raise OSError(28, "No space left on device")
        return method(self, *words)
    return step

Export.run = doomed
LakeStore.create, LakeStore.writer = fails(LakeStore.create), fails(LakeStore.writer)
main(sys.argv[3:])
"""
"""An export that is killed so many seconds after it has begun, or whose store fails at the n-th write (0: at none)."""

FAULTS = ("kill", "kill", "two writers", "store", "retention", "partitions", "made anew", "compaction")

Place = tuple[str, int, int]
"""Topic id, partition, offset."""


class Drawn:
    """One topic, its lake, and what both have been through."""

    def __init__(self, cluster: DevCluster, admin: Admin, directory: Path, seed: int) -> None:
        self.chance = Random(seed)
        self.topic = f"lake-drawn-{seed}-{uuid.uuid4().hex[:8]}"
        self.place = str(directory / "lake")
        self.typed = self.chance.random() < 0.5
        self.sent: dict[Place, bytes] = {}
        self.trimmed: dict[str, dict[int, int]] = {}
        self.story: list[str] = []
        self._bootstrap = cluster.bootstrap
        self._admin = admin
        self._number = 0
        self._words: tuple[str, ...] = (self.topic, "--to", self.place, *SMALL)
        if self.typed:
            schema = directory / "schema.json"
            schema.write_text(json.dumps({"n": "long"}))
            self._words += ("--value", "json", "--schema", str(schema))
        self._made()

    def _made(self) -> None:
        self._admin.create_topics([NewTopic(self.topic, 2, 3, KEPT)])
        self.topic_id = self._id_now()

    def _id_now(self) -> str:
        [told] = self._admin.describe_topics([self.topic])
        return str(told.topic_id)

    @property
    def partitions(self) -> int:
        [told] = self._admin.describe_topics([self.topic])
        return len(told.partitions)

    def fill(self) -> None:
        """Records, each known by its place when it is acknowledged; in small batches."""
        count = self.partitions
        with Producer(self._bootstrap, linger_ms=1, batch_size=300) as producer:
            waiting = []
            for _ in range(PER_ROUND):
                self._number += 1
                bad = self.typed and self.chance.random() < 0.05
                value = b"bad %d" % self._number if bad else b'{"n": %d}' % self._number
                time_ms = FIRST_DAY_MS + self._number % 3 * DAY_MS
                where = self.chance.randrange(count)
                waiting.append((value, producer.send(self.topic, value, partition=where, timestamp_ms=time_ms)))
            for value, future in waiting:
                ack = future.result(30)
                self.sent[self.topic_id, ack.partition, ack.offset] = value

    def round(self) -> None:
        """A drawn fault, and an exporter that meets it."""
        self.fill()
        fault = self.chance.choice(FAULTS)
        self.story.append(fault)
        if fault == "kill":
            self._exporters(1)
        elif fault == "two writers":
            self._exporters(2)
        elif fault == "store":
            self._exporters(1, failing=self.chance.randrange(1, 12))
        elif fault == "retention":
            with self._begun(self._moment()):
                self._trim()
        elif fault == "partitions":
            with self._begun(self._moment()):
                self._admin.create_partitions({self.topic: self.partitions + 1})
                self.fill()
        elif fault == "made anew":
            self._exporters(1)
            self._anew()
        elif fault == "compaction":
            with self._begun(self._moment()), suppress(StrandlineError):
                compact(Lake(self.place))

    def _moment(self) -> float:
        return self.chance.uniform(0.01, 0.8)

    def _begun(self, moment_s: float, failing: int = 0) -> Any:
        words = [sys.executable, "-c", FAULTY, str(moment_s), str(failing), "lake", "export", *self._words, "--follow"]
        surroundings = {**os.environ, "STRANDLINE_BOOTSTRAP": self._bootstrap}
        return _Ends(
            subprocess.Popen(words, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
        )

    def _exporters(self, count: int, *, failing: int = 0) -> None:
        begun = [self._begun(self._moment(), failing) for _ in range(count)]
        for each in begun:
            with each:
                pass

    def _trim(self) -> None:
        """Past what the lake has, perhaps."""
        where = self.chance.randrange(self.partitions)
        [end] = [found.offset for found in self._admin.list_offsets({(self.topic, where): LATEST}).values()]
        upto = self.chance.randrange(end + 1)
        self._admin.delete_records({(self.topic, where): upto})
        starts = self.trimmed.setdefault(self.topic_id, {})
        starts[where] = max(upto, starts.get(where, 0))

    def _anew(self) -> None:
        """Another topic of the name: refused, until somebody says that it is meant."""
        had = Lake(self.place).state().topic_ids.get(self.topic)
        self._admin.delete_topics([self.topic])
        eventually(lambda: self.topic not in self._admin.list_topics())
        self._made()
        self.fill()
        if had is not None:
            refused = lake(self._bootstrap, "export", *self._words, expect=1)
            assert "was deleted and made anew" in refused.output
            lake(self._bootstrap, "export", *self._words, "--new-topic")

    def judge(self) -> None:
        """After an export that nothing disturbs."""
        lake(self._bootstrap, "export", *self._words)
        there = Lake(self.place)
        verdict = verify(there)
        assert verdict.wrong == [], self.story
        commits = [Commit.from_json(there.store.read(f"{COMMITS}/{name}") or b"") for name in sorted(
            name for name in there.store.listed(COMMITS) if name.endswith(".json"))]  # fmt: skip
        covered, lost, of_file = self._ranges(commits)
        found = self._rows(there, of_file)
        twice = [place for place, times in Counter(place for place, _ in found).items() if times > 1]
        assert not twice, (self.story, twice[:5])
        for place, value in found:
            assert self.sent.get(place) == value, (self.story, place, value)
        have = {place for place, _ in found}
        for place in self.sent.keys() & covered:
            assert (place in have) != (place in lost), (self.story, place, place in lost)
        [ends] = [self._admin.list_offsets({(self.topic, number): LATEST for number in range(self.partitions)})]
        for where, answer in ends.items():
            want = {(self.topic_id, where.partition, offset) for offset in range(answer.offset)}
            assert want <= covered, (self.story, sorted(want - covered)[:3])
        for topic_id, partition, offset in lost:
            assert offset < self.trimmed.get(topic_id, {}).get(partition, 0), (self.story, "named as lost, and there")

    def _ranges(self, commits: list[Commit]) -> tuple[set[Place], set[Place], dict[str, str]]:
        """What the commits cover, what they name as lost, and of which topic id each file's rows are."""
        covered: set[Place] = set()
        lost: set[Place] = set()
        of_file: dict[str, str] = {}
        topic_id = ""
        for commit in commits:
            topic_id = commit.topic_ids.get(self.topic, topic_id)
            for partition, (start, end) in commit.ranges.get(self.topic, {}).items():
                places = {(topic_id, partition, offset) for offset in range(start, end)}
                assert not places & covered, (self.story, "covered twice")
                covered |= places
            for partition, spans in commit.lost.get(self.topic, {}).items():
                lost |= {(topic_id, partition, offset) for start, end in spans for offset in range(start, end)}
            for name in (*commit.add, *commit.bad):
                of_file[name] = topic_id if not commit.remove else self._of(of_file, list(commit.remove), topic_id)
        return covered, lost, of_file

    @staticmethod
    def _of(of_file: dict[str, str], removed: list[str], topic_id: str) -> str:
        """A file that compaction made is of one topic id here, or of several: then its rows say nothing of it."""
        ids = {of_file[name] for name in removed}
        return ids.pop() if len(ids) == 1 else ""

    def _rows(self, there: Lake, of_file: dict[str, str]) -> list[tuple[Place, bytes]]:
        from pyarrow import parquet

        state = there.state()
        by_value = {value: place for place, value in self.sent.items()}
        rows: list[tuple[Place, bytes]] = []
        for folder, names in (("data", state.files), ("bad", state.bad)):
            for name in names:
                table = parquet.ParquetFile(there.store.open(f"{folder}/{name}")).read().to_pylist()
                last: dict[int, int] = {}
                for row in table:
                    value = row["value"] if folder == "bad" or not self.typed else b'{"n": %d}' % row["n"]
                    topic_id = of_file[name] or by_value[value][0]
                    rows.append(((topic_id, row["partition"], row["offset"]), value))
                    if of_file[name]:
                        assert row["offset"] > last.get(row["partition"], -1), (self.story, name, "out of order")
                        last[row["partition"]] = row["offset"]
        return rows


class _Ends:
    """A process that ends by its own doom; what it said, if it ended otherwise."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._before = b""

    def __enter__(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._before += line
            if line == b"begun\n":
                return

    def __exit__(self, *_: object) -> None:
        rest, _nothing = self._process.communicate(timeout=120)
        said = self._before + rest
        code = self._process.returncode
        told = any(words in said for words in (b"No space left", b"another writer", b"made anew", b"was faster"))
        assert code == -signal.SIGKILL or (code == 1 and told), (code, said[-3000:])


@pytest.fixture
def admin(cluster: DevCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as made:
        yield made


@pytest.mark.parametrize(("seed", "rounds"), [(3, 2), *[(seed, 8) for seed in range(100, 120)]], ids=str)
def test_each_record_is_in_the_lake_once_or_named_as_lost(
    cluster: DevCluster, admin: Admin, tmp_path: Path, seed: int, rounds: int
) -> None:
    drawn = Drawn(cluster, admin, tmp_path, seed)
    for _ in range(rounds):
        drawn.round()
    drawn.judge()
    with suppress(UnknownTopic):
        admin.delete_topics([drawn.topic])
