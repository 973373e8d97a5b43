"""SASL authentication of a node's listeners, made from its configuration."""

from __future__ import annotations

import structlog

from strandline.cluster.broker.sasl import ListenerSasl
from strandline.cluster.broker.scram_users import ScramUsers
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_security import PER_LISTENER
from strandline.cluster.node.parts import NodeParts
from strandline.cluster.node.settings import ENABLED, PLAIN_JAAS, SASL_PLAINTEXT, Sasl
from strandline.cluster.security.plain import PlainUsers, plain_passwords
from strandline.cluster.security.sasl import OAUTHBEARER, PLAIN, Mechanisms, SaslSettings, bearers
from strandline.cluster.security.token_keys import Keys, keys_at
from strandline.cluster.security.tokens import Tokens, TokenSettings
from strandline.proto.errors import ConfigError
from strandline.proto.settings import split_list

log = structlog.get_logger("strandline.security")


class NodeSasl:
    """Makes the `ListenerSasl` of each listener that speaks SASL."""

    def __init__(self, node: NodeParts) -> None:
        self._config = config = node.config
        self._users = ScramUsers(lambda: node.publisher.image, node.cluster_id)
        self._clock = node.clock
        self._believed = node.believed
        self._rng = node.rng
        self._keys: Keys | None = None
        _warn_of_idle(config)

    def of(self, name: str) -> ListenerSasl | None:
        """Return the SASL of a listener; None: it speaks no SASL. Raises ConfigError for invalid users of PLAIN."""
        config = self._config
        if not config.speaks_sasl(name):
            return None
        texts = config.of_listener(name)
        settings = SaslSettings(
            tuple(split_list(texts[ENABLED])),
            session_ms_max=config.sasl_session_ms_max,
            failure_delay_ms=config.sasl_failure_delay_ms,
            frame_bytes_max=config.sasl_frame_bytes_max,
        )
        plain = self._plain_users(name, texts[PLAIN_JAAS]) if PLAIN in settings.mechanisms else None
        keys = self._token_keys() if OAUTHBEARER in settings.mechanisms else None
        checks = None if keys is None else bearers(self._tokens(keys), self._believed.earliest_ms)
        mechanisms = Mechanisms(settings, self._users, plain, self._rng, bearers=checks)
        if self._config.protocol(name) == SASL_PLAINTEXT and {PLAIN, OAUTHBEARER} & set(settings.mechanisms):
            advice = "sasl.plain.without.tls=true: everybody on the way can read passwords and tokens"
            log.warning("passwords or tokens are asked for without TLS", listener=name, why=advice)
        return ListenerSasl(name, mechanisms, self._clock, keys)

    def _token_keys(self) -> Keys:
        """Return the keys that check tokens, shared by all listeners."""
        if self._keys is None:
            self._keys = keys_at(self._config.jwks_url, self._clock, self._config.jwks_refresh_ms)
        return self._keys

    def _tokens(self, keys: Keys) -> Tokens:
        config = self._config
        settings = TokenSettings(
            config.token_issuer,
            tuple(split_list(config.token_audience)),
            config.token_skew_s,
            config.token_user_claim,
        )
        return Tokens(settings, keys.current, self._believed, keys.look_again)

    def _plain_users(self, name: str, jaas: str) -> PlainUsers:
        try:
            return PlainUsers(plain_passwords(jaas), self._rng)
        except ValueError as error:
            raise ConfigError(f"{PER_LISTENER}{name.lower()}.{PLAIN_JAAS}", jaas, str(error)) from None


def _warn_of_idle(config: NodeConfig) -> None:
    """Log SASL settings that have no effect because no listener speaks SASL, or none has OAUTHBEARER."""
    mechanisms = [
        mechanism
        for listener in config.listeners
        if config.speaks_sasl(listener.name)
        for mechanism in split_list(config.of_listener(listener.name)[ENABLED])
    ]
    idle, why = (
        [name for name in Sasl.rows if name in config.given],
        "no listener speaks SASL_SSL or SASL_PLAINTEXT",
    )
    if mechanisms:
        idle, why = [name for name in idle if name.startswith("sasl.oauthbearer.")], "no listener has OAUTHBEARER"
    if idle and OAUTHBEARER not in mechanisms:
        log.warning("settings of this node have no effect", settings=", ".join(idle), why=why)
