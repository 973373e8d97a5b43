"""An export killed again and again, at random moments: each record once all the same; in files, S3 and Iceberg."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from strandline.client import Admin, Producer
from strandline.client.errors import UnknownTopic
from strandline.client.types import LATEST, NewTopic
from strandline.cluster.node.dev import DevCluster
from strandline.lake.commits import Lake
from strandline.lake.upkeep import compact, vacuum, verify
from strandline.tools.lake.iceberg import state_of
from tests.lake.conftest import BUCKET, s3_environment
from tests.lake.stage import KEPT, assert_each_once, export_killed, files, in_duckdb, lake, send

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[lake]'")
pytestmark = pytest.mark.timeout(600)

SEED = 20261123
PER_ROUND = 2000
SMALL = ("--commit-interval", "0.1", "--batch-rows", "40", "--batch-bytes", "4000", "--file-bytes", "3000")
EACH = 'SELECT partition, "offset", CAST(CAST(value AS VARCHAR) AS BIGINT) FROM rows'


class Stage:
    """A topic that grows from round to round."""

    def __init__(self, bootstrap: str, topic: str, admin: Admin, producer: Producer) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.sent = 0
        self._admin = admin
        self._producer = producer
        self._chance = random.Random(SEED)

    def killed(self, rounds: int, *words: str, environment: dict[str, str] | None = None) -> Iterator[int]:
        """Records, and an export that is killed while it reads them, or after; again and again."""
        for number in range(rounds):
            for _ in range(PER_ROUND // 20):  # in small batches, which an export does not split
                send(self._producer, self.topic, range(self.sent, self.sent + 20))
                self.sent += 20
            moment_s = self._chance.uniform(0.05, 1.3)
            export_killed(self.bootstrap, moment_s, self.topic, *words, *SMALL, environment=environment)
            yield number

    def ends(self) -> dict[int, int]:
        found = self._admin.list_offsets({(self.topic, number): LATEST for number in (0, 1)})
        return {where.partition: answer.offset for where, answer in found.items()}


@pytest.fixture
def stage(cluster: DevCluster) -> Iterator[Stage]:
    topic = f"lake-killed-{os.getpid()}-{random.getrandbits(32):x}"
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, linger_ms=0) as producer:
        admin.create_topics([NewTopic(topic, 2, 3, KEPT)])
        yield Stage(cluster.bootstrap, topic, admin, producer)
        with suppress(UnknownTopic):
            admin.delete_topics([topic])


def test_twenty_times_in_a_directory(stage: Stage, tmp_path: Path) -> None:
    """Compacted between, so that commits of two kinds and leftovers of both are there."""
    place = str(tmp_path / "lake")
    commits, leftovers = set(), 0
    for number in stage.killed(20, "--to", place):
        there = Lake(place)
        commits.add(there.state().next_number)
        if number % 7 == 6:
            compact(there)
            leftovers += vacuum(there)
    lake(stage.bootstrap, "export", stage.topic, "--to", place)
    there = Lake(place)
    assert_each_once(in_duckdb(files(place), EACH), stage.sent, stage.ends())
    verdict = verify(Lake(place))
    assert verdict.wrong == []
    assert verdict.state.empty == verdict.state.lost == 0
    assert len(commits) > 5, "kills came between commits"
    assert leftovers + vacuum(Lake(place)) > 0, "kills came between files and their commit"
    by_glob = in_duckdb([str(path) for path in (tmp_path / "lake" / "data").rglob("*.parquet")], EACH)
    assert_each_once(by_glob, stage.sent, stage.ends())


def test_in_an_object_store(stage: Stage, s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = s3_environment(s3_server)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    place = f"s3://{BUCKET}/{tmp_path.name}/{stage.topic}"
    for _ in stage.killed(6, "--to", place, environment=environment):
        pass
    lake(stage.bootstrap, "export", stage.topic, "--to", place)
    there = Lake(place)
    before, after = compact(there)
    assert after == 3 < before
    from pyarrow import parquet

    found: list[tuple[int, int, int]] = []
    for name in there.state().files:
        rows = parquet.ParquetFile(there.store.open(f"data/{name}")).read(["partition", "offset", "value"]).to_pylist()
        found += [(row["partition"], row["offset"], int(row["value"])) for row in rows]
    assert_each_once(found, stage.sent, stage.ends())
    assert verify(there).wrong == []


def test_in_an_iceberg_table(stage: Stage, tmp_path: Path) -> None:
    catalog = pytest.importorskip("pyiceberg.catalog", reason="pyiceberg is not installed: pip install '.[lake]'")
    url = f"sqlite:///{tmp_path}/catalog.db"
    words = ("--to", str(tmp_path / "warehouse"), "--format", "iceberg", "--catalog", url, "--table", "shop.orders")
    for _ in stage.killed(6, *words):
        pass
    lake(stage.bootstrap, "export", stage.topic, *words)
    table = catalog.load_catalog("default", type="sql", uri=url).load_table("shop.orders")
    assert state_of(table).ends == {(stage.topic, number): end for number, end in stage.ends().items()}
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    places = [(row["partition"], row["offset"], int(row["value"])) for row in rows]
    assert_each_once(places, stage.sent, stage.ends())
    assert len(table.metadata.snapshots) > 3
