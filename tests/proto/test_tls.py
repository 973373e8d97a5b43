"""TLS settings as texts: PEM in files and in place, passwords, references, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.cluster.security.dev_certificates import DevCa
from strandline.proto.errors import ConfigError
from strandline.proto.secrets import HIDDEN, is_secret, resolved
from strandline.proto.tls import TlsSettings, client_context, server_context


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> DevCa:
    return DevCa(tmp_path_factory.mktemp("ca"))


def split(path: Path) -> tuple[str, str]:
    """Private key and chain of a file that holds both."""
    key, end, chain = path.read_text().partition("-----END PRIVATE KEY-----\n")
    if not end:
        key, end, chain = path.read_text().partition("-----END ENCRYPTED PRIVATE KEY-----\n")
    return key + end, chain


@pytest.mark.parametrize("fold", ["\n", "\\n", " "])
def test_pem_may_stand_in_the_settings(ca: DevCa, fold: str) -> None:
    """As lines, with `\\n` between them, or on one line: a properties file has each of them."""
    key, chain = (text.replace("\n", fold) for text in split(ca.node(1)))
    trust = ca.file.read_text().replace("\n", fold)
    settings = TlsSettings(keystore_key=key, keystore_certificate_chain=chain, truststore_certificates=trust)
    assert server_context(settings, client_auth="required").get_ca_certs()
    assert client_context(settings).get_ca_certs()


def test_a_locked_key_needs_its_password(ca: DevCa, tmp_path: Path) -> None:
    path = str(ca.client("locked", password="sesame"))
    client_context(TlsSettings(keystore_location=path, key_password="sesame"))
    for password, words in (("", "none is set"), ("open", "the password of the private key")):
        with pytest.raises(ConfigError, match=words) as refused:
            client_context(TlsSettings(keystore_location=path, key_password=password))
        assert refused.value.key == "ssl.key.password"
        assert refused.value.value in ("", HIDDEN)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"keystore_location": "CA", "keystore_key": "x"}, "ssl.keystore.location"),
        ({"keystore_certificate_chain": "x"}, "ssl.keystore.key"),
        ({"keystore_certificate_chain": "x", "keystore_key": "y"}, "ssl.keystore.certificate.chain"),
        ({"keystore_location": "CA"}, "ssl.keystore.location"),  # a certificate without a key
        ({"truststore_location": "/nowhere"}, "ssl.truststore.location"),
        ({"truststore_certificates": "x"}, "ssl.truststore.certificates"),
        ({"truststore_location": "CA", "truststore_certificates": "x"}, "ssl.truststore.location"),
        ({"keystore_type": "JKS"}, "ssl.keystore.type"),
        ({"enabled_protocols": ""}, "ssl.enabled.protocols"),
        ({"cipher_suites": "TLS_AES_256_GCM_SHA384"}, "ssl.cipher.suites"),
    ],
)
def test_what_cannot_be_used_is_named(ca: DevCa, settings: dict[str, str], key: str) -> None:
    given = {name: str(ca.file) if text == "CA" else text for name, text in settings.items()}
    with pytest.raises(ConfigError) as refused:
        client_context(TlsSettings(**given))
    assert refused.value.key == key


def test_ciphers_by_their_names_in_java_and_in_openssl(ca: DevCa) -> None:
    for name in (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    ):
        context = client_context(TlsSettings(cipher_suites=name, enabled_protocols="TLSv1.2"))
        of_12 = [cipher["name"] for cipher in context.get_ciphers() if not cipher["name"].startswith("TLS_")]
        assert len(of_12) == name.count(",") + 1


def test_what_holds_secrets() -> None:
    for name in ("ssl.key.password", "ssl_key_password", "SSL_KEY_PASWORD", "listener.name.x.ssl.keystore.key"):
        assert is_secret(name)
    for name in ("ssl.keystore.location", "ssl.keystore.key.type", "key.deserializer"):
        assert not is_secret(name)
    assert "sesame" not in repr(TlsSettings(key_password="sesame", keystore_key="sesame"))
    assert "sesame" not in str(ConfigError("ssl.key.password", "sesame", "other"))


def test_references_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's three: the environment, a key of a properties file, a file of a directory (as Kubernetes mounts it)."""
    (tmp_path / "secrets.properties").write_text("other=x\nkey.password = sesame\n")
    (tmp_path / "password").write_text("sesame\n")
    monkeypatch.setenv("KEY_PASSWORD", "sesame")
    for text in (
        "${env:KEY_PASSWORD}",
        f"${{file:{tmp_path}/secrets.properties:key.password}}",
        f"${{dir:{tmp_path}:password}}",
    ):
        assert resolved(text) == "sesame"
    assert resolved("plain ${x}") == "plain ${x}"
    for text, words in (
        ("${env:NOT_SET}", "NOT_SET, which is not set"),
        (f"${{file:{tmp_path}/secrets.properties:no}}", "the key no"),
        (f"${{file:{tmp_path}/none:no}}", "No such file"),
        ("${dir:x}", "lacks the name"),
    ):
        with pytest.raises(ValueError, match=words):
            resolved(text)
