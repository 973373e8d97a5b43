"""What clients show to come in, in the words of each family, and the issuer of a run's tokens."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.parse
from pathlib import Path

import pytest
from bench.secured import PROPERTIES
from interop.logins import OPEN, VARIABLE, Login, admin_login, as_properties, tls_context
from interop.tokens import AUDIENCE, HOLDS_S, ISSUER, MAIN_KEY, TokenIssuer

from strandline.cluster.security.tokens import Bearer, TokenError, Tokens, TokenSettings, parse_keys
from strandline.proto.believed import BelievedClock
from strandline.proto.jaas import parse_jaas
from strandline.proto.system import SystemClock

BY_PASSWORD = Login("SASL_SSL", "ca.pem", mechanism="SCRAM-SHA-256", user="alice", secret="pa ss")
BY_TOKEN = Login(
    "SASL_SSL", "ca.pem", mechanism="OAUTHBEARER", user="alice", secret="x", token="t", token_url="http://127.0.0.1:1/t"
)
BY_CERTIFICATE = Login("SSL", "ca.pem", "alice.pem")


def test_an_open_cluster_is_asked_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver finds a login, no tool a file, no client a setting."""
    monkeypatch.delenv(PROPERTIES, raising=False)
    assert admin_login() == OPEN
    assert (OPEN.environment(), OPEN.java(), OPEN.librdkafka(), tls_context(OPEN)) == ({}, {}, {}, None)


def test_a_password() -> None:
    java = BY_PASSWORD.java()
    assert java["sasl.mechanism"] == "SCRAM-SHA-256"
    assert parse_jaas(java["sasl.jaas.config"]).options == {"username": "alice", "password": "pa ss"}
    assert "ssl.keystore.location" not in java
    assert BY_PASSWORD.librdkafka() == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "ca.pem",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "pa ss",
    }
    told = json.loads(BY_PASSWORD.environment()[VARIABLE])
    assert (told["user"], told["secret"], told["java"]) == ("alice", "pa ss", java)


def test_a_token() -> None:
    """Java asks for it at that address alone; who takes a token as it is finds it, too."""
    java = BY_TOKEN.java()
    assert parse_jaas(java["sasl.jaas.config"]).options == {"clientId": "alice", "clientSecret": "x"}
    assert java["sasl.oauthbearer.token.endpoint.url"] == BY_TOKEN.token_url
    assert BY_TOKEN.librdkafka()["sasl.oauthbearer.method"] == "oidc"
    assert "sasl.password" not in BY_TOKEN.librdkafka()
    environment = BY_TOKEN.environment()
    assert environment["JDK_JAVA_OPTIONS"].endswith(f"allowed.urls={BY_TOKEN.token_url}")
    assert json.loads(environment[VARIABLE])["token"] == "t"


def test_a_certificate() -> None:
    assert BY_CERTIFICATE.java()["ssl.keystore.location"] == "alice.pem"
    found = BY_CERTIFICATE.librdkafka()
    assert found["ssl.key.location"] == found["ssl.certificate.location"] == "alice.pem"
    assert not [name for name in (*found, *BY_CERTIFICATE.java()) if name.startswith("sasl.")]


@pytest.mark.parametrize("login", [BY_PASSWORD, BY_CERTIFICATE])
def test_the_user_of_the_cluster_is_read_from_its_file(
    login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(as_properties(login.java()))
    monkeypatch.setenv(PROPERTIES, str(file))
    assert admin_login() == login


def judged(issuer: TokenIssuer, token: str) -> Bearer:
    """As a broker judges it."""
    keys = parse_keys(issuer.jwks.read_text())
    settings = TokenSettings(ISSUER, (AUDIENCE,), skew_s=30)
    tokens = Tokens(settings, lambda: keys, BelievedClock(SystemClock()))
    return tokens.check(f"n,,\x01auth=Bearer {token}\x01\x01".encode())


def test_tokens_count_by_their_keys(tmp_path: Path) -> None:
    """Until they end, their key is replaced, or if nobody has published it."""
    issuer = TokenIssuer(tmp_path)
    try:
        issuer.new_key("alice")
        token = issuer.token("alice", key="alice")
        assert judged(issuer, token).user == "alice"
        assert judged(issuer, issuer.token("alice")).user == "alice"
        for wrong in (issuer.token("alice", forged=True), issuer.token("alice", holds_s=-3600)):
            with pytest.raises(TokenError):
                judged(issuer, wrong)
        issuer.new_key("alice")
        with pytest.raises(TokenError):
            judged(issuer, token)
        assert judged(issuer, issuer.token("alice", key="alice")).user == "alice"
        assert judged(issuer, issuer.token("bob", key=MAIN_KEY)).user == "bob"
    finally:
        issuer.close()


def asked(issuer: TokenIssuer, user: str, secret: str) -> tuple[int, dict[str, object]]:
    where = urllib.parse.urlsplit(issuer.url)
    connection = http.client.HTTPConnection(where.netloc, timeout=10)
    shown = base64.b64encode(f"{user}:{secret}".encode()).decode()
    connection.request("POST", where.path, "grant_type=client_credentials", {"Authorization": f"Basic {shown}"})
    answer = connection.getresponse()
    try:
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_tokens_are_handed_to_who_has_the_secret(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path)
    try:
        first, second = issuer.hand_out("alice", "one"), issuer.hand_out("alice", "two")
        assert asked(issuer, "alice", first) == (
            200,
            {"access_token": "one", "token_type": "Bearer", "expires_in": HOLDS_S},
        )
        assert asked(issuer, "alice", second)[1]["access_token"] == "two"
        assert asked(issuer, "bob", first) == (401, {"error": "invalid_client"})
    finally:
        issuer.close()
