"""A ledger whose only truth is the topic of its events. Balances are what comes out when the events are read.

python accounts.py decide 127.0.0.1:9092                         bookings become events, until somebody stops it
python accounts.py balances 127.0.0.1:9092 --state balances.json read what is new, and keep the result
python accounts.py balances 127.0.0.1:9092 --as-of 120           the balances before offset 120
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strandline.client import Consumer, Producer

BOOKINGS, EVENTS = "bookings", "events"
"""Topics: of what somebody asks for, and of what has happened. One partition each; the events are kept for ever."""

Balances = dict[str, int]


def apply(balances: Balances, event: dict[str, Any]) -> None:
    """Change the balances as the event says. An event says what has happened, so there is nothing to decide here."""
    for account, cents in event["changes"].items():
        balances[account] = balances.get(account, 0) + cents


def decided(balances: Balances, booking: dict[str, Any]) -> dict[str, Any]:
    """The event that a booking becomes: refused, if an account would fall below zero."""
    changes = booking["changes"]
    short = [name for name, cents in changes.items() if cents < 0 and balances.get(name, 0) + cents < 0]
    kind = "refused" if short else "booked"
    return {"booking": booking["id"], "kind": kind, "changes": {} if short else changes, "short": short}


def events(bootstrap: str, first: int = 0, before: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Offset and event of everything that is committed now, or before an offset."""
    part = (EVENTS, 0)
    with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="none") as consumer:
        consumer.assign([part])
        consumer.seek(part, first)
        [end] = consumer.end_offsets([part]).values()
        end = end if before is None else min(end, before)
        while consumer.position(part) < end:
            for record in consumer.poll(1.0):
                if record.offset < end:
                    yield record.offset, json.loads(record.value)


def decide(bootstrap: str) -> None:
    """Turn bookings into events, each of them once. What goes wrong ends it: the next start knows all that counts."""
    reading = {"group_id": "accounts", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    with Producer(bootstrap, transactional_id="accounts") as producer, Consumer(bootstrap, **reading) as consumer:
        producer.init_transactions()  # whoever decided before can add nothing more; what it left open is aborted
        balances: Balances = {}
        for _, event in events(bootstrap):  # so these are all of the events
            apply(balances, event)
        consumer.assign([(BOOKINGS, 0)])
        while True:
            bookings = consumer.poll(1.0)
            if not bookings:
                continue
            with producer.transaction():
                for record in bookings:
                    event = decided(balances, json.loads(record.value))
                    apply(balances, event)
                    producer.send(EVENTS, json.dumps(event).encode(), partition=0)
                producer.send_offsets(consumer)


def balances_of(bootstrap: str, state: Path | None = None, as_of: int | None = None) -> Balances:
    """The balances now, or as of an offset. The file saves reading everything again; it may be deleted at any time."""
    balances: Balances = {}
    first = 0
    if state is not None and state.exists():
        kept = json.loads(state.read_text())
        balances, first = kept["balances"], kept["next"]
    for offset, event in events(bootstrap, first, as_of):
        apply(balances, event)
        first = offset + 1
    if state is not None:
        new = state.with_suffix(".new")
        new.write_text(json.dumps({"next": first, "balances": balances}))
        os.replace(new, state)  # the old one or the new one, whenever this is killed
    return balances


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["decide", "balances"])
    parser.add_argument("bootstrap")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--state", type=Path)
    kept.add_argument("--as-of", type=int)
    given = parser.parse_args()
    if given.what == "decide":
        decide(given.bootstrap)
    balances = balances_of(given.bootstrap, given.state, given.as_of)
    json.dump(balances, sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
