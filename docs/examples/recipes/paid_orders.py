"""Paid orders alone, without their card numbers, in a topic of twelve partitions by customer.

python paid_orders.py 127.0.0.1:9092 orders orders.paid
"""

from __future__ import annotations

import json
import sys

from strandline.client import ConsumerRecord
from strandline.tools.copy import copy_topic


def paid_without_card(record: ConsumerRecord) -> ConsumerRecord | None:
    order = json.loads(record.value)
    if not order["paid"]:
        return None
    del order["card"]
    return record._replace(key=order["customer"].encode(), value=json.dumps(order).encode())


if __name__ == "__main__":
    sys.stdout.write(f"{copy_topic(*sys.argv[1:], transform=paid_without_card, partitions=12)}\n")
