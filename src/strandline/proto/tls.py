"""TLS for both ends: settings under Kafka's names -> `ssl.SSLContext`, and what a handshake that failed means.

Certificates and keys are PEM (KIP-651). The private key never lies in a file that this code writes: a key that is
given as text goes to OpenSSL through memory.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strandline.proto.errors import ConfigError

PEM = "PEM"

TRUST = "ssl.truststore.location"

HOW_TO_MAKE_PEM = {
    "PKCS12": "PEM: `openssl pkcs12 -in store.p12 -out store.pem` makes it of a PKCS12 store "
    "(add -nokeys for a truststore)",
    "JKS": "PEM: `keytool -importkeystore -srckeystore store.jks -destkeystore store.p12 -deststoretype PKCS12`, then "
    "`openssl pkcs12 -in store.p12 -out store.pem`, makes it of a Java keystore (add -nokeys for a truststore)",
}

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

SANE_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2 unless `ssl.cipher.suites` is set: forward secrecy and authenticated encryption, as in TLS 1.3."""

_BEGIN = "-----BEGIN "
_BEGIN_CERTIFICATE, _END_CERTIFICATE = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"

_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which Python has no name."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """One end's TLS, as texts under Kafka's names. What is empty was not given.

    Attributes:
        prefix: stands before each name in errors (`listener.name.internal.`).
    """

    keystore_type: str = PEM
    keystore_location: str = ""
    keystore_certificate_chain: str = ""
    keystore_key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    truststore_type: str = PEM
    truststore_location: str = ""
    truststore_certificates: str = ""
    enabled_protocols: str = "TLSv1.2,TLSv1.3"
    cipher_suites: str = ""
    prefix: str = ""

    @property
    def has_certificate(self) -> bool:
        """Whether this end has a certificate of its own to show."""
        return bool(self.keystore_location or self.keystore_certificate_chain)

    @property
    def has_trust(self) -> bool:
        """Whether it is said which certificates of the other end count."""
        return bool(self.truststore_location or self.truststore_certificates)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that may change while a process runs."""
        return tuple(path for path in (self.keystore_location, self.truststore_location) if path)

    def error(self, name: str, value: object, allowed: str) -> ConfigError:
        """A ConfigError that names the setting as it was given."""
        return ConfigError(f"{self.prefix}{name}", value, allowed)


def server_context(settings: TlsSettings, *, client_auth: str = "none", alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """The context of a listener.

    Args:
        client_auth: none, requested or required: whether clients show certificates, which the truststore must know.

    Raises:
        ConfigError: no certificate, one that cannot be used, or clients' certificates without a truststore.
    """
    if not settings.has_certificate:
        allowed = "the PEM file with the listener's private key and certificate chain: a listener of SSL needs one"
        raise settings.error("ssl.keystore.location", "", allowed)
    context = _context(settings, ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if client_auth != "none":
        if not settings.has_trust:
            allowed = f"the PEM file of the CAs whose certificates clients show: ssl.client.auth={client_auth} needs it"
            raise settings.error("ssl.truststore.location", "", allowed)
        _load_trust(context, settings)
    context.verify_mode = CLIENT_AUTH[client_auth]
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def client_context(settings: TlsSettings, *, check_host: bool = True, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """The context of an end that connects. Without a truststore the system's CAs count.

    Raises:
        ConfigError: a file or text cannot be used.
    """
    context = _context(settings, ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_host
    if settings.has_trust:
        _load_trust(context, settings)
    else:
        context.set_default_verify_paths()
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def _context(settings: TlsSettings, protocol: int) -> ssl.SSLContext:
    for name, kind in (("keystore", settings.keystore_type), ("truststore", settings.truststore_type)):
        if kind != PEM:
            raise settings.error(f"ssl.{name}.type", kind, HOW_TO_MAKE_PEM.get(kind.upper(), "PEM, nothing else"))
    context = ssl.SSLContext(protocol)
    _set_versions(context, settings)
    _set_ciphers(context, settings)
    if settings.has_certificate:
        _load_certificate(context, settings)
    return context


def _set_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    names = [name.strip() for name in settings.enabled_protocols.split(",") if name.strip()]
    if not names or not set(names) <= VERSIONS.keys():
        raise settings.error("ssl.enabled.protocols", settings.enabled_protocols, "TLSv1.2, TLSv1.3 or both")
    chosen = sorted(VERSIONS[name] for name in names)
    context.minimum_version, context.maximum_version = chosen[0], chosen[-1]


def _set_ciphers(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Names of OpenSSL, or IANA's as Java has them, of TLS 1.2. Those of TLS 1.3 are fixed in Python."""
    text = settings.cipher_suites
    names = [_openssl_name(name.strip()) for name in text.split(",") if name.strip()]
    of_13 = [name for name in names if name.startswith("TLS_")]
    if of_13:
        allowed = "suites of TLS 1.2: those of TLS 1.3 cannot be chosen here, and all of them are sound"
        raise settings.error("ssl.cipher.suites", text, allowed)
    try:
        context.set_ciphers(":".join(names) or SANE_CIPHERS)
    except ssl.SSLError:
        allowed = "names of TLS 1.2 suites such as ECDHE-RSA-AES256-GCM-SHA384 (`openssl ciphers -tls1_2` lists them)"
        raise settings.error("ssl.cipher.suites", text, allowed) from None


def _openssl_name(name: str) -> str:
    """`TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384` -> `ECDHE-RSA-AES256-GCM-SHA384`; other names as they are."""
    if not name.startswith("TLS_") or "_WITH_" not in name:
        return name
    exchange, _, rest = name.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"^AES_(\d+)", r"AES\1", rest).removesuffix("_POLY1305_SHA256")
    cipher = cipher + "_POLY1305" if cipher.startswith("CHACHA20") else cipher
    return f"{exchange}_{cipher}".replace("_", "-")


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.keystore_location:
        if settings.keystore_certificate_chain or settings.keystore_key:
            allowed = "nothing beside ssl.keystore.certificate.chain and ssl.keystore.key: one or the other"
            raise settings.error("ssl.keystore.location", settings.keystore_location, allowed)
        name = "ssl.keystore.location"
        _load_chain(context, settings, name, settings.keystore_location, settings.keystore_location)
        return
    if not settings.keystore_key:
        raise settings.error("ssl.keystore.key", "", "the private key (PEM) of ssl.keystore.certificate.chain")
    pem = f"{_unfolded(settings.keystore_key)}\n{_unfolded(settings.keystore_certificate_chain)}\n"
    with _in_memory(pem) as path:
        _load_chain(context, settings, "ssl.keystore.certificate.chain", "the given PEM", path)


def _load_chain(context: ssl.SSLContext, settings: TlsSettings, name: str, where: str, path: str) -> None:
    wanted = False

    def password() -> str:
        nonlocal wanted
        wanted = True
        return settings.key_password

    try:
        context.load_cert_chain(path, password=password)
    except ssl.SSLError as error:
        if wanted:
            reason = "the password of the private key" if settings.key_password else "the key has one, and none is set"
            raise settings.error("ssl.key.password", settings.key_password, reason) from None
        allowed = f"a PEM file with a private key and its certificate chain ({error.reason or 'no PEM'}); {_advice()}"
        raise settings.error(name, where, allowed) from None
    except (OSError, ValueError) as error:
        raise settings.error(name, where, f"a readable file ({_words(error)})") from None


def _advice() -> str:
    return "a store of Java or PKCS12 is none: `openssl pkcs12 -in store.p12 -out store.pem` makes one of it"


def _load_trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.truststore_location and settings.truststore_certificates:
        allowed = "nothing beside ssl.truststore.certificates: one or the other"
        raise settings.error("ssl.truststore.location", settings.truststore_location, allowed)
    name = "ssl.truststore.location" if settings.truststore_location else "ssl.truststore.certificates"
    value = settings.truststore_location or "the given PEM"
    try:
        if settings.truststore_location:
            context.load_verify_locations(cafile=settings.truststore_location)
        else:
            context.load_verify_locations(cadata=_unfolded(settings.truststore_certificates))
    except ssl.SSLError as error:
        allowed = f"a PEM file with the certificates of CAs ({error.reason or 'no PEM'}); {_advice()}"
        raise settings.error(name, value, allowed) from None
    except (OSError, ValueError) as error:
        raise settings.error(name, value, f"a readable file ({_words(error)})") from None


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _unfolded(pem: str) -> str:
    """PEM that was written on one line of a properties file, its lines parted by ``\\n`` or by spaces, as lines."""
    text = pem.replace("\\n", "\n").strip()
    if "\n" in text or _BEGIN not in text:
        return text
    blocks = re.findall(r"(-----BEGIN [^-]+-----)\s*(.*?)\s*(-----END [^-]+-----)", text)
    return "\n".join("\n".join((begin, *body.split(), end)) for begin, body, end in blocks)


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """A path under which OpenSSL reads the text, which lies on no disk."""
    descriptor = os.memfd_create("pem")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let two contexts meet in memory: the server's certificate as the client sees it, and the client's as the server
    does (see `ssl.SSLSocket.getpeercert`; empty where none was asked for).

    Raises:
        ssl.SSLError: one of them refuses the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    waiting = list(ends)
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    return ends[0].getpeercert() or {}, ends[1].getpeercert() or {}


def own_certificate(settings: TlsSettings) -> dict[str, Any]:
    """The certificate that a listener shows, as `ssl.SSLSocket.getpeercert` has it.

    Python's ssl decodes no certificate but that of a peer, which has to be trusted: here it meets a client that trusts
    this one alone, whatever its dates.

    Raises:
        ConfigError: the certificate cannot be used.
        ssl.SSLError: it is none that a server may show.
    """
    server = server_context(settings)
    client = _context(settings, ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    text = _unfolded(settings.keystore_certificate_chain)
    if settings.keystore_location:
        try:
            text = Path(settings.keystore_location).read_text(encoding="ascii", errors="replace")
        except OSError as error:
            allowed = f"a readable file ({_words(error)})"
            raise settings.error("ssl.keystore.location", settings.keystore_location, allowed) from None
    found = re.search(f"{_BEGIN_CERTIFICATE}.*?{_END_CERTIFICATE}", text, re.DOTALL)
    if found is None:  # it was replaced since it was loaded
        raise settings.error("ssl.keystore.location", settings.keystore_location, f"a PEM file; {_advice()}")
    leaf = f"{found[0]}\n"
    client.load_verify_locations(cadata=leaf)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    return shake_hands(server, client)[0]


def trusted_certificates(settings: TlsSettings) -> list[dict[str, Any]]:
    """The CAs of the truststore, as `ssl.SSLSocket.getpeercert` has them; none without a truststore.

    Raises:
        ConfigError: the truststore cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.has_trust:
        _load_trust(context, settings)
    return [dict(certificate) for certificate in context.get_ca_certs()]


# What went wrong

_MEANINGS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS there",
    "RECORD_LAYER_FAILURE": "it does not speak TLS there",
    "PACKET_LENGTH_TOO_LONG": "it does not speak TLS there",
    "HTTP_REQUEST": "it speaks plain HTTP",
    "CERTIFICATE_REQUIRED": "it asks for a certificate of the client (ssl.keystore.location), and got none",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate",
    "UNKNOWN_CA": "the other end does not know the CA of the certificate that it was shown",
    "BAD_CERTIFICATE": "the other end does not take the certificate that it was shown",
    "CERTIFICATE_EXPIRED": "the other end says that the certificate which it was shown has expired",
    "CERTIFICATE_UNKNOWN": "the other end does not take the certificate that it was shown",
    "NO_SHARED_CIPHER": "the two ends have no cipher suite in common (ssl.cipher.suites)",
    "UNSUPPORTED_PROTOCOL": "the two ends have no version of TLS in common (ssl.enabled.protocols)",
    "PROTOCOL_VERSION": "the two ends have no version of TLS in common (ssl.enabled.protocols)",
    "HANDSHAKE_FAILURE": "the other end refuses the handshake: no cipher suite in common, or it wants a certificate",
}


_NO_CA = (18, 19, 20, 21)
"""OpenSSL's numbers of certificates that end in no CA which is trusted here."""


def is_tls_error(error: BaseException | None) -> bool:
    """Whether the connection ended by TLS, and not by the network."""
    return isinstance(error, ssl.SSLError)


def explain(error: BaseException, trust: str = TRUST) -> str:
    """Explanation of a TLS error, as a sentence without full stop. `trust`: name of the setting that lists the trusted
    CAs."""
    if isinstance(error, ssl.SSLCertVerificationError):
        words = error.verify_message or error.reason
        advice = f"; {trust} names a PEM file with its CA" if error.verify_code in _NO_CA else ""
        return f"the certificate of the other end does not count: {words}{advice}"
    reason = getattr(error, "reason", None) or ""
    for key, meaning in _MEANINGS.items():
        if key in reason:
            return f"{meaning} ({reason})"
    return f"TLS failed: {reason or error}"
