"""Tokens of an OAuth server: what it is asked, how often, what is made of each answer, and that no secret shows."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.client.config import CommonConfig
from strandline.client.errors import AuthenticationFailed, TokenUnavailable
from strandline.client.network import authenticate
from strandline.client.sasl import Login, login_of
from strandline.client.tokens import Endpoint as TokenEndpoint
from strandline.client.tokens import EndpointTokens, Refresh, Tokens
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError
from strandline.proto.http_fetch import FetchFailed, fetch, parse_address
from strandline.proto.ids import Endpoint
from strandline.proto.system import SystemClock, system_rng
from strandline.proto.tls import TlsSettings, client_context
from tests.client.token_issuer import CLIENT, SECRET, Issuer, Said, granted, issuer
from tests.cluster.security.tls_case import ca, other_ca

JAAS = f'a.b.OAuthBearerLoginModule required clientId="{CLIENT}" clientSecret="{SECRET}" scope="logs read";'
QUICK = {"sasl.login.retry.backoff.ms": 1, "sasl.login.retry.backoff.max.ms": 1, "sasl.login.read.timeout.ms": 300}


def login(url: str, **more: Any) -> Login:
    given = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(ca().file),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": JAAS,
        "sasl.oauthbearer.token.endpoint.url": url,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    found = login_of(CommonConfig(given), SystemClock(), system_rng())
    assert found is not None
    return found


def endpoint_of(found: Login) -> TokenEndpoint:
    assert isinstance(found.tokens, EndpointTokens)
    return found.tokens.endpoint


def asking(url: str, body: Callable[[EndpointTokens], Awaitable[None]], **more: Any) -> None:
    async def main() -> None:
        tokens = login(url, **more).tokens
        assert isinstance(tokens, EndpointTokens)
        try:
            async with asyncio.timeout(30):
                await body(tokens)
        finally:
            await tokens.close()

    asyncio.run(main())


def jwt(**claims: Any) -> str:
    parts = [urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "x"}, claims)]
    return ".".join((*parts, "c2ln"))


@pytest.mark.parametrize(
    ("lifetime_s", "chance", "after_s"),
    [
        (3600, 0.0, 2880),  # the window: 80 % of its time
        (3600, 1.0, 3060),  # and up to 5 % more
        (1000, 0.0, 700),  # the buffer of 300 s begins before
        (361, 0.0, 61),
        (359, 0.0, 287.2),  # less than minimum and buffer together: both are ignored
        (2, 1.0, 1.7),
    ],
)
def test_when_a_token_is_renewed(lifetime_s: float, chance: float, after_s: float) -> None:
    """Kafka's ExpiringCredentialRefreshingLogin, with its defaults."""
    assert Refresh().after_ms(lifetime_s * 1000, chance) == pytest.approx(after_s * 1000)
    assert Refresh(min_period_s=900, buffer_s=0).after_ms(1_000_000, 0) == 900_000


def test_one_question_for_all_connections_in_kafkas_words() -> None:
    """The client says who it is in the header, in the form what it wants; nothing is asked twice."""

    async def body(tokens: EndpointTokens) -> None:
        first = asyncio.create_task(tokens.current())
        await asyncio.sleep(0)
        first.cancel()  # one that gives up ends it for nobody else
        assert set(await asyncio.gather(*(tokens.current() for _ in range(5)))) == {"token-1"}
        assert await tokens.current() == "token-1"

    with issuer() as server:
        asking(server.url, body)
        [asked] = server.asked
        assert asked.path == "/oauth/token"
        assert asked.client == f"{CLIENT}:{SECRET}"
        assert asked.form == {"grant_type": ["client_credentials"], "scope": ["logs read"]}


def test_kafkas_newer_settings_and_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-1139, with the bare login module that Kafka wants beside; `header.urlencode` as RFC 6749 has it."""
    monkeypatch.setenv("TOKEN_SECRET", "a:b c/ä")
    own = {
        "sasl.jaas.config": "x.OAuthBearerLoginModule required ;",
        "sasl.oauthbearer.client.credentials.client.id": "me:too",
        "sasl.oauthbearer.client.credentials.client.secret": "${env:TOKEN_SECRET}",
        "sasl.oauthbearer.header.urlencode": True,
    }

    async def body(tokens: EndpointTokens) -> None:
        assert await tokens.current() == "token-1"
        assert "a:b" not in repr(vars(tokens))

    with issuer(tls=False) as server:
        asking(server.url, body, **own)
        assert server.asked[0].client == "me%3Atoo:a%3Ab+c%2F%C3%A4"
        assert server.asked[0].form == {"grant_type": ["client_credentials"]}


def test_a_token_is_renewed_before_it_ends_and_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    """In the background; while the server fails the last token goes on, and one log line says so."""

    async def body(tokens: EndpointTokens) -> None:
        assert await tokens.current() == "token-1"
        server.answer = lambda _: Said(503)
        while len(server.asked) < 4:  # the renewal, and two more attempts
            assert await tokens.current() == "token-1"
            await asyncio.sleep(0.005)
        server.answer = lambda _: granted("next", expires_in="3600")
        while await tokens.current() != "next":
            await asyncio.sleep(0.005)
        count = len(server.asked)
        await asyncio.sleep(0.02)
        assert len(server.asked) == count

    async def main() -> None:
        soon = replace(endpoint_of(login(server.url, **QUICK)), refresh=Refresh(factor=0.02, jitter=0.0))
        tokens = EndpointTokens(soon, SystemClock(), system_rng())
        await body(tokens)
        await tokens.close()

    caplog.set_level(logging.INFO)
    with issuer(tls=False) as server:
        server.answer = lambda _: granted("token-1", expires_in=10)
        asyncio.run(main())
    said = [record.getMessage() for record in caplog.records if server.url in record.getMessage()]
    assert len(said) == 2
    assert re.match(r"no new token: .* status 503; the last one holds for \d+ s more", said[0])
    assert said[1].endswith("gives tokens again")


def test_a_token_that_has_ended_is_not_given_out() -> None:
    """Its end is that of the JWT where the answer does not say; connections wait for the next one."""

    async def body(tokens: EndpointTokens) -> None:
        first = await tokens.current()
        server.answer = lambda _: Said(500)
        assert await tokens.current() == first
        await asyncio.sleep(0.2)
        with pytest.raises(TokenUnavailable, match="status 500"):
            await tokens.current()
        server.answer = lambda _: granted("next", expires_in=60)
        await asyncio.sleep(0.005)
        assert await tokens.current() == "next"

    clock = SystemClock()
    with issuer(tls=False) as server:
        server.answer = lambda _: granted(jwt(exp=clock.wall_ms() / 1000 + 0.2))
        asking(server.url, body, **QUICK)


def test_a_server_that_fails_is_not_asked_at_once_again() -> None:
    """`sasl.login.retry.backoff.ms`: the same error for whoever asks meanwhile."""

    async def body(tokens: EndpointTokens) -> None:
        for _ in range(5):
            with pytest.raises(TokenUnavailable):
                await tokens.current()

    with issuer(tls=False) as server:
        server.answer = lambda _: Said(503)
        asking(server.url, body, sasl_login_retry_backoff_ms=10_000)
        assert len(server.asked) == 1


def test_a_token_that_a_broker_refuses_is_asked_for_anew_but_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(tokens: EndpointTokens) -> None:
        assert await tokens.current() == "token-1"
        tokens.refused("token-1")
        assert await tokens.current() == "token-1"
        monkeypatch.setattr("strandline.client.tokens.REFUSED_AFTER_MS", 0.0)
        tokens.refused("token-0")
        assert await tokens.current() == "token-1"
        tokens.refused("token-1")
        assert await tokens.current() == "token-2"

    with issuer(tls=False) as server:
        asking(server.url, body)


def _echo(server: Issuer) -> Said:
    asked = server.asked[-1]
    return Said(body=json.dumps({"access_token": f"{asked.client} {asked.headers}"}).encode())


BAD = {
    "401": (lambda _: Said(401, b'{"error": "invalid_client"}'), AuthenticationFailed, "status 401, invalid_client"),
    "other words": (lambda _: Said(400, b'{"error": "%s"}' % SECRET.encode()), AuthenticationFailed, "status 400"),
    "redirect": (lambda _: Said(302), TokenUnavailable, "status 302"),
    "html": (lambda _: Said(200, b"<html>log in</html>"), TokenUnavailable, "no JSON object with an access_token"),
    "nested": (lambda _: Said(200, b"[" * 500_000), TokenUnavailable, "no JSON object with an access_token"),
    "huge": (lambda _: Said(200, b" " * 1_100_000), TokenUnavailable, "more than 1048576 bytes"),
    "slow": (lambda _: Said(200, b"{}    ", 0.2), TokenUnavailable, r"no whole answer within 0\.3 s"),
    "echo": (_echo, TokenUnavailable, "no JSON object with an access_token"),
    "injection": (lambda _: granted("a\x01user=root", expires_in=9), TokenUnavailable, "no JSON object with an access"),
    "no end": (lambda _: granted("opaque"), TokenUnavailable, "nothing says when the token ends"),
    "infinite": (lambda _: granted(jwt(exp=float("inf"))), TokenUnavailable, "nothing says when the token ends"),
    "ended": (lambda _: granted(jwt(exp=1)), TokenUnavailable, "has ended already"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_an_answer_without_a_token(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each names the endpoint and what is wrong, and shows neither secret nor token."""
    answer, kind, words = BAD[name]
    caplog.set_level(logging.DEBUG)

    async def body(tokens: EndpointTokens) -> None:
        with pytest.raises(kind, match=words) as refused:
            await tokens.current()
        shown = str(refused.value) + repr(refused.value) + caplog.text
        assert server.url in shown
        assert SECRET not in shown
        assert b64encode(f"{CLIENT}:{SECRET}".encode()).decode() not in shown

    with issuer(tls=False) as server:
        server.answer = lambda _: answer(server)
        asking(server.url, body, **QUICK)
        assert [each.path for each in server.asked] == ["/oauth/token"]


def test_nobody_there_a_stranger_and_another_ca() -> None:
    """A port that nobody has, one that speaks no HTTP and repeats what it hears, and a certificate of nobody."""

    def refusal(words: str) -> Callable[[Tokens], Awaitable[None]]:
        async def body(tokens: Tokens) -> None:
            with pytest.raises(TokenUnavailable, match=words) as refused:
                await tokens.current()
            assert SECRET not in str(refused.value)
            assert "Basic" not in str(refused.value)

        return body

    def parrot() -> None:
        with listener.accept()[0] as peer:
            peer.sendall(peer.recv(65536))

    def hang_up() -> None:
        with listener.accept()[0] as peer:
            peer.recv(65536)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        thread = threading.Thread(target=parrot)
        thread.start()
        asking(url, refusal("does not speak HTTP"), **QUICK)
        thread.join()
        thread = threading.Thread(target=hang_up)
        thread.start()
        asking(url, refusal("or stops in the middle"), **QUICK)
        thread.join()
        silent = url.replace("http:", "https:")
        asking(silent, refusal(r"no connection within 0\.05 s"), sasl_login_connect_timeout_ms=50)
    asking(url, refusal("Connection refused"), **QUICK)
    with issuer() as server:
        asking(
            server.url, refusal("does not count.*ssl.truststore.location"), ssl_truststore_location=str(other_ca().file)
        )
        assert server.asked == []
        # The keys of brokers come by the same way, and their CAs by another setting.
        stranger = client_context(TlsSettings(truststore_location=str(other_ca().file)))
        asked = fetch(
            parse_address(server.url), stranger, connect_timeout_s=10, read_timeout_s=10, trust="SSL_CERT_FILE"
        )
        with pytest.raises(FetchFailed, match="; SSL_CERT_FILE names a PEM file with its CA"):
            asyncio.run(asked)


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        ({"url": "http://login.example.com/token"}, "sasl.oauthbearer.token.endpoint.url", "everybody on the way"),
        ({"url": f"https://me:{SECRET}@login.example.com/"}, "sasl.oauthbearer.token.endpoint.url", "without a user"),
        ({"url": "https://a b/"}, "sasl.oauthbearer.token.endpoint.url", "https://host:port/path"),
        ({"url": "https://[::1/"}, "sasl.oauthbearer.token.endpoint.url", "https://host:port/path"),
        ({"url": "https://a:99999/"}, "sasl.oauthbearer.token.endpoint.url", "https://host:port/path"),
        ({"url": "file://host/x"}, "sasl.oauthbearer.token.endpoint.url", "file:///path"),
        ({"url": ""}, "sasl.oauthbearer.token.endpoint.url", "file:///path"),
        ({"url": "file:///x"}, "sasl.jaas.config", "no options; clientId has no effect here"),
        ({"sasl.jaas.config": ""}, "sasl.oauthbearer.client.credentials.client.id", "clientId of sasl.jaas.config"),
        ({"sasl.jaas.config": JAAS.replace("scope", "extension_x")}, "sasl.jaas.config", "extension_x has no effect"),
        ({"sasl.jaas.config": "a.PlainLoginModule required ;"}, "sasl.jaas.config", "OAuthBearerLoginModule, with"),
        ({"sasl.jaas.config": JAAS.replace("spark", "a:")}, "sasl.oauthbearer.client.credentials.client.id", "a colon"),
        ({"sasl.oauthbearer.scope": "x"}, "sasl.oauthbearer.scope", "one or the other"),
        ({"sasl.username": "alice"}, "sasl.mechanism", "the token says who it is"),
        ({"sasl.login.refresh.window.factor": 0.4}, "sasl.login.refresh.window.factor", "from 0.5 to 1"),
        ({"sasl.login.callback.handler.class": "a.B"}, "sasl.login.callback.handler.class", "leave it out"),
        (
            {"sasl.jaas.config": JAAS.replace(SECRET, "${env:NOT_THERE}")},
            "sasl.jaas.config",
            "the environment variable NOT_THERE, which is not set",
        ),
    ],
)  # fmt: skip
def test_settings_that_cannot_stand(settings: dict[str, Any], key: str, words: str) -> None:
    own = dict(settings)
    with pytest.raises(ConfigError) as refused:
        login(own.pop("url", "https://login.example.com/token"), **own)
    assert refused.value.key == key
    assert words in refused.value.allowed
    assert SECRET not in str(refused.value)


def test_settings_have_an_effect() -> None:
    """Each of `sasl.login.` arrives where it counts; that each counts there, the tests above show."""
    given = {
        "sasl.login.connect.timeout.ms": 1, "sasl.login.read.timeout.ms": 2, "sasl.login.retry.backoff.ms": 3,
        "sasl.login.retry.backoff.max.ms": 4, "sasl.login.refresh.window.factor": 0.5,
        "sasl.login.refresh.window.jitter": 0.1, "sasl.login.refresh.min.period.seconds": 5,
        "sasl.login.refresh.buffer.seconds": 6,
    }  # fmt: skip
    found = endpoint_of(login("https://login.example.com/token", **given))
    assert (found.connect_timeout_ms, found.read_timeout_ms) == (1, 2)
    assert (found.retry_backoff_ms, found.retry_backoff_max_ms) == (3, 4)
    assert found.refresh == Refresh(0.5, 0.1, 5, 6)
    assert SECRET not in repr(found)


def test_settings_without_effect_are_said(caplog: pytest.LogCaptureFixture) -> None:
    login("file:///x", **{"sasl.jaas.config": "", "sasl.login.read.timeout.ms": 5, "sasl.oauthbearer.scope": "x"})
    assert "file: sasl.oauthbearer.scope, sasl.login.read.timeout.ms" in caplog.text
    own = {"sasl.jaas.config": "", "sasl.username": "a", "sasl.password": SECRET, "sasl.mechanism": "SCRAM-SHA-256"}
    login("https://login.example.com/token", **own)
    assert "no effect with sasl.mechanism=SCRAM-SHA-256: sasl.oauthbearer.token.endpoint.url" in caplog.text
    assert SECRET not in caplog.text


def test_a_token_that_kafka_refuses() -> None:
    """Kafka's brokers answer without an error code, and with the reason, to which the client says one byte."""
    said: list[bytes] = []

    class Broker:
        endpoint = Endpoint("kafka", 9092)

        async def call(self, api: Any, values: dict[str, Any], timeout_ms: float) -> Any:
            if "mechanism" in values:
                return SimpleNamespace(error_code=ErrorCode.NONE, mechanisms=("OAUTHBEARER",))
            said.append(values["auth_bytes"])
            if len(said) == 1:
                return SimpleNamespace(error_code=ErrorCode.NONE, auth_bytes=b'{"status":"invalid_token"}')
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return SimpleNamespace(error_code=code, error_message='{"status":"invalid_token"}')

        def close(self) -> None:
            raise AssertionError

    who = login("file:///run/token", **{"sasl.jaas.config": ""})
    with pytest.raises(AuthenticationFailed, match=r"kafka:9092 refuses the token of /run/token .*invalid_token"):
        asyncio.run(authenticate(Broker(), who, 1000, "a.b.c"))
    assert said == [b"n,,\x01auth=Bearer a.b.c\x01\x01", b"\x01"]
