"""What a client shows to come in, in the words of each family of clients.

Drivers read it as JSON from the environment variable INTEROP_LOGIN, so that no secret is among a program's arguments.
A driver that finds none speaks plaintext.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bench.secured import own_settings

from strandline.proto.jaas import parse_jaas

VARIABLE = "INTEROP_LOGIN"

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
FETCHES_TOKENS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""Java's clients fetch tokens from addresses alone that this system property names."""


@dataclass(frozen=True)
class Login:
    """What one client shows; without values: nothing, in plaintext.

    Attributes:
        protocol: Kafka's security.protocol.
        ca: a PEM file with the CA of the brokers.
        keystore: a PEM file with the client's key and certificates; "": it shows none.
        mechanism: Kafka's sasl.mechanism; "": TLS alone.
        user: the name; that of the client at `token_url`, for OAUTHBEARER.
        secret: the password of either.
        token: the token itself, for clients that do not fetch one.
        token_url: where the others fetch it, by client credentials (RFC 6749, 4.4).
    """

    protocol: str = "PLAINTEXT"
    ca: str = ""
    keystore: str = ""
    mechanism: str = ""
    user: str = ""
    secret: str = ""
    token: str = ""
    token_url: str = ""

    def environment(self) -> dict[str, str]:
        """What a driver's process is given."""
        if self.protocol == "PLAINTEXT":
            return {}
        told = {**asdict(self), "java": self.java(), "librdkafka": self.librdkafka()}
        fetches = {"JDK_JAVA_OPTIONS": f"-D{ALLOWED_URLS}={self.token_url}"} if self.token_url else {}
        return {VARIABLE: json.dumps(told), **fetches}

    def java(self) -> dict[str, str]:
        """Settings of Apache Kafka's own clients."""
        if self.protocol == "PLAINTEXT":
            return {}
        found = {"security.protocol": self.protocol, "ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca}
        if self.keystore:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.keystore}
        if self.mechanism:
            found["sasl.mechanism"] = self.mechanism
        if self.token_url:
            found["sasl.jaas.config"] = f'{BEARER} required clientId="{self.user}" clientSecret="{self.secret}";'
            found["sasl.oauthbearer.token.endpoint.url"] = self.token_url
            found["sasl.login.callback.handler.class"] = FETCHES_TOKENS
        elif self.mechanism:
            found["sasl.jaas.config"] = f'{SCRAM} required username="{self.user}" password="{self.secret}";'
        return found

    def librdkafka(self) -> dict[str, str]:
        """Settings of librdkafka."""
        if self.protocol == "PLAINTEXT":
            return {}
        found = {"security.protocol": self.protocol, "ssl.ca.location": self.ca}
        if self.keystore:
            found |= dict.fromkeys(("ssl.key.location", "ssl.certificate.location"), self.keystore)
        if self.mechanism:
            found["sasl.mechanism"] = self.mechanism
        if self.token_url:
            found |= {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": self.token_url,
                "sasl.oauthbearer.client.id": self.user,
                "sasl.oauthbearer.client.secret": self.secret,
            }
        elif self.mechanism:
            found |= {"sasl.username": self.user, "sasl.password": self.secret}
        return found


OPEN = Login()
"""A cluster that asks nobody."""


def as_properties(settings: Mapping[str, str]) -> str:
    """The text of a file of such settings."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def admin_login() -> Login:
    """That of the user whom the running cluster was made with, who may do everything (bench.secured)."""
    own: dict[str, Any] = own_settings()
    if not own:
        return OPEN
    options = parse_jaas(own["sasl.jaas.config"]).options if "sasl.jaas.config" in own else {}
    return Login(
        own["security.protocol"],
        own["ssl.truststore.location"],
        own.get("ssl.keystore.location", ""),
        own.get("sasl.mechanism", ""),
        options.get("username", ""),
        options.get("password", ""),
    )


def tls_context(login: Login) -> ssl.SSLContext | None:
    """TLS as this client speaks it."""
    if login.protocol == "PLAINTEXT":
        return None
    context = ssl.create_default_context(cafile=login.ca)
    if login.keystore:
        context.load_cert_chain(login.keystore)
    return context
