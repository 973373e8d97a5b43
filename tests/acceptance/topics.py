"""Topics for the tests of rows, made and known by every broker before they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.client import EARLIEST, LATEST, Admin, Consumer, ConsumerRecord, NewTopic
from tests.acceptance.helpers import eventually, wait_led


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
    wait_led(bootstrap, name)


def drain(bootstrap: str, topic: str, partitions: int, timeout_s: float = 60.0) -> list[ConsumerRecord]:
    """Every record of a topic that is committed at this moment: one of acks=0 or 1 may not be yet."""
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
