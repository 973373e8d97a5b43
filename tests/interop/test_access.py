"""The judges of secured runs: who comes in where he should not, and who is told nothing, must show."""

from __future__ import annotations

from typing import Any

import pytest
from bench.fetched import Unavailable
from click.testing import CliRunner
from interop.__main__ import main
from interop.clients import CLIENTS
from interop.driver import ClientError, NotSupported, ToolDriver
from interop.features import FEATURES, Feature
from interop.logins import OPEN, Login
from interop.results import SKIPPED, run_client, run_feature
from interop.security import LEVELS
from interop.suite import World, send

from interop import access

BY_NAME = {each.name: each for each in CLIENTS}


class Shown:
    """An authority whose logins say what they are."""

    def main(self) -> Login:
        return OPEN

    def wrong(self, name: str) -> Login:
        return Login(user=name, secret="wrong")

    user = renewed = expired = wrong

    def principal(self, name: str) -> str:
        return name


class Answers(ToolDriver):
    """A client that answers produce in one way."""

    def __init__(self, error: ClientError | None) -> None:
        self._error = error

    def op_produce(self, **_: Any) -> dict[str, Any]:
        if self._error is not None:
            raise self._error
        return {"sent": []}


def judged(monkeypatch: pytest.MonkeyPatch, error: ClientError | None, records: int = 0) -> None:
    """`kept_out`, of a client that answers like this, and a topic that holds so many records afterwards."""
    logins: list[Login] = []

    def start(login: Login) -> Answers:
        logins.append(login)
        return Answers(error)

    monkeypatch.setattr(access, "user_with_rights", lambda _: ("alice", "topic", "group", OPEN))
    monkeypatch.setattr(access, "end_of", lambda *_: records)
    access.kept_out(access.wrong)(World("127.0.0.1:1", frozenset(), start, Shown()))
    assert logins == [Login(user="alice", secret="wrong")]


@pytest.mark.parametrize(
    "error",
    [
        ClientError(58, "refused"),
        ClientError(-1, "sasl_ssl://127.0.0.1:9092/1: SASL authentication error: refused"),
        ClientError(-1, "tlsv13 alert certificate required"),
    ],
)
def test_an_error_that_says_why_is_right(monkeypatch: pytest.MonkeyPatch, error: ClientError) -> None:
    judged(monkeypatch, error)


def test_who_comes_in_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="it came in"):
        judged(monkeypatch, None)


def test_records_of_who_was_refused_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="records: 1 instead of 0"):
        judged(monkeypatch, ClientError(58, "refused"), records=1)


@pytest.mark.parametrize("text", ["context deadline exceeded", "ssl://127.0.0.1:9092/1: Connect failed: refused"])
def test_an_error_that_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The address of a listener names the protocol; that is no reason. Records that came in are worse."""
    with pytest.raises(AssertionError, match="records"):
        judged(monkeypatch, ClientError(-1, text), records=1)
    with pytest.raises(NotSupported, match="is refused, and does not say why"):
        judged(monkeypatch, ClientError(-1, text))


def test_features_of_each_level() -> None:
    """The whole table, and what only a cluster that asks can refuse; each by a name of its own."""
    client = BY_NAME["confluent"]
    assert client.at("none").features == FEATURES
    for level in LEVELS[1:]:
        features = client.at(level).features
        assert features[: len(FEATURES)] == FEATURES
        assert len({each.name for each in features}) == len(features) >= len(FEATURES) + 7
    assert BY_NAME["connect"].at("sasl").features == BY_NAME["connect"].features


def test_what_is_not_measured_says_why() -> None:
    """A driver without TLS, and a client whose build lacks a mechanism, are skipped, not failed."""
    client = BY_NAME["rskafka"].at("sasl")
    [*results] = run_client("strandline", client, client.features[:1], "127.0.0.1:1", frozenset(), lambda _: None)
    assert [(each.outcome, each.reason) for each in results] == [(SKIPPED, "not measured: its driver speaks plaintext")]

    def lacking(login: Login) -> ToolDriver:
        raise Unavailable("fetches no tokens")

    feature = Feature("any", lambda world: world.client.kill())
    cell = run_feature("strandline", client, feature, World("127.0.0.1:1", frozenset(), lacking))
    assert (cell.outcome, cell.reason) == (SKIPPED, "fetches no tokens")


def test_a_tool_has_nothing_under_way() -> None:
    """So nothing of it can be revoked: its cell says that, instead of a new command's answer."""
    with pytest.raises(NotSupported, match="one command at a time"):
        send(Answers(None), "topic", [], kept=True)
    assert send(Answers(None), "topic", []) == []


def test_kafka_is_compared_where_it_can_be_set_up() -> None:
    told = CliRunner().invoke(main, ["--against", "kafka", "--security", "oauth"])
    assert told.exit_code == 2
    assert "--against kafka goes with --security none or sasl, not oauth" in told.output
