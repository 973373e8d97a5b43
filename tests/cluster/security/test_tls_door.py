"""The door of a TLS listener: handshakes that fail or never end, changed certificates, memory."""

from __future__ import annotations

import asyncio
import random
import ssl
import warnings
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tls_case import ca, eventually, node_settings, open_door, other_ca, trusting

from strandline.cluster.security import tls_transport
from strandline.proto.tls import TlsSettings, client_context


def events(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs]


def test_a_client_without_tls_gets_one_log_line_and_an_answer_that_says_so() -> None:
    async def main() -> None:
        async with open_door() as door:
            for _ in range(5):
                reader, writer = await door.connect()
                writer.write(b"\x00\x00\x00\x10\x00\x12\x00\x03")
                assert (await reader.read())[:2] == b"\x15\x03"  # an alert: clients say TLS
                writer.close()
            reader, writer = await door.connect()
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert b"this port speaks TLS: ask for https://" in await reader.read()
            writer.close()
            await eventually(lambda: door.door.failures == 6)
            assert door.door.handshakes == 0
            assert all(not served.received for served in door.served)

    with capture_logs() as logs:
        asyncio.run(main())
    assert events(logs) == ["a client does not speak TLS on a TLS port"]
    assert logs[0]["spoken"] == "plaintext"
    assert "security.protocol=SSL" in logs[0]["advice"]


def test_a_handshake_that_never_ends_is_ended() -> None:
    async def main() -> None:
        async with open_door(handshake_s=0.2) as door:
            silent, _ = await door.connect()
            began, writer = await door.connect()
            writer.write(b"\x16\x03\x01\x02\x00\x01")  # a ClientHello that does not go on
            assert await silent.read() == b""
            assert await began.read() == b""
            await eventually(lambda: door.door.handshakes == 0)

    with capture_logs() as logs:
        asyncio.run(main())
    assert events(logs) == ["a TLS handshake took too long"]


def test_handshakes_are_bounded_and_the_oldest_makes_room() -> None:
    async def main() -> None:
        async with open_door(handshakes_max=3) as door:
            waiting = [await door.connect() for _ in range(6)]
            await eventually(lambda: door.door.failures == 3)
            assert door.door.handshakes == 3
            for reader, _ in waiting[:3]:
                assert await reader.read() == b""
            _, writer = await door.connect(trusting())  # honest ones come in all the same
            await eventually(lambda: door.door.handshakes == 2)
            writer.close()

    with capture_logs() as logs:
        asyncio.run(main())
    warned = [line for line in logs if line["log_level"] == "warning"]
    assert events(warned) == ["dropped a TLS handshake: too many at once"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_each_end_learns_why_a_handshake_failed(version: ssl.TLSVersion) -> None:
    """asyncio drops the alert of the end that refuses (of Python 3.11): the door sends it."""

    async def main() -> None:
        async with open_door(client_auth="required") as door:
            context = trusting()
            context.minimum_version = context.maximum_version = version
            with pytest.raises(ssl.SSLError, match=r"ALERT_(CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE)"):  # noqa: PT012
                reader, _ = await door.connect(context)
                await reader.read()
            await eventually(lambda: door.door.failures == 1)

    with capture_logs() as logs:
        asyncio.run(main())
    assert events(logs) == ["a TLS handshake failed"]
    assert "the client shows no certificate" in logs[0]["reason"]


def test_a_client_with_a_foreign_certificate_does_not_come_in() -> None:
    async def main() -> None:
        async with open_door(client_auth="required") as door:
            stranger = str(other_ca().client("alice"))
            with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):  # noqa: PT012
                reader, _ = await door.connect(trusting(keystore_location=stranger))
                await reader.read()
            with pytest.raises(ssl.SSLError, match="EXPIRED"):  # noqa: PT012
                reader, _ = await door.connect(trusting(keystore_location=str(ca().client("late", days=-1))))
                await reader.read()
            assert all(not hasattr(served, "transport") for served in door.served)
            _, writer = await door.connect(trusting(keystore_location=str(ca().client("alice"))))
            await eventually(lambda: hasattr(door.served[-1], "transport"))
            assert door.served[-1].transport.get_extra_info("peercert")["subject"] == ((("commonName", "alice"),),)
            writer.close()

    asyncio.run(main())


def test_old_versions_of_tls_are_refused() -> None:
    async def main() -> None:
        async with open_door() as door:
            context = trusting()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = ssl.TLSVersion.TLSv1_1
            context.set_ciphers("ALL:@SECLEVEL=0")
            with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
                await door.connect(context)
            await eventually(lambda: door.door.failures == 1)

    asyncio.run(main())


def test_changed_certificates_count_for_new_connections(tmp_path: Path) -> None:
    """A new file is in use; one that is no certificate is logged, and the one before stays in use."""
    path = tmp_path / "node.pem"
    path.write_bytes(ca().node(1).read_bytes())

    async def serial(door: Any) -> str:
        _, writer = await door.connect(trusting())
        number = str(writer.get_extra_info("peercert")["serialNumber"])
        writer.close()
        return number

    async def main() -> None:
        async with open_door(node_settings(path)) as door:
            first = await serial(door)
            _, kept = await door.connect(trusting())
            path.write_bytes(ca().node(1).read_bytes())
            door.certificates.look()
            second = await serial(door)
            assert second != first
            path.write_text("half of a fi")
            door.certificates.look()
            door.certificates.look()
            assert await serial(door) == second
            path.unlink()
            door.certificates.look()
            assert await serial(door) == second
            path.write_bytes(ca().node(1).read_bytes())
            door.certificates.look()
            assert await serial(door) not in (first, second)
            kept.write(b"still here")  # a connection outlives the certificate that it began with
            await eventually(lambda: any(served.received == b"still here" for served in door.served))
            kept.close()

    with capture_logs() as logs:
        asyncio.run(main())
    assert events(logs) == [
        "changed certificates are in use",
        "changed certificates cannot be used; those before stay in use",
        "changed certificates cannot be used; those before stay in use",
        "changed certificates are in use",
    ]
    assert str(path) in logs[1]["error"]


def test_what_a_slow_reader_does_not_take_counts_and_is_held_once() -> None:
    """asyncio's own TLS would hold 32 MB encrypted, and say that nothing waits."""
    size = 32 << 20

    async def main() -> None:
        async with open_door() as door:
            reader, writer = await door.connect(trusting())
            await eventually(lambda: door.served and hasattr(door.served[0], "transport"))
            served = door.served[0]
            served.transport.set_write_buffer_limits(high=1 << 20)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            data = memoryview(bytes(size))
            served.transport.write(data)
            assert served.paused
            waiting = served.transport.get_write_buffer_size()
            assert waiting > size - (8 << 20)  # less what fits into the sockets
            connection: Any = served.transport._ssl_protocol  # type: ignore[attr-defined]
            assert connection._outgoing.pending <= 2 * tls_transport.RECORD_BYTES
            below = connection._below.get_write_buffer_size()
            assert 0 < below <= 4 * tls_transport.RECORD_BYTES
            assert waiting == connection._write_buffer_size + connection._outgoing.pending + below
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            served.transport.write(b"end")
            served.transport.close()  # the goodbye goes behind what was written
            received = await reader.read()
            assert len(received) == size + 3
            assert received.endswith(b"end")
            assert served.transport.get_write_buffer_size() == 0
            assert await served.lost is None
            writer.close()

    asyncio.run(main())


def test_writing_goes_on_when_the_reader_does() -> None:
    """Paused and resumed many times, nothing is lost and nothing is stuck."""

    async def main() -> None:
        async with open_door() as door:
            reader, writer = await door.connect(trusting())
            await eventually(lambda: door.served and hasattr(door.served[0], "transport"))
            served = door.served[0]
            sent = 0
            got = bytearray()
            async with asyncio.timeout(60):
                for number in range(200):
                    piece = bytes([number]) * (number * 1000)
                    served.transport.write(piece)
                    sent += len(piece)
                    if number % 20 == 19:
                        while len(got) < sent:
                            got += await reader.read(50_000)
                        await eventually(lambda: not served.paused)
            assert len(got) == sent
            writer.close()
            await served.lost

    asyncio.run(main())


def test_random_bytes_harm_nobody() -> None:
    rng = random.Random(7)

    async def main() -> None:
        async with open_door(handshake_s=5) as door:
            _, kept = await door.connect(trusting())
            for number in range(60):
                reader, writer = await door.connect()
                start = b"\x16\x03\x01" if number % 2 else b""
                writer.write(start + rng.randbytes(rng.randrange(1, 3000)))
                writer.write_eof()
                try:
                    await reader.read()
                except OSError:
                    pass
                writer.close()
            kept.write(b"x")
            await eventually(lambda: any(served.received == b"x" for served in door.served))
            await eventually(lambda: door.door.handshakes == 0)
            kept.close()

    asyncio.run(main())


def test_a_client_that_expects_another_host_does_not_connect() -> None:
    async def main() -> None:
        only = ca().issue("only-name", "n", hosts=("broker.example.com",))
        async with open_door(node_settings(only)) as door:
            with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
                await door.connect(trusting())
            unchecked = client_context(TlsSettings(truststore_location=str(ca().file)), check_host=False)
            _, writer = await door.connect(unchecked)
            writer.close()

    asyncio.run(main())
