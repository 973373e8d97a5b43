"""Topics for the tests of rows, made and known by every broker before they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from strandline.client import EARLIEST, LATEST, Admin, Consumer, ConsumerRecord, NewTopic
from tests.rows.helpers import eventually


def create(
    bootstrap: str,
    name: str,
    partitions: int = 1,
    replication: int = -1,
    *,
    replicas: Sequence[Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create a topic, with these replicas for each partition if given; returns once every broker tells its leaders."""
    if replicas is not None:
        topic = NewTopic(name, configs=configs or {}, replica_assignment=dict(enumerate(replicas)))
    else:
        topic = NewTopic(name, partitions, replication, configs or {})
    with Admin(bootstrap) as admin:
        admin.create_topics([topic])
    for address in bootstrap.split(","):
        with Admin(address) as admin:
            eventually(partial(_led, admin, name))


def _led(admin: Admin, name: str) -> bool:
    if name not in admin.list_topics():
        return False
    [topic] = admin.describe_topics([name])
    return all(part.leader is not None for part in topic.partitions)


def drain(bootstrap: str, topic: str, partitions: int, timeout_s: float = 30.0) -> list[ConsumerRecord]:
    """Every committed record of a topic."""
    every = [(topic, number) for number in range(partitions)]
    with Admin(bootstrap) as admin:
        first = admin.list_offsets(dict.fromkeys(every, EARLIEST))
        last = admin.list_offsets(dict.fromkeys(every, LATEST))
    count = sum(last[place].offset - first[place].offset for place in last)
    records: list[ConsumerRecord] = []
    with Consumer(bootstrap, auto_offset_reset="earliest", max_poll_records=10_000) as consumer:
        consumer.assign(every)

        def all_read() -> bool:
            records.extend(consumer.poll(1))
            return len(records) >= count

        eventually(all_read, timeout_s, pause_s=0)
    return records
