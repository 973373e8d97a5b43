"""The TLS context of a listener or of outgoing connections, made anew when its files change.

Connections that are open keep what they began with; new ones get the new context. A change that cannot be used is
logged, and what was in use stays in use.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import structlog

from strandline.proto.errors import ConfigError
from strandline.proto.ports import Clock
from strandline.proto.tls import TlsSettings, own_certificate, trusted_certificates

log = structlog.get_logger("strandline.security")

LOOK_S = 2.0
"""Seconds between two looks at the files. Kafka waits for an order of `kafka-configs.sh`; certbot and cert-manager
give none. A look is two calls of stat."""

EXPIRES_SOON_S = 30 * 86_400.0
"""A certificate that ends within this time is warned of, once a day. ACME clients renew theirs 30 days before."""

WARN_AGAIN_MS = 86_400_000.0

_Stamp = tuple[int, int, int] | None


class Expiry(NamedTuple):
    """End of a certificate's validity."""

    setting: str
    """Setting that named the certificate."""
    subject: str
    at_s: float
    """Seconds since the Unix epoch."""

    def said(self, now_s: float) -> str:
        """Sentence on the expiry, with the days that are left."""
        left_s = self.at_s - now_s
        days = f"{abs(left_s) // 86_400:.0f} days"
        when = f"ends in {days}" if left_s > 0 else f"ended {days} ago"
        return f"the certificate of {self.subject} {when}"


def expiries(settings: TlsSettings, unfit: Callable[[str, str], None]) -> list[Expiry]:
    """Expiries of the certificate that a listener shows, and of the CAs that it trusts.

    Args:
        unfit: gets the setting and the reason, instead, for a certificate that no listener may show.

    Raises:
        ConfigError: a file cannot be used.
    """
    of_keystore = "ssl.keystore.location" if settings.keystore_location else "ssl.keystore.certificate.chain"
    of_truststore = "ssl.truststore.location" if settings.truststore_location else "ssl.truststore.certificates"
    found = [(of_truststore, certificate) for certificate in trusted_certificates(settings)]
    try:
        found.insert(0, (of_keystore, own_certificate(settings)))
    except ssl.SSLError as error:
        unfit(settings.prefix + of_keystore, getattr(error, "verify_message", "") or str(error))
    return [
        Expiry(settings.prefix + name, _common_name(certificate), ssl.cert_time_to_seconds(certificate["notAfter"]))
        for name, certificate in found
    ]


def _common_name(certificate: dict[str, Any]) -> str:
    pairs = [pair for part in certificate.get("subject", ()) for pair in part]
    return next((value for name, value in pairs if name == "commonName"), "") or repr(pairs)


Context = TypeVar("Context")


class Certificates(Generic[Context]):
    """One context, or the two of a node between nodes, and the files they are made of.

    Attributes:
        context: what new connections use.
        owner: the listener, as log lines and metrics call it.
        expiries: when the certificates end that it is made of.
    """

    def __init__(self, owner: str, settings: TlsSettings, make: Callable[[TlsSettings], Context]) -> None:
        """Load the certificates of `settings`. Raises ConfigError if they cannot be used."""
        self.owner = owner
        self._settings = settings
        self._make = make
        self._seen = self._stamps()
        self.context = make(settings)
        self.expiries = expiries(settings, self._unfit)

    def look(self) -> None:
        """Make the context anew if a file has changed since the last look."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            context, found = self._make(self._settings), expiries(self._settings, self._unfit)
        except ConfigError as error:
            log.error("changed certificates cannot be used; those before stay in use", of=self.owner, error=str(error))
        else:
            self.context, self.expiries = context, found
            log.info("changed certificates are in use", of=self.owner, files=", ".join(self._settings.files))

    def _unfit(self, setting: str, why: str) -> None:
        log.warning("a listener's certificate is none for servers", of=self.owner, setting=setting, why=why)

    def _stamps(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._settings.files]


def _stamp(path: str) -> _Stamp:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


class CertificateWatch:
    """Looks at all certificates of a node now and then, and warns of those that end soon."""

    def __init__(self, certificates: Sequence[Certificates[Any]], clock: Clock) -> None:
        self._certificates = certificates
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._warned: dict[Expiry, float] = {}

    def start(self) -> None:
        """Begin; nothing to do for a node without TLS."""
        if self._certificates:
            self._warn()
            self._wait()

    def stop(self) -> None:
        """End. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        for certificates in self._certificates:
            certificates.look()
        self._warn()
        self._wait()

    def _warn(self) -> None:
        """Warn of each certificate once a day, and at once when another that ends soon takes its place."""
        now_s, now_ms = self._clock.wall_ms() / 1000, self._clock.monotonic_ms()
        current = {expiry: of.owner for of in self._certificates for expiry in of.expiries}
        self._warned = {expiry: at_ms for expiry, at_ms in self._warned.items() if expiry in current}
        for expiry, owner in current.items():
            if expiry.at_s - now_s > EXPIRES_SOON_S or now_ms < self._warned.get(expiry, float("-inf")) + WARN_AGAIN_MS:
                continue
            self._warned[expiry] = now_ms
            tell = log.warning if expiry.at_s > now_s else log.error
            remedy = f"put a new one where {expiry.setting} says: it counts within seconds, without a restart"
            tell("a certificate ends", of=owner, what=expiry.said(now_s), remedy=remedy)
