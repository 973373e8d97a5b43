"""Certificates that end: told in time, once a day, until another takes their place."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.cluster.security.tls_case import ca, eventually

from strandline.cluster.security import certificates as module
from strandline.cluster.security.certificates import Certificates, CertificateWatch, Expiry, expiries
from strandline.proto.errors import ConfigError
from strandline.proto.tls import TlsSettings, server_context

DAY_S = 86_400.0


class HandClock:
    def __init__(self) -> None:
        self.now_s = time.time()

    def monotonic_ms(self) -> float:
        return self.now_s * 1000

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)


def keystore(days: float, name: str = "ends") -> Path:
    return ca().issue(name, name, hosts=("127.0.0.1",), days=days)


def nobody(setting: str, why: str) -> None:
    raise AssertionError(f"{setting}: {why}")


def days_left(expiry: Expiry) -> float:
    return round((expiry.at_s - time.time()) / DAY_S, 1)


def test_the_own_certificate_and_the_cas() -> None:
    settings = TlsSettings(keystore_location=str(keystore(90)), truststore_location=str(ca().file))
    own, trusted = expiries(settings, nobody)
    assert (own.setting, own.subject, days_left(own)) == ("ssl.keystore.location", "ends", 90)
    assert (trusted.setting, trusted.subject) == ("ssl.truststore.location", "Strandline development CA")
    assert days_left(trusted) == 3650
    assert own.said(own.at_s - 3.9 * DAY_S) == "the certificate of ends ends in 3 days"
    assert own.said(own.at_s + 3 * DAY_S) == "the certificate of ends ended 3 days ago"


def test_as_text_with_a_password_and_after_its_end() -> None:
    """OpenSSL shows no peer's certificate that has ended, unless it is told not to look at the time."""
    path = ca().issue("late", "late", hosts=("a",), days=-2, password="open sesame")
    text = path.read_text()
    key, _, chain = text.partition("-----BEGIN CERTIFICATE-----")
    settings = TlsSettings(
        keystore_key=key,
        keystore_certificate_chain=f"-----BEGIN CERTIFICATE-----{chain}",
        key_password="open sesame",
        enabled_protocols="TLSv1.2",
    )
    [own] = expiries(settings, nobody)
    assert (own.setting, days_left(own)) == ("ssl.keystore.certificate.chain", -2)


def test_a_certificate_that_no_server_may_show_is_said() -> None:
    settings = TlsSettings(keystore_location=str(ca().client("alice")))
    with capture_logs() as logs:
        assert Certificates("SSL", settings, server_context).expiries == []
    assert [(line["event"], line["why"]) for line in logs] == [
        ("a listener's certificate is none for servers", "unsuitable certificate purpose")
    ]
    with pytest.raises(ConfigError):
        expiries(TlsSettings(keystore_location="/nowhere.pem"), nobody)


def test_warned_of_once_a_day_until_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.005)
    path = keystore(29.2, "short")
    settings = TlsSettings(keystore_location=str(path))
    clock = HandClock()

    async def main() -> None:
        watched = Certificates("SSL", settings, server_context)
        watch = CertificateWatch([watched], clock)
        with capture_logs() as logs:

            def said() -> list[tuple[str, str]]:
                return [(line["log_level"], line["what"]) for line in logs if line["event"] == "a certificate ends"]

            watch.start()
            await asyncio.sleep(0.05)
            assert said() == [("warning", "the certificate of short ends in 29 days")]
            clock.now_s += DAY_S
            await eventually(lambda: len(said()) == 2)
            clock.now_s += 29 * DAY_S
            await eventually(lambda: len(said()) == 3)
            assert said()[2] == ("error", "the certificate of short ended 0 days ago")
            new = keystore(2 * 365, "renewed")
            new.rename(path)
            await eventually(lambda: watched.expiries[0].subject == "renewed")
            clock.now_s += DAY_S
            await asyncio.sleep(0.05)
            assert len(said()) == 3
        watch.stop()

    asyncio.run(main())
