"""The SASL of a node's listeners, made of its configuration."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from strandline.cluster.broker.sasl import SaslDoor
from strandline.cluster.broker.scram_users import ScramUsers
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_sasl import ENABLED, PLAIN_JAAS, SASL_PLAINTEXT, SASL_SETTINGS
from strandline.cluster.node.config_security import PER_LISTENER
from strandline.cluster.security.plain import PlainUsers, plain_passwords
from strandline.cluster.security.sasl import PLAIN, Mechanisms, SaslSettings
from strandline.controller.metadata.config_key import split_list
from strandline.controller.metadata.scram import ScramImage
from strandline.proto.errors import ConfigError
from strandline.proto.ports import Clock, Rng

log = structlog.get_logger("strandline.security")


class NodeSasl:
    """Makes the door of each listener that speaks SASL."""

    def __init__(
        self, config: NodeConfig, scram: Callable[[], ScramImage], cluster_id: str, clock: Clock, rng: Rng
    ) -> None:
        self._config = config
        self._users = ScramUsers(scram, cluster_id)
        self._clock = clock
        self._rng = rng
        if not any(config.speaks_sasl(listener.name) for listener in config.listeners):
            idle = [setting for setting in SASL_SETTINGS if setting in config.given]
            if idle:
                why = "no listener speaks SASL_SSL or SASL_PLAINTEXT"
                log.warning("settings of this node have no effect", settings=", ".join(idle), why=why)

    def of(self, name: str) -> SaslDoor | None:
        """The SASL of a listener; None where it speaks none. Raises ConfigError: users of PLAIN that are none."""
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
        return SaslDoor(name, Mechanisms(settings, self._users, plain, self._rng), self._clock)

    def _plain_users(self, name: str, jaas: str) -> PlainUsers:
        if self._config.protocol(name) == SASL_PLAINTEXT:
            advice = "sasl.plain.without.tls=true: everybody on the way can read the passwords"
            log.warning("PLAIN is served without TLS", listener=name, why=advice)
        try:
            return PlainUsers(plain_passwords(jaas), self._rng)
        except ValueError as error:
            raise ConfigError(f"{PER_LISTENER}{name.lower()}.{PLAIN_JAAS}", jaas, str(error)) from None
