"""An Iceberg table in place of the lake's own commits: the offsets stand in the properties of its snapshots.

Files are written as for a lake and added to the table, partitioned by the day of `timestamp`. Each append is a
transaction upon the snapshot whose offsets it follows on; where another one was faster, the table is read again and the
offsets are checked again. Records that fit no row are in the table NAME_bad. Its appends come first and have offsets of
their own, so that a run that ended between the two adds them no second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.lake.commits import Commit, LakeTaken, State
from strandline.lake.stores import Writing
from strandline.proto.errors import ConfigError, MissingExtra, StrandlineError
from strandline.tools.lake.shape import BAD_SCHEMA, Shape

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

STATE, COMMIT = "strandline.state", "strandline.commit"
"""Properties of a snapshot: up to where the table is, as JSON, and what the append covered."""

NO_RETRIES = {"commit.retry.num-retries": "0"}
"""pyiceberg's own would append to whatever snapshot there is by then, and ask nobody about offsets."""


class IcebergFailed(StrandlineError):
    """The catalog refused, or the table is not as an export needs it; the message says what it was."""


def open_catalog(url: str, warehouse: str | None, options: Mapping[str, str]) -> Catalog:
    """A catalog in SQL (sqlite:///..., postgresql://...), or by REST (http://..., https://...).

    Raises:
        ConfigError: a URL of another kind, or without a warehouse where one is needed.
        MissingExtra, IcebergFailed.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise MissingExtra.of("--format iceberg", "lake", error) from error
    scheme = url.partition("://")[0].partition("+")[0]
    kind = {"http": "rest", "https": "rest", "sqlite": "sql", "postgresql": "sql"}.get(scheme)
    if kind is None or "://" not in url:
        raise ConfigError("--catalog", url, "sqlite:///FILE, postgresql://..., http://... or https://...")
    if kind == "sql" and warehouse is None:
        raise ConfigError("--to", None, "where the files of the tables go: an SQL catalog does not know it by itself")
    place = {} if warehouse is None else {"warehouse": warehouse}
    try:
        return load_catalog(**{"name": "default", "type": kind, "uri": url, **place, **options})
    except Exception as error:
        if isinstance(error.__cause__, ImportError):
            raise MissingExtra.of("--catalog", "lake", error.__cause__) from error
        raise IcebergFailed(f"the catalog {url} cannot be opened: {error}") from error


class IcebergSink:
    """A table, and beside it, once there are any, one of the records that fit no row. See `export.Sink`.

    Args:
        name: namespace.table; made where it is missing. Columns that it lacks are added to it.

    Raises:
        IcebergFailed.
    """

    def __init__(self, catalog: Catalog, name: str, shape: Shape) -> None:
        self._name = name
        self._catalog = catalog
        self._table = self._opened(name, shape.schema, by_day=True)
        self.state = state_of(self._table)
        bad = f"{name}_bad"
        self._bad = catalog.load_table(bad) if catalog.table_exists(bad) else None
        self._bad_state = State() if self._bad is None else state_of(self._bad)

    def open(self, name: str) -> Writing:
        """Implement `export.Sink.open`."""
        return _written(self._table, name)

    def open_bad(self, name: str) -> Writing:
        """Implement `export.Sink.open_bad`."""
        if self._bad is None:
            self._bad = self._opened(f"{self._name}_bad", BAD_SCHEMA, by_day=False)
        return _written(self._bad, name)

    def bad_end(self, topic: str, topic_id: str, partition: int) -> int:
        """Implement `export.Sink.bad_end`."""
        same = self._bad_state.topic_ids.get(topic, topic_id) == topic_id
        return self._bad_state.ends.get((topic, partition), 0) if same else 0

    def commit(self, change: Commit) -> None:
        """Implement `export.Sink.commit`."""
        if change.bad:
            assert self._bad is not None
            self._bad_state = _append(self._bad, self._bad_state, change, list(change.bad), _bad_up_to)
        self.state = _append(self._table, self.state, change, list(change.add), _followed_by)

    def _opened(self, name: str, schema: pa.Schema, *, by_day: bool) -> Table:
        try:
            namespace = name.rpartition(".")[0]
            self._catalog.create_namespace_if_not_exists(namespace)
            if not self._catalog.table_exists(name):
                return _made(self._catalog, name, schema, by_day)
            table = self._catalog.load_table(name)
            lacking = set(schema.names) - {one.name for one in table.schema().fields}
            if lacking:
                with table.update_schema() as update:
                    update.union_by_name(schema)
            return table
        except Exception as error:
            raise IcebergFailed(f"table {name}: {error}") from error


def state_of(table: Table) -> State:
    """State of a table, from the newest snapshot that carries one: compaction and the like make snapshots without.

    Raises:
        IcebergFailed: it has rows, and no snapshot of it is an export's.
    """
    snapshot = table.current_snapshot()
    while snapshot is not None:
        said = None if snapshot.summary is None else snapshot.summary.get(STATE)
        if said is not None:
            return State.from_json(said.encode())
        parent = snapshot.parent_snapshot_id
        before = None if parent is None else table.snapshot_by_id(parent)
        if before is None:
            raise IcebergFailed(
                f"table {'.'.join(table.name())}: none of its snapshots has the property {STATE}: what it has of the "
                "topic is not known (were snapshots expired?). Export into another --table"
            )
        snapshot = before
    return State()


def _made(catalog: Catalog, name: str, schema: pa.Schema, by_day: bool) -> Table:
    from pyiceberg.transforms import DayTransform

    transaction = catalog.create_table_transaction(name, schema)
    if by_day:
        with transaction.update_spec() as spec:
            spec.add_field("timestamp", DayTransform(), "date")
    transaction.commit_transaction()
    return catalog.load_table(name)  # what a transaction gives back cannot be read again


def _written(table: Table, name: str) -> Writing:
    file = table.io.new_output(_path(table, name)).create()
    return Writing(file.write, file.close)


def _path(table: Table, name: str) -> str:
    return f"{table.location()}/data/{name}"


def _append(
    table: Table, known: State, change: Commit, files: list[str], step: Callable[[State, Commit], State]
) -> State:
    """Add files in one transaction; the state that stands in its snapshot. Raises LakeTaken, IcebergFailed."""
    from pyiceberg.exceptions import CommitFailedException

    paths = [_path(table, name) for name in files]
    while True:
        state = step(known, change)
        properties = {STATE: state.to_json().decode(), COMMIT: replace(change, add={}, bad={}).to_json().decode()}
        table.metadata.properties.update(NO_RETRIES)  # of this copy alone: no update of the table has it
        try:
            with table.transaction() as transaction:
                transaction.add_files(paths, snapshot_properties=properties, check_duplicate_files=False)
            return state
        except Exception as error:
            table.refresh()
            if _has(table, change):
                return state
            if not isinstance(error, CommitFailedException):
                raise IcebergFailed(f"table {'.'.join(table.name())}: {error}") from error
        known, before = state_of(table), known
        moved = [key for topic, parts in change.ranges.items() for key in ((topic, number) for number in parts)
                 if known.ends.get(key) != before.ends.get(key)]  # fmt: skip
        if moved:
            topic, number = moved[0]
            raise LakeTaken(
                f"another writer exports {topic} into {'.'.join(table.name())}, and was faster: {topic}-{number} is "
                f"there up to {known.ends.get(moved[0], 0)}"
            )


def _has(table: Table, change: Commit) -> bool:
    """Whether an append has landed though it failed: the answer was lost."""
    summaries = (one.summary for one in reversed(table.metadata.snapshots))
    return any(one is not None and f'"writer": "{change.writer}"' in (one.get(COMMIT) or "") for one in summaries)


def _followed_by(state: State, change: Commit) -> State:
    after = replace(state, ends=dict(state.ends), epochs=dict(state.epochs), topic_ids=dict(state.topic_ids))
    after.apply(replace(change, number=state.next_number, add={}, bad={}))
    return after


def _bad_up_to(state: State, change: Commit) -> State:
    """State behind the ranges of a commit whose bad rows are stored; what lies between had none."""
    ends = {key: end for key, end in state.ends.items() if key[0] not in change.new_topics}
    for topic, parts in change.ranges.items():
        for number, (_start, end) in parts.items():
            ends[topic, number] = max(end, ends.get((topic, number), 0))
    return State(state.next_number + 1, ends, topic_ids={**state.topic_ids, **change.topic_ids})
