"""A topic whose cluster is lost, restored into the cluster of a run: what its new producers are told is written, is
(rule B27).

The lost cluster is another one, of one node. Its producers' first batches are like those of any new producer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, suppress

from strandline.chaos.live.target import ChaosTarget, client_settings, pause
from strandline.client import Admin, Consumer, Producer
from strandline.client.settings import AdminSettings
from strandline.client.types import LATEST_TIERED, NewTopic
from strandline.cluster.node.dev import DevCluster
from strandline.log.object_store import open_store
from strandline.log.tier.restoring import StoredTopic, bring, find_stored_topics
from strandline.proto.errors import StrandlineError
from strandline.tools.tier_restore import MEANWHILE, Wanted, create, wait_until_served

LOST_PRODUCERS = 30
"""Each sends one record. Theirs are the first ids of a cluster."""

RECORD_BYTES = 4_000
TIERED = 15
"""Records that are in the store before the cluster is lost; segments of them are closed sooner than that."""

WAIT_S = 30.0
POLL_S = 0.1
SEND_S = 30.0
REQUEST_MS = 30_000
PATIENCE: AdminSettings = {"request_timeout_ms": REQUEST_MS, "default_api_timeout_ms": 2 * REQUEST_MS}
_LOST_TOPIC = {"remote.storage.enable": "true", "segment.bytes": "50000", "local.retention.ms": "300"}
_OFTEN = {"remote.log.manager.task.interval.ms": "100", "log.retention.check.interval.ms": "200"}


def restore_then_produce(target: ChaosTarget, url: str, topic: str) -> tuple[int, list[bytes]]:
    """Lose a cluster whose topic is in the store at `url`, restore it, write to it, read it, and delete it.

    Returns:
        How many records were acknowledged after the restore, and those of them that are not there.

    Raises:
        StrandlineError, OSError: it did not come to that.
    """
    _fill(url, topic)
    settings = client_settings(target.client_properties)
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(target.responsive, **PATIENCE, **settings))
        # Each broker gives ids of a block of its own; a client asks the one that it knows first.
        brokers = target.responsive.split(",")
        producers = [stack.enter_context(Producer(broker, **settings)) for broker in brokers]
        for producer in producers:
            producer.producer_id()  # it has one from before
        _restore(admin, url, topic)
        producers += [stack.enter_context(Producer(broker, **settings)) for broker in brokers]
        acked: list[bytes] = []
        try:
            for number, producer in enumerate(producers):
                acked += _send(producer, topic, b"producer %d" % number)
            with Consumer(target.responsive, **settings) as consumer:
                found = _read(consumer, topic)
        finally:
            with suppress(StrandlineError):
                admin.delete_topics([topic])
    return len(acked), [value for value in acked if value not in found]


def _fill(url: str, topic: str) -> None:
    lost = DevCluster(nodes=1, settings={"remote.log.storage.url": url, **_OFTEN})
    with lost, Admin(lost.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, _LOST_TOPIC)])
        for _ in range(LOST_PRODUCERS):
            with Producer(lost.bootstrap) as producer:
                producer.send(topic, b"." * RECORD_BYTES, partition=0).result(SEND_S)
        deadline = time.monotonic() + WAIT_S
        while next(iter(admin.list_offsets({(topic, 0): LATEST_TIERED}).values())).offset < TIERED:
            if time.monotonic() > deadline:
                raise StrandlineError(f"{topic} of the cluster that is to be lost did not come to the store")
            pause(POLL_S)


def _restore(admin: Admin, url: str, topic: str) -> None:
    own = admin.describe_cluster().cluster_id or ""
    stored = asyncio.run(_brought(url, topic, own))
    wanted = Wanted(1, 3, {**MEANWHILE, "min.insync.replicas": "2"}, allow_loss=False)
    create(admin, stored, wanted)
    wait_until_served(admin, stored, WAIT_S)


async def _brought(url: str, topic: str, own: str) -> StoredTopic:
    store = open_store(url, {}, timeout_ms=REQUEST_MS, make=False)
    try:
        [stored] = await find_stored_topics(store, topic, _told)
        await bring(store, store, stored, own, is_same_store=True, report=_told)
    finally:
        await store.close()
    return stored


def _told(done: int, total: int) -> None:
    """Nobody watches."""


def _send(producer: Producer, topic: str, label: bytes) -> list[bytes]:
    """Three batches of one record each: their first sequences are those of any new producer. What was acknowledged."""
    values = [b"%b, record %d" % (label, number) for number in range(3)]
    for value in values:
        producer.send(topic, value, partition=0).result(SEND_S)
    return values


def _read(consumer: Consumer, topic: str) -> set[bytes | None]:
    consumer.assign([(topic, 0)])
    consumer.seek_to_beginning()
    [end] = consumer.end_offsets([(topic, 0)]).values()
    found: set[bytes | None] = set()
    deadline = time.monotonic() + WAIT_S
    while consumer.position((topic, 0)) < end:
        if time.monotonic() > deadline:
            raise StrandlineError(f"{topic} was not read up to its end, {end}")
        found |= {record.value for record in consumer.poll(0.5)}
    return found
