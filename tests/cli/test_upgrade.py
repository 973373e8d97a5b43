"""`strandline upgrade` against three nodes: what it shows, raises, lowers and refuses (rules A32 to A34)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from strandline.cli.main import main
from strandline.client import Admin
from strandline.client.aio.admin import Admin as AsyncAdmin
from strandline.controller.metadata.features import NEWEST_LEVEL, OWN_LEVELS
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError

Run = Callable[..., Result]
METADATA = "metadata.version"
TRANSACTIONS = "transaction.version"
FIRST = (f"{METADATA}=1", f"{TRANSACTIONS}=0")


@pytest.fixture
def run(cluster: Any) -> Run:
    """Run one command against the cluster."""

    def call(*words: str, expect: int = 0) -> Result:
        told = CliRunner().invoke(main, ("upgrade", *words), env={"STRANDLINE_BOOTSTRAP": cluster.bootstrap})
        assert told.exit_code == expect, (told.output, told.stderr, told.exception)
        return told

    return call


@pytest.fixture
def level(cluster: Any) -> Iterator[Callable[[], int]]:
    """The cluster's metadata.version. Every level is at the newest before, and as it was afterwards."""
    with Admin(cluster.bootstrap) as admin:
        was = admin.describe_features().finalized.get(TRANSACTIONS, 0)

        def newest() -> int:
            """Of the broker that has heard most."""
            told = [admin.describe_features(node) for node in (1, 2, 3)]
            return max(told, key=lambda one: one.epoch or -1).finalized[METADATA]

        newest_levels = {METADATA: NEWEST_LEVEL, TRANSACTIONS: OWN_LEVELS[TRANSACTIONS].last}
        admin.update_features(newest_levels)
        yield newest
        admin.update_features(newest_levels)
        if was != newest_levels[TRANSACTIONS]:
            admin.update_features({TRANSACTIONS: was}, downgrade="safe")


def test_down_and_up_again(run: Run, level: Callable[[], int]) -> None:
    """Each step first as a dry run that changes nothing."""
    assert level() == NEWEST_LEVEL
    assert "nothing to finalize" in run("check").stdout
    dry = run("downgrade", *FIRST, "--dry-run").stdout
    assert f"{METADATA} would go from {NEWEST_LEVEL} to 1." in dry
    assert "It can be left again: safe while" in dry
    assert level() == NEWEST_LEVEL
    assert f"{METADATA} went from {NEWEST_LEVEL} to 1." in run("downgrade", *FIRST).stdout
    assert level() == 1
    newest = str(NEWEST_LEVEL)
    [row] = [line for line in run("status").stdout.splitlines() if METADATA in line]
    assert row.split() == [METADATA, "1", *("1", "to", newest) * 3, newest]
    told = run("check").stdout
    assert "levels of the other features, as records of the metadata log" in told
    assert "Every node is ready" in told
    assert f"would go from 1 to {newest}" in run("finalize", "--dry-run").stdout
    assert level() == 1
    done = json.loads(run("finalize", "--output", "json").stdout)
    assert done == {
        "dry_run": False, "levels": {METADATA: {"was": 1, "is": NEWEST_LEVEL}, TRANSACTIONS: {"was": 0, "is": 2}}
    }  # fmt: skip
    assert level() == NEWEST_LEVEL
    assert f"is at {newest} already" in run("finalize", f"{METADATA}={newest}").stdout
    assert "nothing to finalize" in run("finalize").stdout


def test_status_as_json(run: Run, level: Callable[[], int]) -> None:
    """What each node knows, what is finalized, what is possible and what blocks it."""
    told = json.loads(run("status", "-o", "json").stdout)
    assert told["finalized"] == {
        "eligible.leader.replicas.version": 1, "group.version": 1, "kraft.version": 0, METADATA: level(),
        TRANSACTIONS: 2,
    }  # fmt: skip
    assert set(told["nodes"]) == {"1", "2", "3"}
    known = {name: list(levels) for name, levels in OWN_LEVELS.items()}
    assert all(node == {"supported": known} for node in told["nodes"].values())
    assert (told["possible"], told["blocked"]) == ({}, None)


def test_refused(run: Run) -> None:
    """The sentence of the controller, or of the command."""
    assert "build knows 1 to 3" in run("finalize", f"{METADATA}=25", expect=1).stderr
    assert "ask for a downgrade" in run("finalize", f"{METADATA}=1", expect=1).stderr
    assert "there is no such feature" in run("downgrade", "share.version=0", expect=1).stderr
    assert "is no FEATURE=LEVEL" in run("downgrade", METADATA, expect=2).stderr


def test_the_client_tells_and_changes_levels(cluster: Any) -> None:
    """Of any broker, or of one; both clients are one."""
    with Admin(cluster.bootstrap) as admin:
        told = admin.describe_features(2)
        assert told.supported == {name: tuple(levels) for name, levels in OWN_LEVELS.items()}
        assert told.epoch is not None
        with pytest.raises(KafkaError) as caught:
            admin.update_features({"kraft.version": 2}, dry_run=True)
        assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION
        with pytest.raises(ConfigError, match="no, safe or unsafe"):
            admin.update_features({METADATA: 1}, downgrade="perhaps")  # type: ignore[arg-type]
    assert AsyncAdmin.describe_features.__doc__ == Admin.describe_features.__doc__
