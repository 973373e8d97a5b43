"""GetTelemetrySubscriptions (71) and PushTelemetry (72): clients push metrics that they measure (KIP-714)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, by_schema, part
from strandline.cluster.broker.client_telemetry import ACCEPTED, TELEMETRY_BYTES_MAX, ClientTelemetry
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api


class TelemetryHandler:
    """Answers from this broker's `ClientTelemetry`."""

    def __init__(self, telemetry: ClientTelemetry) -> None:
        self.telemetry = telemetry

    def subscriptions(self, call: Call) -> Any:
        """Answer GetTelemetrySubscriptions: the metrics that the client is to push, and how often. Raises KafkaError as
        `ClientTelemetry.ask`."""
        instance_id, wanted = self.telemetry.ask(call.context, call.request.client_instance_id)
        return part(
            error_code=ErrorCode.NONE,
            client_instance_id=instance_id,
            subscription_id=wanted.id,
            accepted_compression_types=ACCEPTED,
            push_interval=wanted.interval_ms,
            telemetry_max_bytes=TELEMETRY_BYTES_MAX,
            delta_temporality=False,
            requested_metrics=wanted.metrics,
        )

    def push(self, call: Call) -> Any:
        """Answer PushTelemetry. Raises KafkaError as `ClientTelemetry.push`."""
        self.telemetry.push(call.context, call.request)
        return part(error_code=ErrorCode.NONE)


ROWS = (
    by_schema(Api.GET_TELEMETRY_SUBSCRIPTIONS, (0, 0), TelemetryHandler, TelemetryHandler.subscriptions),
    by_schema(Api.PUSH_TELEMETRY, (0, 0), TelemetryHandler, TelemetryHandler.push),
)
