"""Order intake, what is done later: a group for payments, one for e-mails. Each does its work for every accepted order.

python intake_worker.py 127.0.0.1:9092 payments payments.db
"""

from __future__ import annotations

import json
import sqlite3
import sys

from intake_accept import DECIDED

from strandline.client import Consumer


def run(bootstrap: str, work: str, path: str) -> None:
    """Do what is to be done for each order, until somebody stops it.

    The database stands for a payment service, or for one that sends mails: it takes an order's id, and does nothing
    when it knows it. So a repeat after a kill does no harm.
    """
    done = sqlite3.connect(path)
    done.execute("create table if not exists done (id text primary key, user text)")
    settings = {"group_id": f"orders.{work}", "group_instance_id": f"{work}-1", "enable_auto_commit": False}
    with Consumer(bootstrap, **settings, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.subscribe(DECIDED)
        while True:
            orders = [json.loads(record.value) for record in consumer.poll(1.0)]
            with done:
                for order in orders:
                    if order["accepted"]:
                        done.execute("insert or ignore into done values (?, ?)", (order["id"], order["user"]))
            if orders:
                consumer.commit()


if __name__ == "__main__":
    run(*sys.argv[1:])
