"""Clusters that ask who comes in, and who gives out what their clients show."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench.clusters import KafkaCluster, StrandlineCluster, admin_client
from bench.secured import own_settings

from interop.logins import SCRAM, Login, admin_login
from interop.tokens import TokenIssuer
from strandline.cluster.security.dev_certificates import DevCa

if TYPE_CHECKING:
    from confluent_kafka.admin import AclBinding

LEVELS = ("none", "sasl", "oauth", "mtls")
"""Plaintext; SASL_SSL with SCRAM; SASL_SSL with OAUTHBEARER; SSL with certificates of clients."""

TOKEN_USER = "interop"
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"

AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": ";".join(
        f"User:{name}" for name in ("dev", "CN=dev", TOKEN_USER, *(f"CN=node-{n}" for n in (1, 2, 3)))
    ),
}
"""The clients under test may do everything; users that a feature makes may do what it allows them."""


class Authority(Protocol):
    """Gives out what clients show, at one level of security."""

    def main(self) -> Login:
        """Of the clients under test."""

    def user(self, name: str) -> Login:
        """Of a new user, who may do nothing yet."""

    def principal(self, name: str) -> str:
        """What an ACL calls this user."""

    def wrong(self, name: str) -> Login:
        """What somebody else shows who says to be this user: a wrong password, a forged token or certificate."""

    def expired(self, name: str) -> Login:
        """What this user could have shown yesterday."""

    def renewed(self, name: str) -> Login:
        """Something new of the same user; passwords and tokens that were given out before count no longer."""


class Passwords:
    """SCRAM: users are in the cluster's metadata."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def main(self) -> Login:
        return admin_login()

    def user(self, name: str, mechanism: str = SHA_512) -> Login:
        from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

        password = secrets.token_urlsafe(16)
        number = {SHA_256: ScramMechanism.SCRAM_SHA_256, SHA_512: ScramMechanism.SCRAM_SHA_512}[mechanism]
        change = UserScramCredentialUpsertion(name, ScramCredentialInfo(number, 4096), password.encode())
        admin = admin_client(self._bootstrap)  # it must outlive its answer
        admin.alter_user_scram_credentials([change])[name].result(30)
        return replace(admin_login(), mechanism=mechanism, user=name, secret=password)

    def principal(self, name: str) -> str:
        return f"User:{name}"

    def wrong(self, name: str) -> Login:
        return replace(admin_login(), user=name, secret="a wrong password")

    def expired(self, name: str) -> Login:
        raise AssertionError(f"the password of {name} has no end")

    def renewed(self, name: str) -> Login:
        return self.user(name)


class Tokens:
    """OAUTHBEARER: the cluster knows the keys alone."""

    def __init__(self, issuer: TokenIssuer) -> None:
        self._issuer = issuer

    def main(self) -> Login:
        return self._login(TOKEN_USER, self._issuer.token(TOKEN_USER))

    def user(self, name: str) -> Login:
        self._issuer.new_key(name)
        return self._login(name, self._issuer.token(name, key=name))

    def principal(self, name: str) -> str:
        return f"User:{name}"

    def wrong(self, name: str) -> Login:
        return self._login(name, self._issuer.token(name, forged=True))

    def expired(self, name: str) -> Login:
        return self._login(name, self._issuer.token(name, holds_s=-3600))

    def renewed(self, name: str) -> Login:
        return self.user(name)

    def _login(self, name: str, token: str) -> Login:
        login = replace(admin_login(), mechanism="OAUTHBEARER", user=name, token=token, token_url=self._issuer.url)
        return replace(login, secret=self._issuer.hand_out(name, token))


class Certificates:
    """TLS with certificates of clients: the cluster knows the CA alone."""

    def __init__(self, directory: Path, foreign: Path) -> None:
        """`directory`: of the cluster's CA. `foreign`: for one that it does not know."""
        self._ca, self._foreign = DevCa(directory), DevCa(foreign)

    def main(self) -> Login:
        return admin_login()

    def user(self, name: str) -> Login:
        return self._shows(self._ca.client(name))

    def principal(self, name: str) -> str:
        return f"User:CN={name}"

    def wrong(self, name: str) -> Login:
        return self._shows(self._foreign.client(name))

    def expired(self, name: str) -> Login:
        return self._shows(self._ca.client(f"{name}-expired", days=-1))

    def renewed(self, name: str) -> Login:
        return self._shows(self._ca.issue(f"client-{name}-renewed", name))

    def nothing(self) -> Login:
        """Without a certificate."""
        return replace(admin_login(), keystore="")

    @staticmethod
    def _shows(keystore: Path) -> Login:
        return replace(admin_login(), keystore=str(keystore))


class SecuredCluster(StrandlineCluster):
    """`strandline dev --secure`, with an authorizer; `authority` is there once it has started."""

    def __init__(self, level: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="interop-security-"))
        self._level = level
        self._issuer = TokenIssuer(self._directory) if level == "oauth" else None
        settings = dict(AUTHORIZED)
        if self._issuer is not None:
            settings |= {"sasl.enabled.mechanisms": f"{SHA_512},OAUTHBEARER", **self._issuer.broker_settings()}
        super().__init__(settings, security="tls" if level == "mtls" else "sasl")

    def authority(self) -> Authority:
        if self._issuer is not None:
            return Tokens(self._issuer)
        if self._level == "mtls":
            return Certificates(Path(own_settings()["ssl.truststore.location"]).parent, self._directory)
        return Passwords(self.bootstrap)

    def stop(self) -> None:
        super().stop()
        if self._issuer is not None:
            self._issuer.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class SecuredKafkaCluster(KafkaCluster):
    """Apache Kafka with SCRAM and its authorizer."""

    def __init__(self, settings: dict[str, str]) -> None:
        both = {"sasl.enabled.mechanisms": f"{SHA_256},{SHA_512}"}
        both[f"listener.name.clients.{SHA_256.lower()}.sasl.jaas.config"] = f"{SCRAM} required;"
        super().__init__({**settings, **AUTHORIZED, **both}, sasl=True)

    def authority(self) -> Authority:
        return Passwords(self.bootstrap)


@dataclass(frozen=True)
class Rights:
    """What users may do, changed as the user who may do everything."""

    bootstrap: str
    authority: Authority

    def allow(self, name: str, topic: str, group: str, *operations: str) -> None:
        """These operations on the topic, and READ of the group."""
        bindings = [self._binding(name, "GROUP", group, "READ")]
        bindings += [self._binding(name, "TOPIC", topic, each) for each in operations]
        admin = admin_client(self.bootstrap)
        for told in admin.create_acls(bindings).values():
            told.result(30)

    def revoke(self, name: str, topic: str, operation: str) -> None:
        """That operation on the topic."""
        from confluent_kafka.admin import AclBindingFilter

        binding = self._binding(name, "TOPIC", topic, operation)
        asked = (binding.restype, binding.name, binding.resource_pattern_type)
        which = AclBindingFilter(*asked, binding.principal, binding.host, binding.operation, binding.permission_type)
        admin = admin_client(self.bootstrap)
        [found] = admin.delete_acls([which]).values()
        assert len(found.result(30)) == 1, f"no such entry: {binding}"

    def _binding(self, name: str, kind: str, resource: str, operation: str) -> AclBinding:
        from confluent_kafka.admin import (
            AclBinding,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        who = self.authority.principal(name)
        what = (ResourceType[kind], resource, ResourcePatternType.LITERAL)
        return AclBinding(*what, who, "*", AclOperation[operation], AclPermissionType.ALLOW)


def sees(bootstrap: str, login: Login, topic: str) -> bool:
    """Whether each broker lets this login in, and lets it describe the topic; asked with librdkafka."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    for broker in bootstrap.split(","):
        admin = AdminClient({"log_level": 0, "bootstrap.servers": broker, **login.librdkafka()})
        try:
            found = admin.list_topics(topic, timeout=3).topics[topic]
        except KafkaException:
            return False
        if found.error is not None:
            return False
    return True
