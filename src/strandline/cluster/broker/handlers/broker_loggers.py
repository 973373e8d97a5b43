"""Levels of this node's loggers in the config APIs (resource type 8, KIP-412): describe, set and delete them.

They belong to the process: they are not in the metadata, and a restart begins with `logging.level`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import structlog

from strandline.cluster.broker.log_levels import LEVELS, LOGGERS, ROOT, LogLevels
from strandline.cluster.broker.request import Authorizer, RequestContext, require
from strandline.controller.api import ConfigOperation
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId
from strandline.proto.settings import Scope, Setting, word

log = structlog.get_logger("strandline.broker")

BROKER_LOGGER = 8
"""Kafka's `ConfigResource.Type.BROKER_LOGGER`."""

_ROWS: dict[str, Setting[Any]] = {}


def logger_row(name: str) -> Setting[Any]:
    """Return the setting that describes a logger: its documentation and possible levels."""
    if name not in _ROWS:
        _ROWS[name] = replace(word(name, "INFO", LOGGERS[name], *LEVELS), scope=Scope.BROKER)
    return _ROWS[name]


class BrokerLoggers:
    """Loggers of this broker, for principals that may describe and alter the configs of the cluster."""

    def __init__(self, node_id: NodeId, levels: LogLevels, authorizer: Authorizer) -> None:
        self._node_id = node_id
        self._levels = levels
        self._authorizer = authorizer

    def described(self, context: RequestContext, name: str) -> Iterator[tuple[str, str]]:
        """Return each logger with its level. `name`: the broker's id. Raises KafkaError CLUSTER_AUTHORIZATION_FAILED,
        or INVALID_REQUEST for another broker."""
        require(self._authorizer, context, Operation.DESCRIBE_CONFIGS, CLUSTER)
        self._check_broker(name)
        return ((logger, self._levels.level(logger)) for logger in sorted(LOGGERS))

    def alter(self, context: RequestContext, resource: Any, *, dry_run: bool) -> tuple[ErrorCode, str]:
        """Carry out all changes of one resource, or none. Returns (NONE, ""), or the error and its message."""
        try:
            # rule A41/anybody-sets-levels
            require(self._authorizer, context, Operation.ALTER_CONFIGS, CLUSTER)
            self._check_broker(resource.resource_name)
            for config in resource.configs:
                self._check(config)
        except KafkaError as error:
            return error.code, error.message
        if not dry_run:  # rule A41/rehearsed-levels-count
            for config in resource.configs:
                if config.config_operation == ConfigOperation.SET:
                    self._levels.set(config.name, config.value)
                elif self._levels.is_own(config.name):
                    self._levels.unset(config.name)
                level = self._levels.level(config.name)
                log.warning("a logger has another level", logger=config.name, level=level, principal=context.principal)
        return ErrorCode.NONE, ""

    def _check_broker(self, name: str) -> None:
        if name != str(self._node_id):
            message = f"loggers belong to a broker, and this is broker {self._node_id}: ask broker {name!r} for its own"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)

    def _check(self, config: Any) -> None:
        name, value, operation = config.name, config.value, config.config_operation
        if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            message = f"logger {name!r}: a level is set (0) or deleted (1), nothing can be appended or subtracted"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if name not in LOGGERS:  # rule A41/loggers-are-made-up
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"no logger {name!r}; there are {', '.join(sorted(LOGGERS))}")
        if operation == ConfigOperation.DELETE and name == ROOT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the level of {ROOT} cannot be deleted: set another")
        if operation == ConfigOperation.SET and value not in LEVELS:
            message = f"logger {name!r}: no level {value!r}; there are {', '.join(LEVELS)}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
