"""SASL OAUTHBEARER (RFC 7628, KIP-255, KIP-768): a client shows a signed token (JWT), and keys that are known check it.

Only signatures by public keys count: an unsecured token, and one that is signed by a shared secret, are refused
whatever the keys are. `joserfc` checks signatures; what a token says is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from strandline.proto.believed import BelievedClock
from strandline.proto.errors import MissingExtra, StrandlineError
from strandline.proto.json_text import read_json

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

MESSAGE_BYTES_MAX = 32 * 1024

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""EdDSA is what most issuers still write for Ed25519 (RFC 9864)."""

USER_CHARS_MAX = 255

_MESSAGE = re.compile(r"n,(?:a=([^,]*))?,\x01(.*)\x01\x01", re.DOTALL)


class TokenError(StrandlineError):
    """A token that does not let its bearer in. Never holds the token."""


class Bearer(NamedTuple):
    """User of a token, and the time until which it holds (milliseconds since 1970)."""

    user: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Requirements on a token.

    Attributes:
        issuer: who made it (`iss`).
        audiences: for whom: one of these (`aud`).
        skew_s: by how much clocks may differ.
        user_claim: which claim names the user.
    """

    issuer: str
    audiences: tuple[str, ...]
    skew_s: int = 30
    user_claim: str = "sub"


class Tokens:
    """Checks the tokens of one listener.

    Args:
        keys: those that count now; None while there are none yet.
        unknown_key: called when a token names a key that is not among them: they may have changed.
    """

    def __init__(
        self,
        settings: TokenSettings,
        keys: Callable[[], KeySet | None],
        believed: BelievedClock,
        unknown_key: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._believed = believed
        self._unknown_key = unknown_key

    def check(self, message: bytes) -> Bearer:
        """Check a message with a token, and return its user. Raises TokenError."""
        acts_for, token = read_message(message)
        claims = self._verified(token)
        bearer = self._bearer(claims)
        if acts_for not in ("", bearer.user):
            raise TokenError("the client asks to act for another user than the token is about")
        return bearer

    def _verified(self, token: str) -> Mapping[str, Any]:
        from joserfc import jws, jwt

        keys = self._keys()
        if keys is None:
            raise TokenError("the keys that check tokens have not been fetched yet")
        if token.count(".") != 2:
            raise TokenError("the token is no signed JWT")
        try:
            header = jws.extract_compact(token.encode()).headers()
            if header.get("alg") not in ALGORITHMS:
                raise TokenError(f"the token is signed by {header.get('alg')!r:.20}, which is none of public keys")
            key = self._key(keys, header.get("kid"))
            return jwt.decode(token, key, algorithms=list(ALGORITHMS)).claims
        except TokenError:
            raise
        except Exception as error:  # whatever the library makes of a stranger's bytes: they let nobody in
            raise TokenError(f"the token's signature does not count ({type(error).__name__})") from None

    def _key(self, keys: KeySet, name: object) -> Any:
        if name is None and len(keys.keys) == 1:
            return keys.keys[0]
        for key in keys.keys:
            if name is not None and key.kid == name:
                return key
        self._unknown_key()
        raise TokenError("the token names no key, and there are several" if name is None else "the key is unknown")

    def _bearer(self, claims: Mapping[str, Any]) -> Bearer:
        settings, believed = self._settings, self._believed
        if claims.get("iss") != settings.issuer:  # rule A19/token-of-another-issuer
            raise TokenError("the token is of another issuer (sasl.oauthbearer.expected.issuer)")
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        # rule A19/token-for-somebody-else
        if not any(one in settings.audiences for one in audiences if isinstance(one, str)):
            raise TokenError("the token is for another audience (sasl.oauthbearer.expected.audience)")
        expires = _seconds(claims, "exp")
        if expires is None:
            raise TokenError("the token has no end (exp)")
        # rule A19/token-for-ever, rule B32/tokens-end-by-a-clock-set-ahead
        if expires + settings.skew_s <= believed.earliest_ms() / 1000:
            raise TokenError("the token has expired")
        for name in ("nbf", "iat"):
            begins = _seconds(claims, name)
            if begins is not None and begins - settings.skew_s > believed.latest_ms() / 1000:
                raise TokenError(f"the token holds from a later time on ({name})")
        user = claims.get(settings.user_claim)
        if not isinstance(user, str) or not 0 < len(user) <= USER_CHARS_MAX or not user.isprintable():
            raise TokenError(f"the token's {settings.user_claim} is no user's name")
        return Bearer(user, int((expires + settings.skew_s) * 1000))


def read_message(message: bytes) -> tuple[str, str]:
    """Whom a client acts for ("" where it does not say) and its token. Raises TokenError."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise TokenError(f"a message of {len(message)} bytes; {MESSAGE_BYTES_MAX} are possible")
    try:
        match = _MESSAGE.fullmatch(message.decode("ascii"))
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise TokenError("the message is none of OAUTHBEARER")
    for pair in match[2].split("\x01"):
        name, _, value = pair.partition("=")
        if name == "auth" and value[:7].lower() == "bearer " and value[7:].strip():
            return match[1] or "", value[7:].strip()
    raise TokenError("the message holds no bearer's token")


def parse_keys(text: str) -> KeySet:
    """The keys of a JWKS document (RFC 7517).

    Raises:
        ValueError: it is none, or has no key.
        MissingExtra: `joserfc` is not installed.
    """
    require_joserfc()
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    try:
        document = read_json(text)
        # rule A19/secrets-as-public-keys
        usable = [key for key in document["keys"] if key.get("kty") != "oct" and key.get("use", "sig") == "sig"]
        return KeySet.import_key_set({"keys": usable})
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"a JWKS document with public keys ({type(error).__name__})") from None


def require_joserfc() -> None:
    """Check that joserfc is installed. Raises MissingExtra if not."""
    if find_spec("joserfc") is None:
        raise MissingExtra.of("OAUTHBEARER", "oauth", ModuleNotFoundError("No module named 'joserfc'"))


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise TokenError(f"the token's {name} is no time")
    return float(value)
