"""Tokens of OAUTHBEARER: which let their bearer in, and each thing that keeps one out."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey
from structlog.testing import capture_logs
from tests.log.helpers import JumpingClock, ManualClock

from strandline.cluster.security.token_keys import keys_at
from strandline.cluster.security.tokens import ALGORITHMS, Bearer, TokenError, Tokens, TokenSettings, parse_keys
from strandline.proto.believed import BelievedClock
from strandline.proto.errors import ConfigError
from strandline.proto.system import SystemClock

NOW_S = 1_700_000_000
SETTINGS = TokenSettings("https://issuer", ("strandline", "logs"), skew_s=30)
CLAIMS = {"iss": "https://issuer", "aud": "strandline", "sub": "alice", "exp": NOW_S + 60}


@cache
def key(name: str = "one") -> ECKey:
    return ECKey.generate_key("P-256", {"kid": name, "use": "sig"})


def published(*keys: Any) -> str:
    return json.dumps(KeySet(list(keys)).as_dict(private=False))


def tokens(*keys: Any, **more: Any) -> Tokens:
    found = parse_keys(published(*(keys or (key(),))))
    return Tokens(SETTINGS, lambda: found, BelievedClock(ManualClock(NOW_S * 1000)), **more)


def signed(claims: dict[str, Any] | None = None, by: Any = None, **header: Any) -> str:
    by = by or key()
    return jwt.encode(
        {"alg": "ES256", "kid": by.kid, **header}, claims or CLAIMS, by, algorithms=["ES256", "RS256", "HS256"]
    )


def message(token: str, head: str = "n,,", more: str = "") -> bytes:
    return f"{head}\x01auth=Bearer {token}\x01{more}\x01".encode()


def test_100_a_clock_set_ahead_refuses_no_token_that_holds() -> None:
    """Schedule 100: clients take a refused login for the end. One whose time has not begun is taken by the later
    clock, for that may be the right one."""
    found, clock = parse_keys(published(key())), JumpingClock(0, NOW_S * 1000)
    believed = BelievedClock(clock)
    checks = Tokens(SETTINGS, lambda: found, believed)
    believed.earliest_ms()
    clock.jump(8 * 24 * 3_600_000)
    assert checks.check(message(signed())).user == "alice"
    later_s = NOW_S + 8 * 24 * 3_600
    assert checks.check(message(signed({**CLAIMS, "nbf": later_s, "exp": later_s + 60}))).user == "alice"


def test_a_token_says_who_it_is_and_until_when() -> None:
    """Also with a list of audiences, with extensions, and by a key of RSA among several."""
    assert tokens().check(message(signed())) == Bearer("alice", (NOW_S + 90) * 1000)
    assert tokens().check(message(signed({**CLAIMS, "aud": ["other", "logs"]}))).user == "alice"
    assert tokens().check(message(signed(), "n,a=alice,", "traceId=1\x01")).user == "alice"
    rsa = RSAKey.generate_key(2048, {"kid": "rsa"})
    assert tokens(key(), rsa).check(message(signed(by=rsa, alg="RS256"))).user == "alice"
    assert tokens().check(message(jwt.encode({"alg": "ES256"}, CLAIMS, key()))).user == "alice"


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_signatures_that_count(name: str) -> None:
    curve = {"ES384": "P-384", "ES512": "P-521"}.get(name, "P-256")
    by: Any = ECKey.generate_key(curve) if name.startswith("ES") else OKPKey.generate_key("Ed25519")
    by = RSAKey.generate_key(2048) if name[1] == "S" and name[0] in "RP" else by
    token = jwt.encode({"alg": name}, CLAIMS, by, algorithms=[name])
    assert tokens(by).check(message(token)).user == "alice"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"iss": "https://other"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "other"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": [1, None]}, "another audience"),
        ({"exp": NOW_S - 31}, "has expired"),
        ({"exp": None}, "has no end"),
        ({"exp": "tomorrow"}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"exp": 1e300}, "exp is no time"),
        ({"nbf": NOW_S + 31}, "holds from a later time on"),
        ({"iat": NOW_S + 31}, "holds from a later time on"),
        ({"sub": ""}, "no user's name"),
        ({"sub": 7}, "no user's name"),
        ({"sub": "a\nb"}, "no user's name"),
        ({"sub": "a" * 256}, "no user's name"),
    ],
)
def test_what_a_token_says_keeps_it_out(change: dict[str, Any], words: str) -> None:
    with pytest.raises(TokenError, match=words):
        tokens().check(message(signed({**CLAIMS, **change})))


def test_clocks_may_differ_a_little() -> None:
    assert tokens().check(message(signed({**CLAIMS, "exp": NOW_S - 29, "nbf": NOW_S + 29}))).user == "alice"


def part(document: dict[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


def test_a_signature_that_does_not_count() -> None:
    """None at all, by a shared secret (the public key for one: the classic confusion), by another key of that name."""
    unsecured = f"{part({'alg': 'none'})}.{part(CLAIMS)}."
    public = OctKey.import_key(published(key()))
    by_secret = jwt.encode({"alg": "HS256", "kid": "one"}, CLAIMS, public, algorithms=["HS256"])
    stranger = ECKey.generate_key("P-256", {"kid": "one"})
    head, body, signature = signed().split(".")
    for token, words in (
        (unsecured, "none of public keys"),
        (by_secret, "none of public keys"),
        (signed(by=stranger), "does not count"),
        (f"{head}.{part({**CLAIMS, 'sub': 'root'})}.{signature}", "does not count"),
        (f"{part({'alg': 'RS256', 'kid': 'one'})}.{body}.{signature}", "does not count"),
        (f"{head}.{body}", "no signed JWT"),
        ("....", "no signed JWT"),
        ("a.b.c", "does not count"),
    ):
        with pytest.raises(TokenError, match=words):
            tokens().check(message(token))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"\xff",
        b"y,,\x01auth=Bearer x\x01\x01",
    ],
)
def test_a_message_that_is_none(data: bytes) -> None:
    with pytest.raises(TokenError):
        tokens().check(data)
    with pytest.raises(TokenError, match="another user"):
        tokens().check(message(signed(), "n,a=root,"))
    with pytest.raises(TokenError, match="are possible"):
        tokens().check(message("x" * 40_000))


def test_an_unknown_key_makes_the_keys_be_looked_at_again() -> None:
    asked: list[int] = []
    checks = tokens(key(), key("two"), unknown_key=lambda: asked.append(1))
    with pytest.raises(TokenError, match="the key is unknown"):
        checks.check(message(signed(by=key("three"))))
    with pytest.raises(TokenError, match="there are several"):
        checks.check(message(jwt.encode({"alg": "ES256"}, CLAIMS, key())))
    assert asked == [1, 1]
    with pytest.raises(TokenError, match="not been fetched"):
        Tokens(SETTINGS, lambda: None, BelievedClock(ManualClock(0))).check(message(signed()))


def test_keys_of_a_file_change_while_it_is_used(tmp_path: Path) -> None:
    """A broken change is told, and changes nothing."""
    file = tmp_path / "jwks.json"
    file.write_text(published(key()))
    keys = keys_at(f"file://{file}", SystemClock(), 60_000)
    checks = Tokens(SETTINGS, keys.current, BelievedClock(ManualClock(NOW_S * 1000)), keys.look_again)
    assert checks.check(message(signed())).user == "alice"
    with capture_logs() as logs:
        file.write_text("{")
        assert checks.check(message(signed())).user == "alice"
    assert "cannot be used; those before stay" in logs[0]["event"]
    file.write_text(published(key("two")))
    assert checks.check(message(signed(by=key("two")))).user == "alice"
    with pytest.raises(TokenError, match="the key is unknown"):
        checks.check(message(signed()))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "AAAA"}]}', '{"keys": [1]}']
)
def test_keys_that_are_none(tmp_path: Path, text: str) -> None:
    """A shared secret is no public key."""
    with pytest.raises(ValueError, match="JWKS document with public keys"):
        parse_keys(text)
    (tmp_path / "jwks").write_text(text)
    for url in (f"file://{tmp_path}/jwks", f"file://{tmp_path}/none", "http://issuer/keys", "keys.json", ""):
        with pytest.raises(ConfigError):
            keys_at(url, SystemClock(), 60_000)
