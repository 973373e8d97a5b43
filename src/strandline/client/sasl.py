"""Login of a client by SASL, from its settings: its user, and the mechanism that proves it (KIP-43, KIP-84)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strandline.client import logs
from strandline.client.config import CommonConfig
from strandline.client.config_security import given, jaas_options, resolved_setting
from strandline.proto.errors import ConfigError
from strandline.proto.ports import Clock, Rng
from strandline.proto.scram import (
    SCRAM_BY_TITLE,
    SaltedPasswords,
)

if TYPE_CHECKING:
    from strandline.client.tokens import Tokens

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"

_MODULES = {
    **dict.fromkeys(SCRAM_BY_TITLE, "ScramLoginModule"),
    PLAIN: "PlainLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}


@dataclass(frozen=True, slots=True)
class Login:
    """User of a client, and the mechanism that proves it."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    salted: SaltedPasswords = field(repr=False, compare=False)
    rng: Rng = field(repr=False, compare=False)
    """Draws the nonces of SCRAM."""
    tokens: Tokens | None = field(default=None, compare=False)
    """Source of the tokens of OAUTHBEARER, which has no user and no password here."""

    @property
    def who(self) -> str:
        """Words for the client in an error: its user, or the source of its token."""
        return f"user {self.user!r}" if self.tokens is None else f"the token of {self.tokens.where}"


def login_of(config: CommonConfig, clock: Clock, rng: Rng) -> Login | None:
    """The login of a client; None without SASL.

    Raises:
        ConfigError: no mechanism, no user, no password, or a reference to what is not there.
    """
    protocol = config.security_protocol
    if not protocol.startswith("SASL_"):
        if given(config, "sasl_"):
            logs.network.warning("sasl.* settings have no effect with security.protocol=%s", protocol)
        return None
    mechanism = config.sasl_mechanism
    if not mechanism:
        raise ConfigError("sasl.mechanism", "", f"one of {', '.join(_MODULES)}: security.protocol={protocol} needs it")
    if mechanism == OAUTHBEARER:
        return _bearer(config, clock, rng)
    if of_tokens := given(config, "sasl_oauthbearer_", "sasl_login_"):
        logs.network.warning("no effect with sasl.mechanism=%s: %s", mechanism, ", ".join(of_tokens))
    user, password = _credentials(config)
    if "\0" in user + password:
        raise ConfigError("sasl.username", user, "a name and a password without NUL")
    if mechanism == PLAIN and protocol == "SASL_PLAINTEXT":
        logs.network.warning("sasl.mechanism=PLAIN without TLS: everybody on the way to the brokers reads the password")
    return Login(mechanism, user, password, SaltedPasswords(password), rng)


def _bearer(config: CommonConfig, clock: Clock, rng: Rng) -> Login:
    from strandline.client.tokens import tokens_of

    if config.sasl_username or config.sasl_password:
        raise ConfigError("sasl.mechanism", OAUTHBEARER, "no sasl.username and sasl.password: the token says who it is")
    tokens = tokens_of(config, clock, rng)
    if config.security_protocol == "SASL_PLAINTEXT":
        logs.network.warning("sasl.mechanism=OAUTHBEARER without TLS: everybody on the way reads the token")
    return Login(OAUTHBEARER, "", "", SaltedPasswords(""), rng, tokens)


def _credentials(config: CommonConfig) -> tuple[str, str]:
    if not config.sasl_jaas_config:
        user, password = resolved_setting(config, "sasl_username"), resolved_setting(config, "sasl_password")
        if not user:
            raise ConfigError("sasl.username", "", "the user's name, here or in sasl.jaas.config")
        if not password:
            raise ConfigError("sasl.password", "", f"the password of {user}: best ${{env:NAME}} or ${{file:PATH:KEY}}")
        return user, password
    if config.sasl_username or config.sasl_password:
        raise ConfigError("sasl.username", config.sasl_username, "nothing beside sasl.jaas.config: one or the other")
    options = jaas_options(config, _MODULES[config.sasl_mechanism], ("username", "password"))
    if not options.get("username") or not options.get("password"):
        raise ConfigError("sasl.jaas.config", config.sasl_jaas_config, 'username="..." and password="..."')
    return options["username"], options["password"]


def user_of(config: CommonConfig) -> str:
    """User name of the login, for messages; "" if only the token has it, or if it is not known any more."""
    try:
        return "" if config.sasl_mechanism == OAUTHBEARER else _credentials(config)[0]
    except ConfigError:
        return ""
