"""Every command that changes something has --dry-run; it changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from strandline.cli.main import main
from strandline.cli.profile_store import Profiles
from strandline.client import NewTopic, Producer
from strandline.client.admin import Admin
from strandline.client.types import ScramChange
from strandline.cluster.node.dev import DevCluster

LOOKING = {
    "broker list", "cluster clients",
    "acl explain", "acl list", "audit tail", "check", "cluster describe", "completion", "config client",
    "config describe", "consume", "dead-letters list", "doctor", "group describe", "group list", "lake files",
    "lake status", "lake verify", "log dump", "log verify", "metadata check", "metadata dump", "metadata history",
    "profile list", "profile show", "quorum describe",
    "quota list", "tier list", "tier verify", "topic describe", "topic list", "topic producers", "topic size",
    "transaction describe", "transaction find-hanging", "transaction list",
    "trace", "upgrade check", "upgrade status", "user list", "why",
}  # fmt: skip
"""These change nothing."""

RUNNING = {
    "bench", "certs dev", "chaos run", "demo", "dev", "node", "sim", "spark lake", "spark run flights-delays",
    "spark run flights-lake", "spark run flights-replay", "spark run flights-weather",
}  # fmt: skip
"""These are servers and jobs, on what they make themselves."""


def commands(group: click.Group, at: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        assert one is not None
        if isinstance(one, click.Group):
            yield from commands(one, (*at, name))
        else:
            yield " ".join((*at, name)), one


def test_every_command_that_changes_something_has_it() -> None:
    found = dict(commands(main))
    with_it = {name for name, one in found.items() if any("--dry-run" in option.opts for option in one.params)}
    assert found.keys() - with_it - LOOKING - RUNNING == set()
    assert (LOOKING | RUNNING) - found.keys() == set()


@pytest.fixture
def admin(cluster: DevCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    """Of one partition, three replicas."""
    name = f"dry-{os.getpid()}-{request.node.name}"
    admin.create_topics([NewTopic(name, 1, 3)])
    return name


def run(*words: str) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_profiles_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    profiles = Profiles({"XDG_CONFIG_HOME": str(tmp_path)})
    said = run("profile", "create", "one", "-b", "127.0.0.1:9", "--dry-run")
    assert "profile one would be created, and in use from then on" in said
    assert profiles.names() == []
    for name in ("one", "two"):
        run("profile", "create", name, "-b", "127.0.0.1:9")
    before = profiles.load("two")
    assert "would change profile two" in run("profile", "set", "client.id=mine", "--dry-run")
    assert "profile one would be in use" in run("profile", "use", "one", "--dry-run")
    assert "would delete profile two" in run("profile", "delete", "two", "--dry-run")
    assert (profiles.load("two"), profiles.current) == (before, "two")


def test_users_stay_as_they_are(cluster: DevCluster, admin: Admin) -> None:
    at = ("-b", cluster.bootstrap)
    admin.alter_scram_credentials({"dora": [ScramChange("SCRAM-SHA-256", "secret")]})
    before = admin.describe_scram_credentials()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PASSWORD_OF_DORA", "another")
        said = run("user", "set", "dora", "--password-env", "PASSWORD_OF_DORA", "--dry-run", *at)
    assert "dora, a user already, would have a new password" in said
    assert "could not log in any more by SCRAM-SHA-256" in run("user", "delete", "dora", "--dry-run", *at)
    assert admin.describe_scram_credentials() == before


def test_a_lake_stays_as_it_is(cluster: DevCluster, topic: str, tmp_path: Path) -> None:
    at, place = ("-b", cluster.bootstrap), tmp_path / "lake"
    for number in range(3):
        with Producer(cluster.bootstrap) as producer:
            producer.send(topic, f"record {number}".encode())
        if not number:
            assert "would export 1 offset of" in run("lake", "export", topic, "--to", str(place), "--dry-run", *at)
            assert not place.exists()
        run("lake", "export", topic, "--to", str(place), *at)
    files = sorted(place.rglob("*"))
    assert "small files would be joined" in run("lake", "compact", str(place), "--dry-run")
    assert sorted(place.rglob("*")) == files


def test_a_replica_stays_where_it_is(cluster: DevCluster, admin: Admin, topic: str) -> None:
    [one] = [place for place in admin.describe_log_dirs([1])[1] if place.error is None]
    words = ("log", "move", topic, "0", "--broker", "1", "--dry-run", "-b", cluster.bootstrap, "--to")
    assert f"it is in {one.path}" in run(*words, one.path)
    done = CliRunner().invoke(main, [*words, str(Path(one.path) / "elsewhere")])
    assert done.exit_code == 1
    assert f"its directories: {one.path}" in done.output
