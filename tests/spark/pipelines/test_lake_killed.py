"""The lake over the full data set, its driver killed at the two worst moments: every record once all the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strandline.cluster.node.dev import DevCluster
from strandline.lake.upkeep import compact, vacuum
from strandline.spark.pipelines import dataset
from strandline.spark.pipelines.feed import PARTITIONS, ends, feed
from strandline.spark.pipelines.frames import stream_of
from strandline.spark.pipelines.lake import Lake, of_flights, start

pytestmark = pytest.mark.timeout(900)

TOPIC = "lake-killed"
RECORDS_PER_BATCH = 60_000

_DRIVER = """
import os, signal, sys
from pathlib import Path
from strandline.spark.pipelines.lake import Lake, start
from strandline.spark.pipelines.session import local_session
from tests.spark.pipelines.test_lake_killed import query

bootstrap, directory, checkpoint, moment, commit = sys.argv[1:]

def die():
    os.killpg(0, signal.SIGKILL)

class Doomed(Lake):
    def append(self, rows, ranges, attempt, before_commit):
        if moment == "before" and self.state().next_number == int(commit):
            before_commit = die
        done = super().append(rows, ranges, attempt, before_commit)
        if moment == "after" and done is not None and done.number == int(commit):
            die()
        return done

query(local_session(), bootstrap, Doomed(Path(directory)), Path(checkpoint)).awaitTermination()
"""


def query(spark: Any, bootstrap: str, lake: Lake, checkpoint: Path) -> Any:
    """The query of every driver: it begins where its checkpoint says, without one where the lake does."""
    records = stream_of(spark, bootstrap, TOPIC, RECORDS_PER_BATCH, lake.starting_offsets(TOPIC, PARTITIONS))
    return start(lake, of_flights(records), checkpoint)


def driver_that_dies(bootstrap: str, lake: Lake, checkpoint: Path, moment: str, commit: int, log_path: Path) -> None:
    """Run the query in a Spark of its own, which is killed, JVM and workers too, at this moment of this commit."""
    command = [sys.executable, "-c", _DRIVER, bootstrap, str(lake.directory), str(checkpoint), moment, str(commit)]
    with log_path.open("wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            code = driver.wait(300)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
    assert code == -signal.SIGKILL, log_path.read_text()[-3000:]


def test_every_record_once_over_three_drivers_and_a_lost_checkpoint(
    spark: Any, cluster: DevCluster, tmp_path: Path
) -> None:
    """Killed with files written and not committed, then committed and unknown to Spark; then no checkpoint.

    A batch that is run again writes its files anew in the first case, and nothing in the second.
    """
    lake, checkpoint = Lake(tmp_path / "lake"), tmp_path / "checkpoint"
    events = dataset.flight_events(dataset.data_directory())
    feed(cluster.bootstrap, TOPIC, events)
    driver_that_dies(cluster.bootstrap, lake, checkpoint, "before", 1, tmp_path / "one.log")
    assert lake.state().next_number == 1
    driver_that_dies(cluster.bootstrap, lake, checkpoint, "after", 2, tmp_path / "two.log")
    state = lake.state()
    assert state.next_number == 3
    assert not (checkpoint / "commits" / "2").exists(), "Spark knows of the batch that only the lake has"
    third = query(spark, cluster.bootstrap, lake, checkpoint)
    try:
        while lake.state().next_number == 3 and not third.awaitTermination(0.1):
            pass
    finally:
        third.stop()
    shutil.rmtree(checkpoint)
    query(spark, cluster.bootstrap, lake, checkpoint).awaitTermination()

    there = ends(cluster.bootstrap, TOPIC)
    assert lake.state().ends == {(TOPIC, partition): end for partition, end in there.items()}
    rows = lake.read(spark).selectExpr("partition", "offset", "id", "departed_ms").collect()
    assert len(rows) == sum(there.values()) == len(events) == 340_243
    assert {(row.partition, row.offset) for row in rows} == {
        (partition, offset) for partition, end in there.items() for offset in range(end)
    }
    want = sorted((event.flight.flight_id, event.flight.event_ms) for event in events if event.flight is not None)
    assert sorted((row.id, row.departed_ms) for row in rows) == want
    before, after = compact(lake)
    assert after == len(lake.state().files_by_date()) < before
    vacuum(lake)
    assert spark.read.parquet(str(lake.data)).count() == len(events), "files of an attempt that crashed are read"
