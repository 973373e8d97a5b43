"""Clusters that are secured, and how clients get into the one that is measured.

Measures pass addresses around, also to processes that they start. What else a client must know stands in a file that
the cluster has written, as Kafka's own clients read it; an environment variable names it while the cluster runs, so
that every process of the measure finds it, and none has a password among its arguments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strandline.cluster.node.config_values import parse_properties
from strandline.cluster.node.dev_login import MECHANISM, PASSWORD_FILE, USER, DevLogin
from strandline.cluster.security.dev_certificates import DevCa
from strandline.proto.jaas import parse_jaas

LEVELS = ("none", "tls", "sasl")
"""Plaintext; TLS on every listener, clients with certificates; the same, and clients that log in by SCRAM instead."""

PROPERTIES = "STRANDLINE_BENCH_CLIENT_PROPERTIES"


def reached_by(properties: Path | None) -> None:
    """From now on clients read this file. None: they need none."""
    if properties is None:
        os.environ.pop(PROPERTIES, None)
    else:
        os.environ[PROPERTIES] = str(properties)


def own_settings() -> dict[str, Any]:
    """Of our own clients."""
    path = os.environ.get(PROPERTIES)
    return {} if path is None else dict(parse_properties(Path(path).read_text(), path))


def librdkafka_settings() -> dict[str, str]:
    """The same in the words of librdkafka."""
    own = own_settings()
    if not own:
        return {}
    found = {"security.protocol": own["security.protocol"], "ssl.ca.location": own["ssl.truststore.location"]}
    if "ssl.keystore.location" in own:  # key and certificates in one file
        found |= dict.fromkeys(("ssl.key.location", "ssl.certificate.location"), own["ssl.keystore.location"])
    if "sasl.mechanism" in own:
        login = parse_jaas(own["sasl.jaas.config"]).options
        found |= {"sasl.mechanism": own["sasl.mechanism"], "sasl.username": login["username"]}
        found["sasl.password"] = login["password"]
    return found


class SecuredKafka:
    """What Apache Kafka is told, to be as secure as `strandline dev --secure --sasl`, by certificates of the same kind.

    Attributes:
        client_properties: the settings of clients, in a file.
    """

    def __init__(self, directory: Path, nodes: Mapping[int, int]) -> None:
        """Make certificates and a user. `nodes`: the ports of listeners between brokers."""
        self._internal = nodes
        self._ca = DevCa(directory)
        self._keystores = {node: self._ca.node(node) for node in nodes}
        login = DevLogin(directory)
        login.make(is_new=True)
        self._password = (directory / PASSWORD_FILE).read_text().strip()
        self.client_properties = directory / "client.properties"
        self.client_properties.write_text(login.properties(self._ca.file))

    def format_options(self) -> list[str]:
        """For kafka-storage: it takes a password from its arguments alone, and this one dies with the cluster."""
        return ["--add-scram", f"{MECHANISM}=[name={USER},password={self._password}]"]

    def settings(self, node: int, client_port: int, controller_port: int) -> dict[str, str]:
        """Of one node; every listener speaks TLS, brokers and controllers show each other certificates."""
        clients = f"CLIENTS://127.0.0.1:{client_port},INTERNAL://127.0.0.1:{self._internal[node]}"
        return {
            "listeners": f"{clients},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": clients,
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "INTERNAL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._keystores[node]),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._ca.file),
            "ssl.client.auth": "required",
            "listener.name.clients.ssl.client.auth": "none",
            "sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.clients.{MECHANISM.lower()}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        }
