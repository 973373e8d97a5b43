"""An issuer of tokens for one run: keys of its own, their JWKS file for the brokers, and an address where clients ask.

The address speaks HTTP on loopback: clients under test look at the tokens of others' servers as little as these do.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.fetched import Unavailable

ISSUER, AUDIENCE = "https://issuer.example", "strandline"
HOLDS_S = 4 * 3600
"""Longer than a run."""

MAIN_KEY = "main"


class TokenIssuer:
    """Signs tokens of users, each by the key of that user's name, or by `MAIN_KEY`."""

    def __init__(self, directory: Path) -> None:
        """Raises Unavailable: nothing here can sign."""
        try:
            import joserfc  # noqa: F401
        except ImportError as error:
            raise Unavailable("tokens need joserfc: pip install '.[oauth]'") from error
        self.jwks = directory / "jwks.json"
        self._keys: dict[str, Any] = {}
        self._given: dict[tuple[str, str], str] = {}
        self.new_key(MAIN_KEY)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def broker_settings(self) -> dict[str, str]:
        """What brokers are told."""
        return {
            "sasl.oauthbearer.jwks.endpoint.url": self.jwks.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }

    def new_key(self, name: str) -> None:
        """Publish a new key by this name; what an older one signed counts no longer."""
        from joserfc.jwk import KeySet

        self._keys[name] = new_key()
        new = self.jwks.with_suffix(".new")
        new.write_text(json.dumps(KeySet(list(self._keys.values())).as_dict(private=False)))
        new.rename(self.jwks)

    def token(self, user: str, *, key: str = MAIN_KEY, holds_s: float = HOLDS_S, forged: bool = False) -> str:
        """A signed token. `forged`: by a key that nobody has published."""
        from joserfc import jwt

        signer = new_key() if forged else self._keys[key]
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": now - HOLDS_S, "exp": int(now + holds_s)}
        return jwt.encode({"alg": "ES256", "kid": signer.kid}, claims, signer)

    def hand_out(self, client_id: str, token: str) -> str:
        """From now on whoever asks by this id and the secret that is returned gets this token."""
        secret = secrets.token_urlsafe(12)
        self._given[client_id, secret] = token
        return secret

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        given = self._given

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                shown = self.headers.get("Authorization", "").removeprefix("Basic ")
                client_id, _, secret = base64.b64decode(shown).decode().partition(":")
                token = given.get((client_id, secret))
                told = {"error": "invalid_client"} if token is None else bearer(token)
                body = json.dumps(told).encode()
                self.send_response(401 if token is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        return Handler


def bearer(token: str) -> dict[str, Any]:
    return {"access_token": token, "token_type": "Bearer", "expires_in": HOLDS_S}


def new_key() -> Any:
    from joserfc.jwk import ECKey

    return ECKey.generate_key("P-256", {"kid": secrets.token_hex(4), "use": "sig"})
