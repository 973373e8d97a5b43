"""Running the suite, and its results as a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from bench.fetched import Unavailable
from rich.table import Table

from interop.clients import Client
from interop.driver import NotSupported
from interop.features import Feature
from interop.security import Authority
from interop.suite import Nodes, World

OK, FAILED, NOT_SUPPORTED, SKIPPED = "ok", "failed", "not supported", "skipped"
SIGNS = {OK: "[green]ok[/]", FAILED: "[bold red]FAILED[/]", NOT_SUPPORTED: "-", SKIPPED: "[yellow]skipped[/]"}

CLIENT_TIMEOUT_S = 900.0
"""How long one client may take over all features together; the rest are failures."""


@dataclass(frozen=True)
class Result:
    """One cell."""

    against: str
    client: str
    feature: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0


def run_client(
    against: str,
    client: Client,
    features: Sequence[Feature],
    bootstrap: str,
    served: frozenset[int],
    say: Callable[[Result], None],
    authority: Authority | None = None,
    nodes: Nodes | None = None,
) -> list[Result]:
    """Each feature with one client; a fresh process of it for each."""
    try:
        start = client.get()
    except Unavailable as reason:
        return [Result(against, client.name, each.name, SKIPPED, str(reason)) for each in features]
    results = []
    deadline = time.monotonic() + CLIENT_TIMEOUT_S
    world = World(bootstrap, served, lambda login: start(bootstrap, login), authority, nodes)
    for feature in features:
        if time.monotonic() > deadline:
            result = Result(against, client.name, feature.name, FAILED, f"no time left of {CLIENT_TIMEOUT_S:.0f} s")
        else:
            result = run_feature(against, client, feature, world)
        say(result)
        results.append(result)
    world.close()
    return results


def run_feature(against: str, client: Client, feature: Feature, world: World) -> Result:
    """One cell. The client's process lives on where the feature passed."""
    absent = sorted(feature.needs - world.served)
    if absent:
        return Result(against, client.name, feature.name, SKIPPED, f"the broker does not serve API {absent[0]}")
    began = time.monotonic()
    outcome, reason = FAILED, ""
    try:
        feature.check(world)
        outcome = OK
    except NotSupported as lacking:
        outcome, reason = NOT_SUPPORTED, str(lacking)
    except Unavailable as missing:
        outcome, reason = SKIPPED, str(missing)
    except Exception as failure:  # whatever a client or its tool does, the next feature is tried
        reason = f"{type(failure).__name__}: {failure}"
    if outcome != OK:
        world.close()
    return Result(against, client.name, feature.name, outcome, reason, round(time.monotonic() - began, 2))


def table(against: str, results: Sequence[Result]) -> Table:
    """Features down, clients across."""
    clients = list(dict.fromkeys(each.client for each in results))
    cells = {(each.client, each.feature): each.outcome for each in results}
    drawn = Table(title=f"against {against}")
    drawn.add_column("feature", no_wrap=True)
    for client in clients:
        drawn.add_column(client, justify="center", no_wrap=True)
    for feature in dict.fromkeys(each.feature for each in results):
        drawn.add_row(feature, *(SIGNS.get(cells.get((client, feature), ""), "") for client in clients))
    return drawn


def reasons(results: Sequence[Result]) -> list[str]:
    """A line for each cell that is not ok; one for all cells of a client with one reason."""
    lines: dict[tuple[str, str, str, str], list[str]] = {}
    for each in results:
        if each.outcome != OK:
            lines.setdefault((each.against, each.client, each.outcome, each.reason), []).append(each.feature)
    return [
        f"{against} / {client}: {outcome}: {reason} ({', '.join(features) if len(features) < 9 else 'many features'})"
        for (against, client, outcome, reason), features in lines.items()
    ]


def differences(results: Sequence[Result]) -> list[str]:
    """The cells in which two clusters, both tried, are not alike."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for each in results:
        if each.outcome != SKIPPED:
            found.setdefault((each.client, each.feature), {})[each.against] = each.outcome
    return [
        f"{client}: {feature}: " + ", ".join(f"{against} {outcome}" for against, outcome in outcomes.items())
        for (client, feature), outcomes in found.items()
        if len(set(outcomes.values())) > 1
    ]


def as_json(results: Sequence[Result]) -> list[dict[str, object]]:
    return [asdict(each) for each in results]
