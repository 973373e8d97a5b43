"""The pages of a node's HTTP listener."""

from __future__ import annotations

import json
from http import HTTPStatus

from strandline.cluster.node.http.protocol import Commands, Page, Routes
from strandline.cluster.node.http.stacks import stacks_page
from strandline.cluster.node.http.trace import TRACE_PATH, TracePage
from strandline.cluster.node.metrics import CONTENT_TYPE, Metrics
from strandline.cluster.node.observed import ObservedNode

FAULTS_PATH = "/faults"
CLIENTS_PATH = "/clients"


def routes_of(node: ObservedNode, trace: TracePage) -> Routes:
    """Return the pages: /metrics for Prometheus; /healthz: the node need not stop; /readyz: the node is ready; /trace:
    stages of recently traced requests; /stacks: stacks of threads and tasks; /clients: metrics that clients push; with
    fault injection also /faults: the requested faults, and how often each has had an effect."""
    metrics = Metrics(node)
    faults = {} if node.faults is None else {FAULTS_PATH: node.faults.page}
    return {
        **faults,
        TRACE_PATH: trace.page,
        CLIENTS_PATH: lambda: _clients(node),
        "/stacks": stacks_page,
        "/metrics": lambda: Page(metrics.render(), CONTENT_TYPE),
        "/healthz": lambda: _verdict(node, not node.failed.done(), "the node must stop; its log says why"),
        "/readyz": lambda: _verdict(node, node.ready, _why_not_ready(node)),
    }


def commands_of(node: ObservedNode, trace: TracePage) -> Commands:
    """Return the commands: POST /trace traces the stages of produce requests for some time; with fault injection also
    POST /faults."""
    faults = {} if node.faults is None else {FAULTS_PATH: node.faults.command}
    return {**faults, TRACE_PATH: trace.command}


def _clients(node: ObservedNode) -> Page:
    """Make the page of clients that push their metrics to this broker (KIP-714), with the last values of each."""
    telemetry = None if node.broker is None else node.broker.kafka.telemetry
    clients = [
        {
            **instance.client,
            "pushed_ms_ago": round(telemetry.age_ms(instance)),
            "interval_ms": instance.interval_ms,
            "closed": instance.closed,
            "left_out": instance.left_out,
            "metrics": instance.metrics,
        }
        for instance in ([] if telemetry is None else telemetry.instances())
        if telemetry is not None
    ]
    return Page(json.dumps({**node.describe(), "clients": clients}).encode() + b"\n", "application/json")


def _verdict(node: ObservedNode, holds: bool, reason: str) -> Page:
    answer: dict[str, str | int | bool] = {"ok": holds, **node.describe()}
    if not holds:
        answer["reason"] = reason
    status = HTTPStatus.OK if holds else HTTPStatus.SERVICE_UNAVAILABLE
    return Page(json.dumps(answer).encode() + b"\n", "application/json", status)


def _why_not_ready(node: ObservedNode) -> str:
    if node.quorum.leader_and_epoch.leader_id is None:
        return "no leader of the metadata quorum is known: a majority of the controllers must run"
    if node.broker is not None and not node.broker.caught_up:
        return "the broker is replaying the metadata up to its own registration"
    return "the controller has not unfenced this broker yet"
