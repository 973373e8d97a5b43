"""Checkpoints of real queries: as an older release wrote them, of Spark's own source, and damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.cluster.node.dev import DevCluster

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")

from pyspark.errors import StreamingQueryException

from tests.spark.test_streaming import copying, expected, fill, keys, make, run

pytestmark = pytest.mark.timeout(600)  # as in test_batch_read


def rows_read(progress: list[dict[str, Any]]) -> int:
    return sum(each["numInputRows"] for each in progress)


def last_of(directory: Path) -> Path:
    return directory / str(max(int(path.name) for path in directory.iterdir() if path.name.isdecimal()))


def put(path: Path, content: bytes) -> None:
    """Replace a file of the checkpoint, as a copy or a repair by hand does: without Spark's checksum beside it."""
    path.write_bytes(content)
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def remove(path: Path) -> None:
    path.unlink()
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def say(checkpoint: Path, form: Callable[[dict[str, Any]], object]) -> None:
    """Have the last committed offset of the source in another form, at the tenth record of each partition."""
    path = last_of(checkpoint / "offsets")
    *head, told = path.read_text().splitlines()
    [(name, topic)] = json.loads(told)["topics"].items()
    tenth = {"name": name, "id": topic["id"], "offsets": dict.fromkeys(topic["offsets"], 10)}
    put(path, "\n".join([*head, json.dumps(form(tenth))]).encode())


FORMS: dict[str, Callable[[dict[str, Any]], object]] = {
    "release 0.1": lambda at: {
        "version": 1,
        "topics": {at["name"]: {"offsets": at["offsets"], "id": at["id"]}},
        "since": {at["name"]: {"offsets": dict.fromkeys(at["offsets"], 0), "id": at["id"]}},
    },
    "release 0.1, of a cluster without topic ids": lambda at: {
        "version": 1,
        "topics": {at["name"]: {"offsets": at["offsets"]}},
    },
    "Spark's own Kafka source": lambda at: {at["name"]: at["offsets"]},
}


def test_older_checkpoints_and_those_of_sparks_own_source_go_on(
    spark: Any, cluster: DevCluster, tmp_path: Path
) -> None:
    """One query, its last offset put back in each form that must be read: it goes on at the very record."""
    make(cluster, "old-in", "old-out")
    fill(cluster.bootstrap, "old-in", range(120))
    checkpoint = tmp_path / "checkpoint"
    query = copying(spark, cluster.bootstrap, "old-in", "old-out", checkpoint)
    assert rows_read(run(query)) == 120
    for form in FORMS.values():
        say(checkpoint, form)
        assert rows_read(run(query)) == 120 - 3 * 10
    say(checkpoint, lambda at: {"version": 99, "topics": {at["name"]: at}})
    with pytest.raises(Exception, match="a newer release of strandline wrote it"):
        run(query)


def test_a_truncated_checkpoint_is_an_error_and_its_repair_loses_nothing(
    spark: Any, cluster: DevCluster, tmp_path: Path
) -> None:
    """A machine's crash behind the plan of a batch: its file is cut short or empty. Nothing is read on a guess; with
    the file deleted the batch is planned anew, and what it had written is found in the target."""
    make(cluster, "cut-in", "cut-out")
    fill(cluster.bootstrap, "cut-in", range(60))
    checkpoint = tmp_path / "checkpoint"
    query = copying(spark, cluster.bootstrap, "cut-in", "cut-out", checkpoint)
    run(query)
    fill(cluster.bootstrap, "cut-in", range(60, 90))
    run(query)
    cut, committed = last_of(checkpoint / "offsets"), last_of(checkpoint / "commits")
    assert cut.name == committed.name
    whole = cut.read_bytes()
    remove(committed)
    for left in (len(whole) - 20, 0):
        put(cut, whole[:left])
        with pytest.raises(StreamingQueryException, match=r"JSONDecodeError|Incomplete log file"):
            run(query)
        assert keys(spark, cluster.bootstrap, "cut-out") == expected(90)
    remove(cut)
    fill(cluster.bootstrap, "cut-in", range(90, 100))
    assert rows_read(run(query)) == 40
    assert keys(spark, cluster.bootstrap, "cut-out") == expected(100)
