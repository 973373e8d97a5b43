"""Row S104, the parts of docs/uses/hub.md: how a source finds its place, and what a repeat does to a sink."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.client import Consumer, ConsumerRecord
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import make_topic
from tests.acceptance.hub_programs import HUB, modules
from tests.acceptance.recipes import DOCS


def test_the_page_shows_what_is_run() -> None:
    """Each block stands in its file as it is, and each program is shown."""
    blocks = re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", (DOCS / "uses" / "hub.md").read_text(), re.DOTALL)
    for name, block in blocks:
        assert block.strip() in (HUB / name).read_text(), f"{name} has no such lines:\n{block}"
    programs = {path.name for path in [*HUB.glob("*_source.py"), *HUB.glob("*_sink.py")]}
    assert {name for name, _ in blocks} >= programs


@pytest.fixture(scope="module")
def parts() -> Iterator[SimpleNamespace]:
    with modules("hub", "inputs", "held", "files_source", "sqlite_sink", "search_sink", "search") as loaded:
        yield loaded


@contextmanager
def feeding(parts: SimpleNamespace, cluster: DevCluster, topic: str, place: Path) -> Iterator[Any]:
    """A feed, until it is killed: all that it has is in the topic and its file."""
    feed = parts.hub.Feed(cluster.bootstrap, topic, str(place))
    try:
        yield feed
    finally:
        feed._producer.close()
        feed._file.close()


def read(cluster: DevCluster, topic: str) -> list[ConsumerRecord]:
    """Every record, partition by partition."""
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        tops = [(topic, part) for part in consumer.partitions_for(topic)]
        consumer.assign(tops)
        records: list[ConsumerRecord] = []
        while any(consumer.position(part) < end for part, end in consumer.end_offsets(tops).items()):
            records += consumer.poll(timeout_s=5)
    return sorted(records, key=lambda record: (record.partition, record.offset))


def test_a_source_goes_on_where_its_topic_ends(parts: SimpleNamespace, cluster: DevCluster, tmp_path: Path) -> None:
    """A line without its end waits. The next run goes on behind the last record, with its file of places as it was
    left, as it was long ago, or lost."""
    topic, place, path = "hub-places", tmp_path / "files.place", tmp_path / "monday.jsonl"
    make_topic(cluster, topic, partitions=3)
    lines = [b'{"id": "flight %d"}' % number for number in range(40)]
    path.write_bytes(b"\n".join(lines[:11])[:-4])
    with feeding(parts, cluster, topic, place) as feed:
        assert parts.files_source.send_new_lines(feed, path)
        assert not parts.files_source.send_new_lines(feed, path), "the eleventh line has no end yet"
    assert [record.value for record in read(cluster, topic)] == lines[:10]
    shutil.copy(place, tmp_path / "old.place")
    path.write_bytes(b"\n".join(lines) + b"\n")
    with feeding(parts, cluster, topic, place) as feed:
        assert parts.files_source.send_new_lines(feed, path)
        assert not parts.files_source.send_new_lines(feed, path)
    for later in (place, tmp_path / "old.place", tmp_path / "lost.place"):
        with feeding(parts, cluster, topic, later) as feed:
            assert feed.place(path.name) == path.stat().st_size
            assert not parts.files_source.send_new_lines(feed, path), f"{later.name}: lines were sent again"
    assert [record.value for record in read(cluster, topic)] == lines
    path.write_bytes(b"\n".join([*lines, b"oops", b""]))
    with feeding(parts, cluster, topic, place) as feed, pytest.raises(ValueError, match="no JSON with an id: b'oops'"):
        parts.files_source.send_new_lines(feed, path)
    path.write_bytes(b"\n".join(lines[:5]))
    with feeding(parts, cluster, topic, place) as feed, pytest.raises(ValueError, match="files may only grow"):
        parts.files_source.send_new_lines(feed, path)


@pytest.fixture(scope="module")
def fed(
    parts: SimpleNamespace, cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, list[ConsumerRecord]]:
    """Inputs, and the records that the sources made of them."""
    directory = tmp_path_factory.mktemp("inputs")
    inputs = parts.inputs.Inputs(directory)
    inputs.write(islice(inputs.flights(600), 600))
    records: list[ConsumerRecord] = []
    for topic in parts.hub.PARTITIONS:
        own = f"hub-parts-{topic}"
        make_topic(cluster, own, partitions=parts.hub.PARTITIONS[topic])
        with feeding(parts, cluster, own, directory / f"{topic}.place") as feed:
            if topic == parts.hub.DEPARTURES:
                for path in inputs.files.iterdir():
                    while parts.files_source.send_new_lines(feed, path):
                        pass
            else:
                changes = [(number, tail.encode(), plane.encode()) for number, tail, plane in inputs.changes()]
                feed.send("outbox", changes)
        records += [record._replace(topic=topic) for record in read(cluster, own)]
    return inputs, records


def batches(records: list[ConsumerRecord]) -> list[list[ConsumerRecord]]:
    """As a sink may get them: a batch again, after a kill before its offsets were committed; and records that reached
    the log again, later, because their source was killed: older states of planes behind newer ones among them."""
    third = len(records) // 3
    return [records[:third], records[third // 2 : 2 * third], records[2 * third :], records[-150:-50], records[:100]]


def verdicts(parts: SimpleNamespace, fed: tuple[Any, list[ConsumerRecord]], directory: Path, sink: str) -> list[Any]:
    return [verdict for verdict in parts.held.verdicts(directory, fed[0]) if verdict.sink == sink]


def test_repeats_do_not_show_in_sqlite(
    parts: SimpleNamespace, fed: tuple[Any, list[ConsumerRecord]], tmp_path: Path
) -> None:
    """Sums would show a departure that counts twice; a plane's older state would show, too. What is missing or too many
    is told."""
    path = tmp_path / "airports.db"
    database = parts.sqlite_sink.Database(str(path))
    for batch in batches(fed[1]):
        database.apply(batch)
    assert all(verdict.right for verdict in verdicts(parts, fed, tmp_path, "sqlite"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("delete from departure where rowid = 7")
        connection.execute("update airport set departures = departures + 1 where name = 'JFK'")
        connection.execute("insert into plane values ('N1', '')")
    found = {verdict.what: (verdict.missing, verdict.too_many) for verdict in verdicts(parts, fed, tmp_path, "sqlite")}
    assert found == {"departures": (1, 0), "airports' totals": (1, 1), "planes": (0, 1)}


def test_repeats_do_not_show_in_the_index(
    parts: SimpleNamespace, fed: tuple[Any, list[ConsumerRecord]], tmp_path: Path
) -> None:
    """A document for each departure and plane, with the plane's newest state; opened anew between batches, as after a
    kill. What is missing or too many is told."""
    path = tmp_path / "index"
    for batch in batches(fed[1]):
        index = parts.search_sink.SearchIndex(str(path))
        index.put(batch)
        index._writer.wait_merging_threads()
    assert all(verdict.right for verdict in verdicts(parts, fed, tmp_path, "search"))
    hits = parts.search.search(str(path), "boeing 737")
    assert len(hits) == 5
    assert all("BOEING" in hit and '"737' in hit for hit in hits)

    index = parts.search_sink.SearchIndex(str(path))
    first, second, *_ = fed[1]
    index._writer.delete_documents_by_term("id", first.key.decode())
    again = {"id": second.key.decode(), "kind": second.topic, "text": "", "source": second.value}
    index._writer.add_document(parts.search_sink.Document(**again))
    index._writer.commit()
    index._writer.wait_merging_threads()
    found = {verdict.what: (verdict.missing, verdict.too_many) for verdict in verdicts(parts, fed, tmp_path, "search")}
    assert found == {"departures": (1, 1), "planes": (0, 0)}
