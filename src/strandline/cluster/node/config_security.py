"""The settings of TLS (which listener speaks it, with which certificates, whom it lets in) and of the authorizer.

Each setting of `LISTENER_SETTINGS` may be given for one listener alone, as ``listener.name.<name>.ssl...`` with the
listener's name in lower case; that wins over the one for all.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.cluster.node.config_sasl import ENABLED, PLAIN_JAAS, PLAIN_USERS, SASL_PLAINTEXT, SASL_SSL, Sasl
from strandline.cluster.node.config_settings import HTTP, INTERNAL
from strandline.cluster.node.config_values import Listener, Setting, boolean, integer, size, string
from strandline.cluster.security.principal import PrincipalRules
from strandline.controller.metadata.config_key import ConfigType, split_list
from strandline.proto.errors import ConfigError
from strandline.proto.secrets import resolved
from strandline.proto.tls import CLIENT_AUTH, HOW_TO_MAKE_PEM, PEM, TlsSettings

PLAINTEXT, SSL = "PLAINTEXT", "SSL"

PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)

_ALLOWED = "one of " + ", ".join(PROTOCOLS)

PER_LISTENER = "listener.name."


def _protocol_map(name: str, text: str) -> Mapping[str, str]:
    protocols: dict[str, str] = {}
    for part in split_list(text):
        listener, colon, protocol = (piece.strip() for piece in part.partition(":"))
        if not colon or not listener:
            raise ConfigError(name, text, "a list of NAME:PROTOCOL, such as CLIENTS:SASL_SSL")
        if protocol.upper() not in PROTOCOLS:
            raise ConfigError(name, part, f"NAME:PROTOCOL, the protocol {_ALLOWED}")
        if listener.upper() in (INTERNAL, HTTP) and protocol.upper() in (SASL_PLAINTEXT, SASL_SSL):
            raise ConfigError(name, part, f"{listener}:PLAINTEXT or {listener}:SSL: only clients' listeners speak SASL")
        if listener.upper() in protocols:
            raise ConfigError(name, text, f"each name once; {listener} stands there twice")
        protocols[listener.upper()] = protocol.upper()
    return protocols


def _pem(name: str, text: str) -> str:
    if text != PEM:
        raise ConfigError(name, text, HOW_TO_MAKE_PEM.get(text.upper(), "PEM, nothing else"))
    return text


def _algorithm(name: str, text: str) -> str:
    if text.lower() not in ("https", ""):
        raise ConfigError(name, text, "https, or nothing for no check of the host name")
    return text.lower()


def _client_auth(name: str, text: str) -> str:
    if text.lower() not in CLIENT_AUTH:
        raise ConfigError(name, text, "one of " + ", ".join(CLIENT_AUTH))
    return text.lower()


def _rules(name: str, text: str) -> str:
    PrincipalRules(name, text)
    return text


STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The one authorizer that there is, under the name that it has in Kafka's files."""


def _authorizer(name: str, text: str) -> str:
    if text in ("", STANDARD_AUTHORIZER):
        return text
    why = "AclAuthorizer is ZooKeeper's; its successor is " if text.endswith("AclAuthorizer") else ""
    raise ConfigError(name, text, f"{why}{STANDARD_AUTHORIZER}, or empty for none: there are no Java plug-ins here")


def _super_users(name: str, text: str) -> tuple[str, ...]:
    users = tuple(part.strip() for part in text.split(";") if part.strip())
    for user in users:
        kind, colon, rest = user.partition(":")
        if not (kind and colon and rest):
            raise ConfigError(name, user, "principals as User:alice, separated by semicolons")
    return users


class Security:
    """Who may listen in, who may come in, and who decides what they may do."""

    authorizer: Setting[str] = Setting(
        "authorizer.class.name",
        _authorizer,
        "",
        f"What decides who may do what: {STANDARD_AUTHORIZER}, by the ACLs of the cluster. Empty: everybody may do "
        "everything. Give every node the same.",
    )
    super_users: Setting[tuple[str, ...]] = Setting(
        "super.users",
        _super_users,
        "",
        "Principals that may do everything, whatever ACLs say, as User:admin;User:CN=ops,O=example: separated by "
        "semicolons. They make the first ACLs. Without an authorizer it has no effect.",
    )
    allow_everyone_if_no_acl: Setting[bool] = boolean(
        "allow.everyone.if.no.acl.found",
        False,
        "Whether everybody may do everything with a resource that no ACL names. Without an authorizer it has no "
        "effect.",
    )

    audit_log_path = string(
        "audit.log.path",
        "",
        "A file of this node alone that gets a line of JSON for each change that a client asks for (topics, settings, "
        "ACLs, credentials, groups, elections, voters). Logins, what is denied and changes that failed stand beside it "
        "in PATH.attempts. Empty: no file; with an authorizer the node's log has these lines.",
    )
    audit_log_max_bytes = size(
        "audit.log.max.bytes", 100 * 1024**2, "Size at which the audit begins another file.", low=1024
    )
    audit_log_files = integer(
        "audit.log.files",
        10,
        "How many files of the audit are kept: PATH, PATH.1, ..., and as many of PATH.attempts; the oldest goes.",
        low=2,
        high=1000,
    )
    audit_topic_enable: Setting[bool] = boolean(
        "audit.topic.enable",
        False,
        "Whether this broker writes the lines of its audit to the topic __audit, too. The topic is made with the first "
        "line: a partition for each broker, copies by offsets.topic.replication.factor, a week of retention. Give "
        "every broker the same.",
    )
    security_protocol_map: Setting[Mapping[str, str]] = Setting(
        "listener.security.protocol.map",
        _protocol_map,
        "",
        "What each listener speaks below its protocol, as NAME:PLAINTEXT, NAME:SSL (TLS), NAME:SASL_PLAINTEXT or "
        "NAME:SASL_SSL (authentication, without TLS and with it). A listener that is not named here speaks what its "
        "name says, if it is one of these four, else PLAINTEXT.",
        type=ConfigType.LIST,
    )
    ssl_keystore_type: Setting[str] = Setting(
        "ssl.keystore.type",
        _pem,
        PEM,
        "The format of keys and certificates: PEM. Java keystores and PKCS12 are not read.",
    )
    ssl_keystore_location = string(
        "ssl.keystore.location",
        "",
        "A PEM file with a listener's private key and its certificate chain. Changed files count for new connections "
        "within seconds; a broken one is logged, and what was in use stays in use.",
    )
    ssl_keystore_chain = string(
        "ssl.keystore.certificate.chain", "", "The certificate chain as PEM text, where no file is named."
    )
    ssl_keystore_key = string(
        "ssl.keystore.key", "", "The private key (PKCS#8) as PEM text, beside ssl.keystore.certificate.chain."
    )
    ssl_key_password = string(
        "ssl.key.password",
        "",
        "The password of the private key. This and ssl.keystore.key may refer to what stands elsewhere: ${env:NAME}, "
        "${file:/path/file.properties:key}, ${dir:/path:file}.",
    )
    ssl_truststore_type: Setting[str] = Setting(
        "ssl.truststore.type", _pem, PEM, "The format of the CAs' certificates: PEM."
    )
    ssl_truststore_location = string(
        "ssl.truststore.location",
        "",
        "A PEM file with the certificates of the CAs that others' certificates come from.",
    )
    ssl_truststore_certificates = string(
        "ssl.truststore.certificates", "", "The same as PEM text, where no file is named."
    )
    ssl_client_auth: Setting[str] = Setting(
        "ssl.client.auth",
        _client_auth,
        "none",
        "Whether clients show certificates: none, requested (those who have one), required. Between nodes it is always "
        "required; with SASL_SSL only listener.name.<name>.ssl.client.auth counts (KIP-684).",
    )
    ssl_enabled_protocols = string(
        "ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "The versions of TLS: TLSv1.2, TLSv1.3 or both."
    )
    ssl_cipher_suites = string(
        "ssl.cipher.suites",
        "",
        "The cipher suites of TLS 1.2, under their names in Java or OpenSSL. Empty: those with forward secrecy and "
        "authenticated encryption. Those of TLS 1.3 are all sound, and are not chosen.",
    )
    ssl_principal_mapping_rules: Setting[str] = Setting(
        "ssl.principal.mapping.rules",
        _rules,
        "DEFAULT",
        "How the subject of a client's certificate becomes its principal: RULE:pattern/replacement/ (then L or U for "
        "lower or upper case), separated by commas; the first that matches the whole subject counts. DEFAULT takes "
        "the subject as it is.",
    )
    ssl_endpoint_identification: Setting[str] = Setting(
        "ssl.endpoint.identification.algorithm",
        _algorithm,
        "https",
        "Whether a node that connects to another checks that the certificate names the host it asked for: https, or "
        "empty for no check.",
    )


LISTENER_SETTINGS: Mapping[str, Setting[str]] = {
    **{
        setting.name: setting
        for setting in vars(Security).values()
        if isinstance(setting, Setting) and setting.name.startswith("ssl.")
    },
    ENABLED: Sasl.sasl_enabled_mechanisms,
    PLAIN_JAAS: PLAIN_USERS,
}
"""What may be given for one listener, by the name without the prefix."""


def listener_setting(name: str) -> tuple[str, Setting[str]] | None:
    """The listener and the setting of ``listener.name.<name>.<setting>``; None for any other name."""
    if not name.startswith(PER_LISTENER):
        return None
    listener, _, rest = name[len(PER_LISTENER) :].partition(".")
    setting = LISTENER_SETTINGS.get(rest)
    return None if not listener or setting is None else (listener, setting)


def check_listeners(given: Mapping[str, str], protocols: Mapping[str, str], listeners: tuple[Listener, ...]) -> None:
    """Settings for listeners that there are not, protocols that are not. Raises ConfigError."""
    names = [listener.name for listener in listeners]
    for name in protocols:
        if name not in names and name not in (*PROTOCOLS, INTERNAL, HTTP):
            raise ConfigError("listener.security.protocol.map", name, "a name of `listeners`: " + ", ".join(names))
    for name, text in given.items():
        of = listener_setting(name)
        if of is not None and of[0].upper() not in names:
            raise ConfigError(name, text, "for a name of `listeners`, in lower case: " + ", ".join(names).lower())


def tls_settings(texts: Mapping[str, str], listener: str) -> TlsSettings:
    """The TLS of one listener, of what holds for it. Raises ConfigError for a reference to what is not there."""

    def text(name: str) -> str:
        try:
            return resolved(texts[name])
        except ValueError as error:
            raise ConfigError(f"{PER_LISTENER}{listener.lower()}.{name}", texts[name], str(error)) from None

    return TlsSettings(
        keystore_type=text("ssl.keystore.type"),
        keystore_location=text("ssl.keystore.location"),
        keystore_certificate_chain=text("ssl.keystore.certificate.chain"),
        keystore_key=text("ssl.keystore.key"),
        key_password=text("ssl.key.password"),
        truststore_type=text("ssl.truststore.type"),
        truststore_location=text("ssl.truststore.location"),
        truststore_certificates=text("ssl.truststore.certificates"),
        enabled_protocols=text("ssl.enabled.protocols"),
        cipher_suites=text("ssl.cipher.suites"),
    )
