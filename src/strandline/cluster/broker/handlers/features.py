"""UpdateFeatures (57; KIP-584, KIP-778). ApiVersions tells which features there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.request import Authorizer, require
from strandline.controller import operations
from strandline.controller.channel import ControllerChannel
from strandline.controller.features_api import FeatureUpdate, UpdateFeaturesRequest, UpdateKind
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api

RESULTS_UNTIL = 1
"""Last version with a result for each feature."""


class FeaturesHandler:
    """Forwards feature levels that an operator requests to the active controller."""

    def __init__(self, *, authorizer: Authorizer, controller: ControllerChannel) -> None:
        self._authorizer = authorizer
        self._controller = controller

    async def update(self, call: Call) -> Any:
        """Answer UpdateFeatures: all levels are set, or none and the whole response has the error. After such an error
        no version of Kafka's clients looks at the results of single features.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST (unknown upgrade type), or an error of the request
                to the controller.
        """
        require(self._authorizer, call.context, Operation.ALTER, CLUSTER)
        asked = UpdateFeaturesRequest(
            tuple(
                FeatureUpdate(one.feature, one.max_version_level, _kind(one)) for one in call.request.feature_updates
            ),
            getattr(call.request, "validate_only", False),  # since version 1
        )
        await self._controller.ask(operations.UPDATE_FEATURES, asked, call.request.timeout)
        names = [update.name for update in asked.updates] if call.context.version <= RESULTS_UNTIL else []
        results = tuple(part(feature=name, error_code=ErrorCode.NONE, error_message=None) for name in names)
        return part(error_code=ErrorCode.NONE, error_message=None, results=results)

    def refuse(self, _call: Call, error: ErrorCode, message: str) -> Any:
        """Return a response with `error` for the whole request."""
        return part(error_code=error, error_message=message or None, results=())


def _kind(update: Any) -> UpdateKind:
    """Return the upgrade type. Version 0 has a flag in its place that allows any downgrade, also an unsafe one."""
    if hasattr(update, "allow_downgrade"):
        return UpdateKind.UNSAFE_DOWNGRADE if update.allow_downgrade else UpdateKind.UPGRADE
    try:
        return UpdateKind(update.upgrade_type)
    except ValueError:
        words = f"no upgrade type {update.upgrade_type}: 1 upgrades, 2 downgrades safely, 3 unsafely"
        raise KafkaError(ErrorCode.INVALID_REQUEST, words) from None


def _levels_changed(request: Any, answer: Any) -> Iterator[Change]:
    for update in request.feature_updates:
        yield f"level {update.max_version_level} of feature {update.feature}", answer.error_code


ROWS = (
    by_schema(
        Api.UPDATE_FEATURES,
        (0, 2),
        FeaturesHandler,
        FeaturesHandler.update,
        refuse=FeaturesHandler.refuse,
        changes=_levels_changed,
    ),
)
