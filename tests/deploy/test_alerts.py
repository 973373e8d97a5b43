"""Alerts, runbooks and dashboards of deploy/, held against each other and against what a running node exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from strandline.cluster.node.dev import DevCluster

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "alerts.yml"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
SERIES = Path(__file__).parent / "alerts_test.yml"

OF_PROMETHEUS = {"up", "ALERTS"}
"""What Prometheus itself says of its targets and alerts."""

PARTS = ("**It means:**", "**Look at:**", "**Type:**", "**Over:**")

GRID_WIDTH = 24


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def sections() -> dict[str, str]:
    """Heading of each alert's section in the runbooks, and its text."""
    _, *parts = re.split(r"^### ", RUNBOOKS.read_text(), flags=re.MULTILINE)
    return {part.partition("\n")[0]: re.split(r"^## ", part, flags=re.MULTILINE)[0] for part in parts}


def dashboard(path: Path) -> dict[str, Any]:
    board = json.loads(path.read_text())
    assert isinstance(board, dict)
    return board


def queries(path: Path) -> Iterator[tuple[str, str]]:
    """(where, expression) of each query of a dashboard, its variables' among them; variables filled in."""
    board = dashboard(path)
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$job", "strandline")
            yield panel["title"], re.sub(r"\$\w+", ".*", expression)
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def metrics_in(expression: str) -> set[str]:
    """Names of metrics in an expression, as a node exports them."""
    bare = re.sub(r'"[^"]*"', "", expression)
    names = re.findall(r"\b(?:(?:strandline|kafka|process|event_loop)_\w+|up|ALERTS)\b", bare)
    return {
        re.sub(r"_(bucket|sum|count)$", "", name) if "timems" in name or "_seconds_" in name else name for name in names
    }


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for path in DASHBOARDS:
        for where, expression in queries(path):
            yield f"{path.name}: {where}", expression


def test_each_alert_has_its_runbook_and_each_runbook_its_alert() -> None:
    """By the link in the alert; each section says what it means, what to look at, what to type, when it is over."""
    alerts, found = rules(), sections()
    assert len(alerts) > 20
    assert [rule["alert"] for rule in alerts] == list(found)
    for rule in alerts:
        name = rule["alert"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
        assert rule["annotations"]["summary"].endswith((".", "log."))
        assert rule["labels"]["severity"] in ("critical", "warning")
        positions = [found[name].find(part) for part in PARTS]
        assert -1 not in positions
        assert positions == sorted(positions), name
        [block] = re.findall(r"```sh\n(.*?)```", found[name], re.DOTALL)
        assert block.strip()


def test_every_metric_that_is_asked_for_is_exported(cluster: DevCluster) -> None:
    """By a running node; or, of what only some nodes have (TLS, an object store, quotas), by name in the code."""
    exported = set()
    for node_id in cluster.node_ids:
        with urllib.request.urlopen(f"http://{cluster.http(node_id)}/metrics") as answer:
            exported |= set(re.findall(r"^# TYPE (\S+)", answer.read().decode(), re.MULTILINE))
    source = "".join(path.read_text() for path in (ROOT / "src/strandline/cluster/node").glob("metrics_*.py"))
    optional = set(re.findall(r'"(strandline_(?:tier|certificate|audit|throttle)\w*)"', source))
    optional |= {f"{name}_total" for name in optional}
    for where, expression in expressions():
        names = metrics_in(expression)
        assert names, where
        assert names <= exported | optional | OF_PROMETHEUS, (where, names - exported - optional)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_one_that_grafana_takes(path: Path) -> None:
    """Its name is its file's, ids are unique, panels stand beside each other, each says what it shows, and in what."""
    board = dashboard(path)
    assert board["uid"] == path.stem
    assert board["schemaVersion"] >= 36
    names = {variable["name"] for variable in board["templating"]["list"]}
    assert board["templating"]["list"][0]["type"] == "datasource"
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= GRID_WIDTH
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= names, panel["title"]
            assert 'job="$job"' in target["expr"] or "ALERTS" in target["expr"], panel["title"]


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian's package `prometheus` has it)")
    return found


def test_prometheus_takes_the_rules_and_every_query(tmp_path: Path) -> None:
    """Queries of dashboards are given to it as rules: it parses them."""
    program = promtool()
    asked = [expression for path in DASHBOARDS for _, expression in queries(path) if "label_values" not in expression]
    recorded = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(asked)]
    panels = tmp_path / "panels.yml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    done = subprocess.run([program, "check", "rules", ALERTS, panels], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_on_what_they_are_for(tmp_path: Path) -> None:
    """`promtool test rules`, on series of a few alerts: what fires, when, on whom; and what does not."""
    program = promtool()
    given = tmp_path / "series.yml"
    given.write_text(SERIES.read_text().replace("ALERTS", str(ALERTS)))
    done = subprocess.run([program, "test", "rules", given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
