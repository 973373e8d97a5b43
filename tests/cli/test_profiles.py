"""Profiles of clusters: what is kept, what counts, and that no secret is shown."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from strandline.cli.common import Target, target_options
from strandline.cli.main import main
from strandline.cli.profile_store import DEFAULT_BOOTSTRAP, Profiles
from strandline.proto.errors import ConfigError
from strandline.proto.secrets import resolved

SECRET = "open-sesame"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory of settings, empty; no settings in the environment."""
    for name in ("STRANDLINE_PROFILE", "STRANDLINE_BOOTSTRAP", "STRANDLINE_COMMAND_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "strandline"


def run(*arguments: str, ok: bool = True) -> Result:
    result = CliRunner().invoke(main, ["profile", *arguments])
    assert (result.exit_code == 0) is ok, result.output
    return result


def target(*arguments: str) -> Target:
    """Where a command with these options goes."""
    found: list[Target] = []

    @click.command()
    @target_options
    def command(**where: object) -> None:
        found.append(Target(**where))  # type: ignore[arg-type]

    result = CliRunner().invoke(command, arguments)
    if result.exit_code:
        raise click.UsageError(result.output)
    return found[0]


def staging() -> None:
    options = ("-X", "security.protocol=SASL_SSL", "-X", "sasl.mechanism=PLAIN", "-X", f"sasl.password={SECRET}")
    run("create", "staging", "-b", "there:9093", *options)


def test_without_profiles_everything_is_as_it_was() -> None:
    assert target() == Target(DEFAULT_BOOTSTRAP, {})
    assert "no profiles yet" in run("list").output
    assert "no profile is in use" in run("show", ok=False).output


def test_the_profile_in_use_counts_and_options_win() -> None:
    """-b and -X win over it; --profile names another."""
    staging()
    run("create", "dev", "-b", "here:9092")
    assert target() == Target("here:9092", {})
    run("use", "staging")
    there = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": SECRET}
    assert target() == Target("there:9093", there)
    assert target("-b", "else:1", "-X", "sasl.mechanism=SCRAM-SHA-256") == Target(
        "else:1", {**there, "sasl.mechanism": "SCRAM-SHA-256"}
    )
    assert target("--profile", "dev") == Target("here:9092", {})
    run("use", "--none")
    assert target() == Target(DEFAULT_BOOTSTRAP, {})


def test_a_file_of_settings_stands_instead(tmp_path: Path) -> None:
    """--command-config: the profile in use has no part in it, and naming both is an error, whatever the order."""
    staging()
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:9092\nrequest.timeout.ms=5000\n")
    assert target("--command-config", str(file)) == Target("file:9092", {"request.timeout.ms": "5000"})
    both = ["--profile", "staging"], ["--command-config", str(file)]
    for first, second in (both, both[::-1]):
        with pytest.raises(click.UsageError, match="one or the other"):
            target(*first, *second)


def test_what_is_kept_is_its_owners_alone_and_not_shown(home: Path) -> None:
    staging()
    path = home / "profiles" / "staging.properties"
    assert f"sasl.password={SECRET}" in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    shown = [run("show").output, run("show", "staging", "--output", "json").output, run("list").output]
    assert not any(SECRET in text for text in shown)
    assert json.loads(shown[1])["settings"]["sasl.password"] == "[hidden]"
    assert list(path.parent.iterdir()) == [path]


def test_files_keep_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile counts in every directory, and a relative name would mean another file in each."""
    monkeypatch.chdir(tmp_path)
    run("create", "staging", "-b", "there:9093", "-X", "ssl.truststore.location=certs/ca.pem")
    run("set", "ssl.keystore.location=${env:KEYSTORE}")
    monkeypatch.chdir("/")
    assert Profiles().load("staging") == {
        "bootstrap.servers": "there:9093",
        "ssl.truststore.location": f"{tmp_path}/certs/ca.pem",
        "ssl.keystore.location": "${env:KEYSTORE}",
    }


def test_settings_are_checked_changed_and_deleted() -> None:
    """A setting that no client has, a value that cannot be, a name that is a path: nothing is written."""
    for pair in ("no.such.setting=1", "request.timeout.ms=soon", "security.protocol=SECRET"):
        run("create", "bad", "-X", pair, ok=False)
    run("create", "../bad", ok=False)
    assert Profiles().names() == []
    run("create", "dev", "-b", "here:9092", "-X", "acks=all")
    run("create", "dev", ok=False)
    run("set", "bootstrap.servers=here:9093", "acks=")
    assert Profiles().load("dev") == {"bootstrap.servers": "here:9093"}
    run("delete", "dev")
    assert Profiles().current is None
    run("delete", "dev", ok=False)
    with pytest.raises(click.UsageError, match="none yet"):
        target("--profile", "dev")


def test_a_password_in_the_keyring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """${keyring:SERVICE:USER}: of the operating system's store, here a file."""
    keyring = pytest.importorskip("keyring", reason="the library keyring is not installed: pip install keyring")
    file = pytest.importorskip("keyrings.alt.file", reason="pip install keyrings.alt")
    store = file.PlaintextKeyring()
    store.file_path = str(tmp_path / "keyring.cfg")
    before = keyring.get_keyring()
    keyring.set_keyring(store)
    try:
        with pytest.raises(ValueError, match="keyring set strandline alice"):
            resolved("${keyring:strandline:alice}")
        keyring.set_password("strandline", "alice", SECRET)
        assert resolved("${keyring:strandline:alice}") == SECRET
    finally:
        keyring.set_keyring(before)
    with pytest.raises(ValueError, match="lacks the name"):
        resolved("${keyring:strandline}")


def test_a_value_that_no_line_can_hold() -> None:
    with pytest.raises(ConfigError, match="one line"):
        Profiles().save("dev", {"sasl.password": "a\nb"})
