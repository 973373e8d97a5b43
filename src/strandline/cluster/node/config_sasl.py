"""Settings of SASL that must go together, and what is said of Kafka's that have no place here."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.cluster.node.settings import (
    ENABLED,
    JWKS_URL,
    PLAIN_JAAS,
    PLAIN_WITHOUT_TLS,
    SASL_PLAINTEXT,
    SASL_SSL,
)
from strandline.cluster.security.sasl import MECHANISMS, OAUTHBEARER, PLAIN
from strandline.proto.errors import ConfigError
from strandline.proto.settings import split_list


def sasl_advice(name: str) -> str | None:
    """Advice on a setting of Kafka's SASL that has no place here."""
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
    """Check the SASL settings of one listener together. Raises ConfigError."""
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
