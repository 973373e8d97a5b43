"""Sink 2: a search index (tantivy) of departures and planes, a document each, found by any word.

pip install tantivy
python search_sink.py 127.0.0.1:9092 index
python search.py index 'boeing 737'

A document replaces the one of the same id, and offsets are committed after the index is. Killed between the two, it
gets the last records again: the index keeps, in the same commit as the documents, the place of each origin, and what is
not above it is left out. So a plane's older state never replaces a newer one. With the index deleted it begins anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from hub import DEPARTURES, PLANES, origin_of
from tantivy import Document, Index, Query, Schema, SchemaBuilder

from strandline.client import Consumer, ConsumerRecord, TopicPartition

PLACE = "place"
"""The kind of the documents that keep places; others are of the kind of their topic."""

WRITER = {"heap_size": 50_000_000, "num_threads": 1}


def schema() -> Schema:
    """Ids and kinds are whole words, texts are taken apart; `source` is what a hit shows."""
    builder = SchemaBuilder()
    for name in ("id", "kind"):
        builder.add_text_field(name, stored=True, tokenizer_name="raw")
    builder.add_text_field("text")
    builder.add_bytes_field("source", stored=True)
    return builder.build()


class SearchIndex:
    """The documents, and how far they go. One at a time may be open for writing."""

    def __init__(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)
        self._index = Index(schema(), path)
        self._writer = self._index.writer(**WRITER)
        self._places = places(self._index)

    @property
    def is_new(self) -> bool:
        """Nothing was ever put into it."""
        return not self._places

    def put(self, records: Iterable[ConsumerRecord]) -> None:
        """Add or replace a document for each record, and commit; repeats are left out."""
        documents: dict[str, tuple[str, str, bytes]] = {}
        for record in records:
            origin, position = origin_of(record)
            if position > self._places.get(origin, 0):
                self._places[origin] = position
                documents[f"{PLACE}:{origin}"] = (PLACE, "", b"%d" % position)
                text = " ".join(str(each) for each in json.loads(record.value).values())
                documents[record.key.decode()] = (record.topic, text, record.value)
        for name, (kind, text, source) in documents.items():
            self._writer.delete_documents_by_term("id", name)
            self._writer.add_document(Document(id=name, kind=kind, text=text, source=source))
        if documents:
            self._writer.commit()


def read(index: Index, kind: str) -> list[tuple[str, bytes]]:
    """Id and source of every document of a kind."""
    searcher = index.searcher()
    found = searcher.search(Query.term_query(index.schema, "kind", kind), limit=max(1, searcher.num_docs))
    documents = [searcher.doc(address).to_dict() for _score, address in found.hits]
    return [(document["id"][0], bytes(document["source"][0])) for document in documents]


def places(index: Index) -> dict[str, int]:
    """How far each origin is in the index."""
    return {name.removeprefix(f"{PLACE}:"): int(position) for name, position in read(index, PLACE)}


def run(bootstrap: str, path: str) -> None:
    """Index what comes, until somebody stops it."""
    index = SearchIndex(path)
    settings = {
        "group_id": "hub-search",
        "group_instance_id": "hub-search-1",  # the next run takes the killed one's place at once
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "max_poll_records": 5000,
    }
    with Consumer(bootstrap, **settings) as consumer:

        def go_on(partitions: list[TopicPartition]) -> None:
            if index.is_new:  # whatever an index before it had
                consumer.seek_to_beginning(*partitions)

        consumer.subscribe([DEPARTURES, PLANES], on_assigned=go_on)
        while True:
            records = consumer.poll(timeout_s=1.0)
            if records:
                index.put(records)
                consumer.commit()


if __name__ == "__main__":
    run(*sys.argv[1:])
