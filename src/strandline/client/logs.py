"""Loggers of the clients: the standard library's, below `strandline.client`.

A library must not configure logging, and structlog, which the nodes use, belongs to the program that runs. So
nothing shows until the program says so (`logging.basicConfig`), and then in its own format. An INFO is how things go in
a cluster that changes, a WARNING what may surprise (records passed over, a broker that is gone), an ERROR an end:
records that were not written, a member that is none any more.
"""

from __future__ import annotations

import logging

from strandline.client.errors import TransactionAbortable

log = logging.getLogger("strandline.client")
"""Logger for what belongs to no part of a client."""
network = logging.getLogger("strandline.client.network")
metadata = logging.getLogger("strandline.client.metadata")
producer = logging.getLogger("strandline.client.producer")
consumer = logging.getLogger("strandline.client.consumer")
group = logging.getLogger("strandline.client.group")


def records_of(partition: object, count: int) -> str:
    """`1 record of orders-0 was`, `2 records of orders-0 were`."""
    return f"1 record of {partition} was" if count == 1 else f"{count} records of {partition} were"


def not_written(partition: object, count: int, error: Exception) -> None:
    """Tell of records that were not written: what an abort takes along, its caller has taken back."""
    level = logging.DEBUG if isinstance(error, TransactionAbortable) else logging.ERROR
    producer.log(level, "%s not written: %s", records_of(partition, count), error)
