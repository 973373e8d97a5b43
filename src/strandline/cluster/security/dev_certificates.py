"""A CA, and certificates of nodes and clients, for development and tests.

The CA's private key lies beside them without a password: whoever reads the directory is every node and every client.
A cluster that others can reach takes its certificates from a CA of its own (docs/security.md).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.cluster.security.node_identity import NodeIdentity, node_uri
from strandline.proto.errors import ConfigError, MissingExtra
from strandline.proto.ids import NodeId

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_FILE, CA_KEY_FILE = "ca.pem", "ca.key"

_BACKDATED = timedelta(hours=1)
"""Clocks differ, between containers too."""


class DevCa:
    """The CA of a directory: made when it is not there, used again when it is.

    Args:
        days: how long what it makes holds; 0 or less: it has expired already, for tests.
    """

    def __init__(self, directory: Path) -> None:
        """Raises MissingExtra; ConfigError: what lies there is no CA's."""
        try:
            import cryptography  # noqa: F401
        except ImportError as error:
            raise MissingExtra.of("making certificates", "certs", error) from None
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._key, self.certificate = self._load() if self.file.exists() else self._make()

    @property
    def file(self) -> Path:
        """The CA's certificate: the truststore of everybody."""
        return self.directory / CA_FILE

    def node(self, node_id: int, *, hosts: Sequence[str] = (), cluster_id: str = "", days: float = 365) -> Path:
        """Key and certificate of one node: for its listeners, and for itself when it connects to others."""
        uri = node_uri(NodeIdentity(NodeId(node_id), cluster_id))
        return self.issue(f"node-{node_id}", f"node-{node_id}", hosts=(*own_hosts(), *hosts), uris=(uri,), days=days)

    def client(self, name: str, *, days: float = 365, password: str = "") -> Path:
        """Key and certificate of one client; `User:CN=<name>` is its principal where no rule shortens it."""
        return self.issue(f"client-{name}", name, days=days, password=password)

    def issue(
        self,
        file_name: str,
        common_name: str,
        *,
        hosts: Sequence[str] = (),
        uris: Sequence[str] = (),
        days: float = 365,
        password: str = "",
    ) -> Path:
        """Write `file_name`.pem: the private key, the certificate, the CA's certificate."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = self._builder(subject, key, days).add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        names = [_general_name(host) for host in dict.fromkeys(hosts)]
        names += [x509.UniformResourceIdentifier(uri) for uri in uris]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        lock = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, lock)
        path = self.directory / f"{file_name}.pem"
        _write(path, text + certificate.public_bytes(pem) + self.certificate.public_bytes(pem))
        return path

    def _make(self) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = self._key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Strandline development CA")])
        self._issuer = subject
        builder = self._builder(subject, key, 3650)
        usage = x509.KeyUsage(
            digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = builder.add_extension(identifier, critical=False).sign(key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _write(self.directory / CA_KEY_FILE, private)
        _write(self.file, certificate.public_bytes(pem))
        return key, certificate

    def _load(self) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key_path = self.directory / CA_KEY_FILE
        try:
            certificate = x509.load_pem_x509_certificate(self.file.read_bytes())
            key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            allowed = f"a directory of `strandline certs dev`, or a new one ({error})"
            raise ConfigError("DIR", str(self.directory), allowed) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(
                "DIR", str(self.directory), f"a directory of `strandline certs dev`: {key_path} is another's"
            )
        self._issuer = certificate.subject
        return key, certificate

    def _builder(self, subject: x509.Name, key: EllipticCurvePrivateKey, days: float) -> x509.CertificateBuilder:
        from cryptography import x509

        now = datetime.now(timezone.utc)  # noqa: UP017  # Python 3.11's datetime.UTC reads worse
        end = now + timedelta(days=days)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, end) - _BACKDATED)
            .not_valid_after(end)
        )


def client_properties(ca: Path, keystore: Path) -> str:
    """Settings of a client of a cluster with these certificates: Kafka's own tools read them, too."""
    return (
        "security.protocol=SSL\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={ca}\n"
        "ssl.keystore.type=PEM\n"
        f"ssl.keystore.location={keystore}\n"
    )


def own_hosts() -> tuple[str, ...]:
    """Names and addresses of a node on this machine."""
    return ("localhost", "127.0.0.1", "::1", socket.gethostname())


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, data: bytes) -> None:
    """Write the file at once or not at all: a node may look at it meanwhile."""
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    new.rename(path)
