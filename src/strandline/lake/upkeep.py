"""A lake kept in good order: small files joined, leftovers deleted, all of it checked. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from strandline.lake.commits import BAD, DATA, Commit, Lake, LakeDamaged, State
from strandline.log.object_store import ATTEMPTS
from strandline.proto.errors import MissingExtra, ObjectMissing
from strandline.proto.system import SystemClock

COMPACT_ABOVE_FILES = 1
"""A date with more small files than this is written anew."""

FILE_BYTES = 128 << 20
"""A file ends once it is so large (Spark's default for what one task reads); one of less than half of it is small."""

GRACE_MS = 3_600_000
"""A file that does not count may belong to a writer that has not committed yet, or be read by one who began before."""


def compact(lake: Lake, file_bytes: int = FILE_BYTES) -> tuple[int, int]:
    """Write dates with many small files anew, in the order of the commits: that of the log, in each partition.

    Returns the number of files before and after. Rows do not change; readers of the old files may finish: files
    go when `vacuum` is called. What is written to may go on.

    Raises:
        LakeTaken: another one compacts, and was faster.
        LakeDamaged, StoreError.
    """
    state = lake.state()
    before = len(state.files)
    add: dict[str, int] = {}
    old: list[str] = []
    for date, alike in _joinable(lake, state, file_bytes):
        made = dict(_joined(lake, date, alike, file_bytes))
        rows = sum(state.files[name] for name in alike)
        if sum(made.values()) != rows:
            raise LakeDamaged(f"{date}: {rows} rows by the commits, {sum(made.values())} in the files")
        add |= made
        old += alike
    if old:
        lake.commit(Commit(-1, {}, add, tuple(old)), state)
    return before, before - len(old) + len(add)


def joinable(lake: Lake, file_bytes: int = FILE_BYTES) -> dict[str, int]:
    """Small files that `compact` would join, by date. Raises as `compact`."""
    found: dict[str, int] = {}
    for date, alike in _joinable(lake, lake.state(), file_bytes):
        found[date] = found.get(date, 0) + len(alike)
    return found


def _joinable(lake: Lake, state: State, file_bytes: int) -> Iterator[tuple[str, list[str]]]:
    """(date, small files of the same columns), where there are several of them. Raises LakeDamaged."""
    sizes = lake.store.listed(DATA)
    order = {name: place for place, name in enumerate(state.files)}
    for date, names in state.files_by_date().items():
        gone = next((name for name in names if name not in sizes), None)
        if gone is not None:
            raise LakeDamaged(f"{lake.store.location(f'{DATA}/{gone}')} is in a commit, and not there")
        small = [name for name in names if sizes[name].size_bytes < file_bytes // 2]
        for alike in _by_schema(lake, sorted(small, key=order.__getitem__)):
            if len(alike) > COMPACT_ABOVE_FILES:
                yield date, alike


def vacuum(lake: Lake, older_than_ms: int = 0, *, dry_run: bool = False) -> int:
    """Delete files that do not count: of attempts that crashed, and compacted ones. Returns how many.

    Args:
        older_than_ms: leave what was written, or compacted, less than so long ago.
        dry_run: count them and delete none.
    """
    until_ms = SystemClock().wall_ms() - older_than_ms
    there = {folder: lake.store.listed(folder) for folder in (DATA, BAD, ATTEMPTS)}
    state = lake.state()  # read after the files were listed: what was committed meanwhile counts
    kept = {
        DATA: {*state.files, *(lake.removed_since(until_ms) if older_than_ms else ())},
        BAD: state.bad,
        ATTEMPTS: (),
    }
    deleted = 0
    for folder, files in there.items():
        for name, stored in files.items():
            if name not in kept[folder] and stored.modified_ms <= until_ms:
                if not dry_run:
                    lake.store.delete(f"{folder}/{name}")
                deleted += name.endswith(".parquet")
    return deleted


@dataclass(frozen=True)
class Verdict:
    """Result of `verify`. `wrong`: one sentence for each problem; `leftovers`: files that no commit names, which no
    reader uses."""

    state: State
    wrong: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)


def verify(lake: Lake) -> Verdict:
    """Read every commit and the foot of every file: the files are there, each with the rows that its commit says.

    Raises:
        LakeDamaged: the commits contradict one another.
        StoreError.
    """
    state = lake.state(every_commit=True)
    verdict = Verdict(
        state, [f"commits/{name} cannot be read: strandline lake repair" for name in lake.broken_states()]
    )
    for folder, files in ((DATA, state.files), (BAD, state.bad)):
        there = lake.store.listed(folder)
        verdict.leftovers.extend(f"{folder}/{name}" for name in there if name not in files)
        for name, rows in files.items():
            if name not in there:
                verdict.wrong.append(f"{folder}/{name} is in a commit, and not there")
                continue
            try:
                found = _parquet(lake, f"{folder}/{name}").metadata.num_rows
            except (ObjectMissing, OSError, ValueError) as error:
                verdict.wrong.append(f"{folder}/{name} cannot be read: {error}")
                continue
            if found != rows:
                verdict.wrong.append(f"{folder}/{name} has {found} rows, and {rows} by its commit")
    verdict.leftovers.extend(f"{ATTEMPTS}/{name}" for name in lake.store.listed(ATTEMPTS))
    if state.empty < 0:
        covered = state.covered - state.lost
        verdict.wrong.append(f"{state.rows + state.bad_rows} rows of {covered} offsets: some are there twice")
    return verdict


def _by_schema(lake: Lake, names: list[str]) -> list[list[str]]:
    """Files that have the same columns: those of another schema of values are left apart."""
    found: list[tuple[Any, list[str]]] = []
    for name in names:
        schema = _parquet(lake, f"{DATA}/{name}").schema_arrow
        alike = next((group for known, group in found if known.equals(schema)), None)
        if alike is None:
            found.append((schema, [name]))
        else:
            alike.append(name)
    return [group for _, group in found]


def _joined(lake: Lake, date: str, names: list[str], file_bytes: int) -> Iterator[tuple[str, int]]:
    """The new files of a date, with their rows; a few row groups are in memory at a time."""
    from pyarrow import parquet

    batches = (batch for name in names for batch in _parquet(lake, f"{DATA}/{name}").iter_batches())
    schema = _parquet(lake, f"{DATA}/{names[0]}").schema_arrow
    batch = next(batches, None)
    while batch is not None:
        name = f"{date}/compacted-{uuid4().hex[:12]}.parquet"
        file = lake.store.writer(f"{DATA}/{name}")
        rows = 0
        with parquet.ParquetWriter(file, schema, compression="zstd") as out:
            while batch is not None and file.size_bytes < file_bytes:
                out.write_batch(batch)
                rows += batch.num_rows
                batch = next(batches, None)
        file.publish()
        yield name, rows


def _parquet(lake: Lake, name: str) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra.of("a lake", "lake", error) from error
    return parquet.ParquetFile(lake.store.open(name))
