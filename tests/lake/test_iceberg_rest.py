"""The same over REST, with Iceberg's own implementation of a REST catalog (Java; its jars come from Maven Central)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.clusters import maven_jars
from bench.fetched import Unavailable

from strandline.client import Admin, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.tools.lake.iceberg import open_catalog
from tests.acceptance.helpers import make_topic
from tests.lake.stage import KEPT, assert_each_once, document, lake, send
from tests.lake.test_iceberg import (  # noqa: F401  (they run here with the fixture below)
    NAME,
    test_a_new_column_is_added,
    test_a_table_that_does_not_say_where_it_is_is_refused,
    test_an_append_whose_answer_was_lost_is_made_once,
    test_another_topic_and_other_writers_take_turns,
    test_of_two_exports_of_a_topic_one_appends,
    test_records_that_fit_no_row_come_once_though_a_run_ended_between_the_two_appends,
)

ICEBERG = "1.10.0"
ARTIFACTS = (
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}:tests",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
    "org.eclipse.jetty:jetty-servlet:11.0.26",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.slf4j:slf4j-nop:2.0.17",
)


@pytest.fixture(scope="module")
def jars() -> str:
    """The class path."""
    try:
        return f"{maven_jars('the REST catalog of Iceberg', f'iceberg-rest-{ICEBERG}', ARTIFACTS)}/*"
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def rest(jars: str, tmp_path: Path) -> Iterator[str]:
    """The address of a catalog of its own."""
    source = Path(__file__).with_name("RestCatalog.java")
    words = [str(tmp_path / "catalog.db"), (tmp_path / "warehouse").as_uri()]
    command = ["java", "-cp", jars, str(source), *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.communicate("\n", timeout=20)


@pytest.fixture
def catalog(rest: str) -> Any:
    return open_catalog(rest, None, {})


def test_an_export_is_taken_up_again(cluster: DevCluster, rest: str) -> None:
    """`strandline lake export --catalog http://...`, twice: each record once, read by pyiceberg through the catalog."""
    make_topic(cluster, "rested", 2, **KEPT)
    words = ("rested", "--format", "iceberg", "--catalog", rest, "--table", NAME, "-o", "json")
    with Producer(cluster.bootstrap) as producer:
        send(producer, "rested", range(300))
        first = document(lake(cluster.bootstrap, "export", *words))
        send(producer, "rested", range(300, 500))
        second = document(lake(cluster.bootstrap, "export", *words))
    assert (first["rows"], second["rows"]) == (300, 200)
    rows = open_catalog(rest, None, {}).load_table(NAME).scan().to_arrow().to_pylist()
    with Admin(cluster.bootstrap) as admin:
        latest = admin.list_offsets({("rested", 0): -1, ("rested", 1): -1})
    ends = {partition: int(found.offset) for (_, partition), found in latest.items()}
    assert_each_once([(row["partition"], row["offset"], int(row["value"])) for row in rows], 500, ends)
