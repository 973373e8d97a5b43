"""What access control costs: `python -m bench.access`.

Three nodes with TLS everywhere and a client with a certificate, in two layouts that take turns, each with a new
cluster: without an authorizer, and with Kafka's StandardAuthorizer and 1,000 entries, a few of which are the client's.
Measured are the CPU that the nodes take idle, for each record of 1,000 a second, and for each MB of full batches; and
in this process what one question to the authorizer takes.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click

from bench.clusters import cpu_seconds
from bench.measures import PARTITIONS, WARM_UP_S, ack_latency, create_topic, produce_load, rounds_of
from bench.secured import own_settings, reached_by
from strandline.client import AclBinding, Admin, Operation, PatternType, Permission, ResourceKind
from strandline.cluster.broker.request import Peer, RequestContext
from strandline.cluster.broker.standard_authorizer import StandardAuthorizer
from strandline.cluster.node.dev import DevCluster
from strandline.cluster.node.settings import STANDARD_AUTHORIZER
from strandline.cluster.security.dev_certificates import DevCa, client_properties
from strandline.proto.acls import Resource
from strandline.proto.system import SystemClock

CLIENT, TOPIC = "alice", "access"
ENTRIES = 1_000
PER_S = 1_000
SECONDS = 15.0
IDLE_S = 15.0
BATCHED, SIZE = 200_000, 1_000
QUESTIONS = 200_000

LAYOUTS: Mapping[str, Mapping[str, str]] = {
    "no authorizer": {},
    f"{ENTRIES:,} ACLs": {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:dev",
    },
}
SHORT_NAMES = {"ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/"}


def entries() -> list[AclBinding]:
    """Of strangers, and of the client."""

    def allow(principal: str, name: str, operation: Operation) -> AclBinding:
        where = (ResourceKind.TOPIC, name, PatternType.LITERAL)
        return AclBinding(*where, f"User:{principal}", "*", operation, Permission.ALLOW)

    own = [allow(CLIENT, TOPIC, operation) for operation in (Operation.WRITE, Operation.DESCRIBE)]
    return own + [allow(f"user-{n}", f"topic-{n}", Operation.READ) for n in range(ENTRIES - len(own))]


def measure(settings: Mapping[str, str]) -> dict[str, float]:
    """One new cluster."""
    figures: dict[str, float] = {}
    with DevCluster(secure=True, settings={**SHORT_NAMES, **settings}) as cluster:
        reached_by(cluster.client_properties)
        try:
            create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
            if settings:
                with Admin(cluster.bootstrap, **own_settings()) as admin:
                    admin.create_acls(entries())
            reached_by(_properties(cluster.root))
            pids = cluster.pids()
            ack_latency(cluster.bootstrap, TOPIC, PER_S, 1.0)
            before = cpu_seconds(pids)
            time.sleep(IDLE_S)
            figures["idle, CPU a node, ms/s"] = (cpu_seconds(pids) - before) / len(pids) / IDLE_S * 1e3
            before = cpu_seconds(pids)
            times = ack_latency(cluster.bootstrap, TOPIC, PER_S, SECONDS)
            spent = cpu_seconds(pids) - before
            figures[f"at {PER_S}/s, CPU a node, us a record"] = (
                spent / len(pids) / (PER_S * (SECONDS + WARM_UP_S)) * 1e6
            )
            figures[f"at {PER_S}/s, p50 ms"] = times[len(times) // 2]
            produce_load(cluster.bootstrap, TOPIC, SIZE, BATCHED // 10)
            before = cpu_seconds(pids)
            produce_load(cluster.bootstrap, TOPIC, SIZE, BATCHED)
            spent = cpu_seconds(pids) - before
            figures["full batches, CPU a node, ms/MB"] = spent / len(pids) / (BATCHED * SIZE / 1e6) * 1e3
        finally:
            reached_by(None)
    return figures


def _properties(root: Path) -> Path:
    """Of a client with a certificate of its own, which is no super user."""
    ca = DevCa(root / "certs")
    path = root / f"{CLIENT}.properties"
    path.write_text(client_properties(ca.file, ca.client(CLIENT)))
    return path


def question_us() -> tuple[float, float]:
    """Microseconds of one question: that was asked before, and that is decided anew."""
    acls = dict.fromkeys(entries())
    context = RequestContext(Peer("CLIENTS", "127.0.0.1", f"User:{CLIENT}"), "c", "Produce", 9, 1, 0.0)
    actions = [(Operation.WRITE, Resource(ResourceKind.TOPIC, TOPIC))]
    authorizer = StandardAuthorizer(lambda: acls, SystemClock())
    again = timeit.timeit(lambda: authorizer.authorize(context, actions), number=QUESTIONS)
    strangers = [[(Operation.WRITE, Resource(ResourceKind.TOPIC, f"asked-{n}"))] for n in range(5_000)]
    anew = timeit.timeit(lambda: [authorizer.authorize(context, one, noted=False) for one in strangers], number=1)
    return again / QUESTIONS * 1e6, anew / len(strangers) * 1e6


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True)
def main(rounds: int) -> None:
    rounds_of(rounds, {name: partial(measure, settings) for name, settings in LAYOUTS.items()})
    again, anew = question_us()
    click.echo(f"one question to the authorizer: {again:.2f} us where it was asked before, {anew:.2f} us decided anew")


if __name__ == "__main__":
    main()
