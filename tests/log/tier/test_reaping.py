"""Objects without a segment: found, judged by the metadata twice, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from strandline.log.object_store import ObjectStore
from strandline.log.tier.names import partition_prefix, segment_key
from strandline.log.tier.reaping import Orphan, Reason, find_orphans, reap
from tests.log.helpers import TOPIC_ID
from tests.log.tier.stores import Simulated, chunked

KEPT, LEFT, GONE = UUID(int=1), UUID(int=2), UUID(int=77)


def key(topic_id: UUID, segment_id: UUID, suffix: str = ".log", cluster_id: str = "c") -> str:
    return segment_key(partition_prefix(cluster_id, "t", topic_id, 0), 5, segment_id, suffix)


def metadata(topic_id: UUID, partition: int) -> frozenset[UUID] | None:
    """One topic with one segment."""
    return frozenset({KEPT}) if topic_id == TOPIC_ID else None


async def fill_store(store: ObjectStore) -> None:
    for name in (
        key(TOPIC_ID, KEPT),
        key(TOPIC_ID, KEPT, ".index"),
        key(TOPIC_ID, LEFT),
        key(TOPIC_ID, LEFT, ".index"),
        key(GONE, KEPT),
        key(TOPIC_ID, LEFT, cluster_id="other"),
        "c/README",
    ):
        await store.put(name, chunked(b"abc", 3), 3)


async def orphans(store: ObjectStore) -> dict[str, Orphan]:
    return {found.key: found async for found in find_orphans(store, "c", metadata)}


async def reaped(store: ObjectStore, known: Any = metadata, deleted: tuple[UUID, ...] = ()) -> Any:
    return await reap(store, find_orphans(store, "c", metadata), known, deleted)


def on(bench: Simulated, work: Coroutine[Any, Any, None]) -> None:
    bench.run(work)


def test_what_the_metadata_do_not_name_is_found() -> None:
    """With the reason; the objects of another cluster are none of ours."""
    bench = Simulated()

    async def main() -> None:
        store = bench.store()
        await fill_store(store)
        found = await orphans(store)
        assert {name: orphan.reason for name, orphan in found.items()} == {
            key(TOPIC_ID, LEFT): Reason.NOT_NAMED,
            key(TOPIC_ID, LEFT, ".index"): Reason.NOT_NAMED,
            key(GONE, KEPT): Reason.UNKNOWN_TOPIC,
            "c/README": Reason.FOREIGN,
        }
        assert found[key(GONE, KEPT)].topic_id == GONE

    on(bench, main())
    bench.close()


def test_an_unknown_topic_goes_by_evidence_alone() -> None:
    """Metadata that were lost know of no topic."""
    bench = Simulated()

    async def main() -> None:
        store = bench.store()
        await fill_store(store)
        done = await reaped(store)
        assert (done.deleted, done.deleted_bytes, done.kept, done.failed) == (2, 6, 2, 0)
        assert key(GONE, KEPT) in bench.sim.objects
        done = await reaped(store, deleted=(GONE,))
        assert (done.deleted, done.kept) == (1, 1)
        assert set(bench.sim.objects) == {
            key(TOPIC_ID, KEPT),
            key(TOPIC_ID, KEPT, ".index"),
            key(TOPIC_ID, LEFT, cluster_id="other"),
            "c/README",
        }

    on(bench, main())
    bench.close()


def test_the_metadata_are_asked_again_before_an_object_goes() -> None:
    """A segment was added since the listing saw it: it stays."""
    bench = Simulated()

    async def main() -> None:
        store = bench.store()
        await fill_store(store)
        done = await reaped(store, known=lambda topic_id, partition: frozenset({KEPT, LEFT}))
        assert key(TOPIC_ID, LEFT) in bench.sim.objects
        assert done.kept == 4

    on(bench, main())
    bench.close()


def test_what_cannot_be_deleted_is_left_to_the_next_round() -> None:
    bench = Simulated()

    async def main() -> None:
        store = bench.store()
        await fill_store(store)
        bench.sim.faults.deletes_refused = 1.0
        done = await reaped(store)
        assert (done.deleted, done.failed) == (0, 2)
        bench.sim.heal()
        assert (await reaped(store)).deleted == 2

    on(bench, main())
    bench.close()
