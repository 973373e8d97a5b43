"""Sources of the keys that check tokens: a JWKS file that is looked at now and then, or an HTTPS address."""

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
"""A token with an unknown key makes the keys be fetched again, but not more often: anybody can send such tokens."""


class Keys(Protocol):
    """Keys, as they are now."""

    def current(self) -> KeySet | None:
        """None while they have not been fetched."""

    def look_again(self) -> None:
        """Look again for keys: somebody has a token of a key that is not there."""

    def start(self) -> None:
        """The listener opens."""

    def stop(self) -> None:
        """The listener closes. Idempotent."""


def keys_at(url: str, clock: Clock, refresh_ms: int) -> Keys:
    """The keys of `sasl.oauthbearer.jwks.endpoint.url`. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path and not parts.netloc:
        from urllib.request import url2pathname

        return FileKeys(url2pathname(parts.path))
    if parts.scheme == "https":
        return UrlKeys(url, clock, refresh_ms)
    raise ConfigError(SETTING, url, "file:///path/of/jwks.json or https://...: keys of http:// may be anybody's")


class FileKeys:
    """A file; when it changes its new content counts, unless it cannot be used."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError: it cannot be read, or is no JWKS document."""
        self._path = path
        self._seen = self._stamp()
        try:
            self._keys = self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(SETTING, f"file://{path}", str(error)) from None

    def current(self) -> KeySet | None:
        """Keys of the file: one look at it, a call of stat, for each login."""
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
        """Every login looks."""

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""

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
    """An HTTPS address, fetched when the listener opens, now and then, and when a token has an unknown key.

    The system's CAs are trusted, or those that SSL_CERT_FILE names. What cannot be fetched or used changes nothing.
    """

    def __init__(self, url: str, clock: Clock, refresh_ms: int) -> None:
        """Raises ConfigError: that is no address."""
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
        """Keys fetched last."""
        return self._keys

    def look_again(self) -> None:
        """Fetch soon."""
        self._again.set()

    def start(self) -> None:
        """Fetch, and go on."""
        if self._task is None:
            self._task = spawn(self._run(), self._ended)

    def stop(self) -> None:
        """Fetch no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _ended(self, error: BaseException) -> None:
        """Logins go on with the keys that are there."""
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
        """Raises FetchFailed, ValueError."""
        answer = await fetch(
            self._address, self._context, connect_timeout_s=FETCH_S, read_timeout_s=FETCH_S, trust="SSL_CERT_FILE"
        )
        if answer.status != 200:
            raise ValueError(f"it answers with status {answer.status}")
        return answer.body.decode()
