"""The settings of SASL: which mechanisms clients may use, who they are, how long that holds."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.cluster.node.config_values import Setting, boolean, integer, milliseconds, string
from strandline.cluster.security.sasl import MECHANISMS, OAUTHBEARER, PLAIN
from strandline.controller.metadata.config_key import ConfigType, split_list
from strandline.proto.errors import ConfigError

SASL_PLAINTEXT, SASL_SSL = "SASL_PLAINTEXT", "SASL_SSL"

ENABLED = "sasl.enabled.mechanisms"
PLAIN_JAAS = "plain.sasl.jaas.config"
PLAIN_WITHOUT_TLS = "sasl.plain.without.tls"
JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"


def _mechanisms(name: str, text: str) -> str:
    mechanisms = split_list(text)
    if not mechanisms or not set(mechanisms) <= set(MECHANISMS) or len(set(mechanisms)) != len(mechanisms):
        raise ConfigError(name, text, "one or several of " + ", ".join(MECHANISMS) + ", each once")
    return ",".join(mechanisms)


class Sasl:
    """How clients prove who they are."""

    sasl_enabled_mechanisms: Setting[str] = Setting(
        ENABLED,
        _mechanisms,
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "What clients may authenticate by on listeners with SASL: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER. "
        "listener.name.<name>.sasl.enabled.mechanisms says it for one listener.",
        type=ConfigType.LIST,
    )
    sasl_plain_without_tls = boolean(
        PLAIN_WITHOUT_TLS,
        False,
        "Serve PLAIN and OAUTHBEARER without TLS too, where everybody on the way can read passwords and tokens. For "
        "tests, and for TLS that something in front of the node ends.",
    )
    sasl_frame_bytes_max = integer(
        "sasl.server.max.receive.size",
        64 * 1024,
        "The largest request before a client is authenticated.",
        low=512,
        high=100 * 1024 * 1024,
        unit="bytes",
    )
    sasl_session_ms_max = milliseconds(
        "connections.max.reauth.ms",
        0,
        "How long an authentication by SASL holds: then the client authenticates anew on the same connection (KIP-368) "
        "or is disconnected at its next request. 0: as long as the connection.",
        low=0,
    )
    sasl_failure_delay_ms = milliseconds(
        "connection.failed.authentication.delay.ms",
        100,
        "How long a failed authentication waits for its answer, which slows guessing down.",
        low=0,
    )

    jwks_url = string(
        JWKS_URL,
        "",
        "The keys that check the tokens of OAUTHBEARER, as a JWKS document: file:///path or https://... A changed file "
        "counts at the next login; an address is fetched anew now and then, and for a token with an unknown key.",
    )
    jwks_refresh_ms = milliseconds(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        "How often the keys are fetched anew from an address.",
        low=10_000,
    )
    token_issuer = string(
        "sasl.oauthbearer.expected.issuer", "", "Who tokens of OAUTHBEARER must be of (iss). Needed with it."
    )
    token_audience: Setting[str] = Setting(
        "sasl.oauthbearer.expected.audience",
        lambda _name, text: text,
        "",
        "For whom tokens of OAUTHBEARER must be (aud): one or several, of which a token names one. Needed with it.",
        type=ConfigType.LIST,
    )
    token_skew_s = integer(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "By how much the clocks of a node and of who makes tokens may differ.",
        high=3600,
    )
    token_user_claim = string("sasl.oauthbearer.sub.claim.name", "sub", "Which claim of a token is the user's name.")


SASL_SETTINGS = tuple(setting.name for setting in vars(Sasl).values() if isinstance(setting, Setting))
"""Of all listeners with SASL."""

PLAIN_USERS = string(
    PLAIN_JAAS,
    "",
    'The users of PLAIN on one listener, and their passwords: ...PlainLoginModule required user_alice="..." '
    'user_bob="..."; a value, or the whole, may be ${env:NAME}, ${file:/path/file.properties:key} or '
    "${dir:/path:file}. Given for one listener alone.",
)


def sasl_advice(name: str) -> str | None:
    """What to do about a setting of Kafka's SASL that has no place here."""
    if name.startswith("listener.name.") and name.endswith(".sasl.jaas.config"):
        return (
            "only listener.name.<name>.plain.sasl.jaas.config is read, for the users of PLAIN; credentials of SCRAM "
            "are in the metadata (strandline user set, kafka-configs.sh) and need no line"
        )
    if name.startswith(("sasl.mechanism.inter.broker", "sasl.mechanism.controller", "sasl.jaas.config")):
        return "nodes prove who they are by certificates (INTERNAL:SSL), and use no SASL"
    if name.startswith(("sasl.kerberos.", "sasl.oauthbearer.", "sasl.login.", "sasl.server.callback.")):
        return "of SASL, " + ", ".join(MECHANISMS) + " are served"
    return None


def check_sasl(
    given: Mapping[str, str], listener: str, protocol: str, mechanisms: str, *, plain_without_tls: bool
) -> None:
    """The settings of one listener together. Raises ConfigError."""
    own = f"listener.name.{listener.lower()}."
    jaas = own + PLAIN_JAAS
    if protocol not in (SASL_PLAINTEXT, SASL_SSL):
        for name in (jaas, own + ENABLED):
            if name in given:
                raise ConfigError(name, given[name], f"nothing: {listener} speaks {protocol}, without SASL")
        return
    enabled = own + ENABLED if own + ENABLED in given else ENABLED
    without_tls = sorted({PLAIN, OAUTHBEARER} & set(split_list(mechanisms)))
    if protocol == SASL_PLAINTEXT and without_tls and not plain_without_tls:  # rule A19/plain-in-the-clear
        allowed = (
            f"no {without_tls[0]} on {listener}, which speaks no TLS: make it a listener of SASL_SSL, or use "
            f"SCRAM-SHA-256. {PLAIN_WITHOUT_TLS}=true serves it all the same, passwords and tokens readable on the way"
        )
        raise ConfigError(enabled, mechanisms, allowed)
    if OAUTHBEARER in split_list(mechanisms):
        for name in (JWKS_URL, "sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.expected.audience"):
            if not given.get(name):
                raise ConfigError(name, "", f"something: {enabled} has OAUTHBEARER, and any token of anybody would do")
    if PLAIN not in split_list(mechanisms):
        if jaas in given:
            raise ConfigError(jaas, given[jaas], f"nothing: {enabled} does not have PLAIN, so that it has no effect")
        return
    if jaas not in given:
        allowed = (
            'the users of PLAIN: org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="...";'
        )
        raise ConfigError(jaas, "", allowed)
