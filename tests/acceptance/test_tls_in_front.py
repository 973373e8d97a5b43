"""Row S94: TLS ends in front of the broker (stunnel), which stays in plaintext behind it (docs/security.md)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.cluster.security.dev_certificates import DevCa
from tests.acceptance.foreign import kcat, needs_kcat
from tests.ports import free_port

pytestmark = pytest.mark.skipif(shutil.which("stunnel") is None, reason="stunnel is not installed")


class Behind(DevCluster):
    """A node with one listener more, whose advertised address is stunnel's."""

    def __init__(self) -> None:
        self.inside, self.front = free_port(), free_port()
        super().__init__(nodes=1)

    def _settings_of(self, node_id: int) -> dict[str, str]:
        settings = super()._settings_of(node_id)
        listeners = f"{settings['listeners']},FRONT://127.0.0.1:{self.inside}"
        return {**settings, "listeners": listeners, "advertised.listeners": f"FRONT://127.0.0.1:{self.front}"}


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of TLS, and the CA."""
    ca = DevCa(tmp_path_factory.mktemp("ca"))
    with Behind() as cluster:
        config = cluster.root / "stunnel.conf"
        config.write_text(
            f"foreground = yes\npid =\n[kafka]\naccept = 127.0.0.1:{cluster.front}\n"
            f"connect = 127.0.0.1:{cluster.inside}\ncert = {ca.issue('front', 'front', hosts=('127.0.0.1',))}\n"
        )
        with subprocess.Popen(["stunnel", str(config)], stderr=subprocess.DEVNULL) as stunnel:
            try:
                yield f"127.0.0.1:{cluster.front}", ca.file
            finally:
                stunnel.terminate()


def test_our_client_through_stunnel(behind: tuple[str, Path]) -> None:
    """Metadata name the address in front, so that every connection of the client goes through it."""
    front, ca = behind
    secure = {"security_protocol": "SSL", "ssl_truststore_location": str(ca)}
    with Admin(front, **secure) as admin:
        admin.create_topics([NewTopic("t", 1, 1)])
        assert [f"{node.host}:{node.port}" for node in admin.describe_cluster().nodes] == [front]
    with Producer(front, **secure) as producer:
        for number in range(20):
            producer.send("t", bytes([number]) * 500_000).result()
    with Consumer(front, auto_offset_reset="earliest", **secure) as consumer:
        consumer.assign([("t", 0)])
        assert [next(consumer).value for _ in range(20)] == [bytes([number]) * 500_000 for number in range(20)]


@needs_kcat
def test_kcat_through_stunnel(behind: tuple[str, Path]) -> None:
    front, ca = behind
    settings = ("-X", "security.protocol=ssl", "-X", f"ssl.ca.location={ca}")
    kcat("-b", front, "-P", "-t", "t", *settings, stdin=b"through the front")
    assert "through the front" in kcat("-b", front, "-C", "-t", "t", "-o", "-1", "-c", "1", *settings)
