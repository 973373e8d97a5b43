"""Sources of the public keys that verify OAuth bearer tokens: a JWKS file, or an HTTPS address."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import structlog

from strandline.cluster.security.tokens import parse_keys, require_joserfc
from strandline.proto.errors import ConfigError
from strandline.proto.http_fetch import ANSWER_BYTES_MAX, FetchFailed, fetch, parse_address
from strandline.proto.ports import Clock
from strandline.proto.secrets import HIDDEN
from strandline.proto.tasks import spawn

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

log = structlog.get_logger("strandline.security")

SETTING = "sasl.oauthbearer.jwks.endpoint.url"

FETCH_S = 10.0
SOON_MS = 10_000.0
"""Minimum milliseconds between two fetches. A token with an unknown key starts a fetch, and anybody can send one."""


class Keys(Protocol):
    """Source of keys, which may change while a broker runs."""

    def current(self) -> KeySet | None:
        """The current keys; None until they have been fetched."""

    def look_again(self) -> None:
        """Load the keys again soon: a client sent a token that is signed with an unknown key."""

    def start(self) -> None:
        """Start loading the keys. Called when the listener opens."""

    def stop(self) -> None:
        """Stop loading the keys. Called when the listener closes; idempotent."""


def keys_at(url: str, clock: Clock, refresh_ms: int) -> Keys:
    """Source of the keys at `sasl.oauthbearer.jwks.endpoint.url`, a file: or https: URL. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path and not parts.netloc:
        from urllib.request import url2pathname

        return FileKeys(url2pathname(parts.path))
    if parts.scheme == "https":
        return UrlKeys(url, clock, refresh_ms)
    raise ConfigError(SETTING, url, "file:///path/of/jwks.json or https://...: keys of http:// may be anybody's")


class FileKeys:
    """Keys from a JWKS file. It is read again when it changes; a new content that is not valid is ignored."""

    def __init__(self, path: str) -> None:
        """Read the file. Raises ConfigError if it cannot be read, or is not a JWKS document."""
        self._path = path
        self._seen = self._stamp()
        try:
            self._keys = self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(SETTING, f"file://{path}", str(error)) from None

    def current(self) -> KeySet | None:
        """Keys of the file. Each call, i.e. each login, checks by one stat whether the file has changed."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._keys = self._read()
                log.info("changed keys of tokens are in use", file=self._path)
            except (OSError, ValueError) as error:
                log.error("changed keys of tokens cannot be used; those before stay", file=self._path, error=str(error))
        return self._keys

    def look_again(self) -> None:
        """Do nothing: `current` checks the file at each login."""

    def start(self) -> None:
        """Do nothing: the file is read in the constructor."""

    def stop(self) -> None:
        """Do nothing: no file stays open."""

    def _read(self) -> KeySet:
        with open(self._path, encoding="utf-8") as file:
            return parse_keys(file.read(ANSWER_BYTES_MAX))

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = os.stat(self._path)
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


class UrlKeys:
    """Keys from an HTTPS address, fetched when the listener opens, periodically, and when a token has an unknown key.

    The system's CAs are trusted, or those in SSL_CERT_FILE. If a fetch fails, or its result is not valid, the keys
    before stay in use.
    """

    def __init__(self, url: str, clock: Clock, refresh_ms: int) -> None:
        """`refresh_ms`: milliseconds between two fetches. Raises ConfigError if `url` is not a valid address."""
        try:
            self._address = parse_address(url)
        except ValueError:
            raise ConfigError(
                SETTING, HIDDEN if "@" in url else url, "https://host:port/path, without a user"
            ) from None
        self._url = url
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._keys: KeySet | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._context = ssl.create_default_context()
        require_joserfc()

    def current(self) -> KeySet | None:
        """The keys of the last successful fetch; None before it."""
        return self._keys

    def look_again(self) -> None:
        """Fetch the keys again soon, at least `SOON_MS` after the last fetch."""
        self._again.set()

    def start(self) -> None:
        """Start the task that fetches the keys periodically."""
        if self._task is None:
            self._task = spawn(self._run(), self._ended)

    def stop(self) -> None:
        """Stop fetching. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _ended(self, error: BaseException) -> None:
        """Log that the task which fetches keys has failed. Logins continue with the keys that were fetched."""
        log.error("internal error: the keys of tokens are fetched no more", url=self._url, exc_info=error)

    async def _run(self) -> None:
        while True:
            try:
                self._keys = parse_keys(await self._fetched())
                log.info("the keys of tokens were fetched", url=self._url, keys=len(self._keys.keys))
            except (FetchFailed, ValueError) as error:
                log.error("the keys of tokens cannot be fetched; those before stay", url=self._url, error=str(error))
            await asyncio.sleep(SOON_MS / 1000)
            try:
                async with asyncio.timeout(max(0.0, self._refresh_ms - SOON_MS) / 1000 if self._keys else 0.0):
                    await self._again.wait()
            except TimeoutError:
                pass
            self._again.clear()

    async def _fetched(self) -> str:
        """Fetch the JWKS document. Raises FetchFailed, or ValueError if the status is not 200."""
        answer = await fetch(
            self._address, self._context, connect_timeout_s=FETCH_S, read_timeout_s=FETCH_S, trust="SSL_CERT_FILE"
        )
        if answer.status != 200:
            raise ValueError(f"it answers with status {answer.status}")
        return answer.body.decode()
