"""DescribeClientQuotas (48) and AlterClientQuotas (49): limits on the use of each broker by clients (KIP-546)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.request import Authorizer, require
from strandline.controller import operations
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.quota_api import AlterQuotasRequest, QuotaAlteration, QuotaChange, QuotaOutcome
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import address_of
from strandline.proto.kafka.apis import Api
from strandline.proto.quotas import CLIENT_ID, IP, USER, QuotaEntity, entity_of
from strandline.proto.steps import Mapped, Steps, each

EXACT, DEFAULT_NAME, ANY_NAME = range(3)
"""Match types of a filter component: one name, the default, any name."""

_MATCHES = {EXACT: "MATCH_TYPE_EXACT", DEFAULT_NAME: "MATCH_TYPE_DEFAULT", ANY_NAME: "MATCH_TYPE_SPECIFIED"}


class QuotasHandler:
    """Describes quotas from this broker's image, and forwards changes to the active controller."""

    def __init__(
        self,
        *,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        controller: ControllerChannel,
        timeout_ms: float,
    ) -> None:
        self._image = image
        self._authorizer = authorizer
        self._controller = controller
        self._timeout_ms = timeout_ms

    # DescribeClientQuotas

    def describe(self, call: Call) -> Steps[Any]:
        """Answer DescribeClientQuotas: the quotas of the entities that match the filter.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, UNSUPPORTED_VERSION for an unknown type.
        """
        require(self._authorizer, call.context, Operation.DESCRIBE_CONFIGS, CLUSTER)
        wanted = _filter(call.request.components)
        quotas = self._image().quotas
        fits = yield from each(partial(_fits, wanted=wanted, strict=call.request.strict), quotas)
        found = [*compress(quotas.items(), fits)]
        return part(error_code=ErrorCode.NONE, error_message=None, entries=Mapped(_entry, found))

    # AlterClientQuotas

    async def alter(self, call: Call) -> Any:
        """Answer AlterClientQuotas: one outcome per entry, in order.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, or an error of the request to the controller.
        """
        require(self._authorizer, call.context, Operation.ALTER_CONFIGS, CLUSTER)
        wanted = await call.connection.stepped(each(_alteration, call.request.entries))
        asked = tuple(one for one in wanted if isinstance(one, QuotaAlteration))
        outcomes: Sequence[QuotaOutcome] = ()
        if asked:
            request = AlterQuotasRequest(asked, call.request.validate_only)
            outcomes = (await self._controller.ask(operations.ALTER_QUOTAS, request, self._timeout_ms)).outcomes
        decided = iter(outcomes)
        return _altered(call, [next(decided) if isinstance(one, QuotaAlteration) else one for one in wanted])

    def refuse_alter(self, call: Call, error: ErrorCode, message: str) -> Any:
        """Return a response with `error` for each entry."""
        return _altered(call, [QuotaOutcome(error, message)] * len(call.request.entries))


def _altered(call: Call, outcomes: Sequence[QuotaOutcome]) -> Any:
    def altered(entry: Any, outcome: QuotaOutcome) -> Any:
        entity = Mapped(lambda one: part(entity_type=one.entity_type, entity_name=one.entity_name), entry.entity)
        return part(error_code=outcome.error, error_message=outcome.message or None, entity=entity)

    return part(entries=Mapped(altered, call.request.entries, outcomes))


def _entry(found: tuple[QuotaEntity, Mapping[str, float]]) -> Any:
    entity, values = found
    return part(
        entity=tuple(part(entity_type=kind, entity_name=name) for kind, name in entity.parts()),
        values=tuple(part(key=key, value=value) for key, value in sorted(values.items())),
    )


def _alteration(entry: Any) -> QuotaAlteration | QuotaOutcome:
    """Return the alteration, or the error of an invalid one."""
    try:
        entity = entity_of((one.entity_type, one.entity_name) for one in entry.entity)
    except KafkaError as error:
        return QuotaOutcome(error.code, error.message)
    changes = tuple(QuotaChange(op.key, None if op.remove else repr(op.value)) for op in entry.ops)
    return QuotaAlteration(entity.user, entity.client_id, changes, entity.ip)


def _filter(components: Sequence[Any]) -> dict[str, tuple[int, str | None]]:
    """Return (match type, name) by entity type. Raises KafkaError, as Kafka's `ClientQuotasImage.describe`."""
    found: dict[str, tuple[int, str | None]] = {}
    for one in components:
        kind, how = one.entity_type, one.match_type
        if not kind:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in found:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if how not in _MATCHES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {how}")
        if (how == EXACT) != (one.match is not None):
            fault = "but set match string to null" if how == EXACT else "but also specified a match string"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Request specified {_MATCHES[how]}, {fault}.")
        found[kind] = how, address_of(one.match) if kind == IP and how == EXACT else one.match
    if IP in found and len(found) > 1:
        words = "IP filter component should not be used with user or clientId filter component."
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid entity filter component combination. {words}")
    return found


def _fits(entity: QuotaEntity, wanted: dict[str, tuple[int, str | None]], *, strict: bool) -> bool:
    names = dict(entity.parts())
    if strict and len(names) != len(wanted):
        return False
    return all(kind in names and (how == ANY_NAME or names[kind] == name) for kind, (how, name) in wanted.items())


def _quotas_altered(request: Any, answer: Any) -> Iterator[Change]:
    for one, outcome in zip(request.entries, answer.entries, strict=True):
        whom = ", ".join(f"{part.entity_type} {part.entity_name or '(default)'}" for part in one.entity)
        changes = ", ".join(f"{op.key}={'(removed)' if op.remove else format(op.value, '.15g')}" for op in one.ops)
        yield f"quotas of {whom}: {changes}", outcome.error_code


ROWS = (
    by_schema(Api.DESCRIBE_CLIENT_QUOTAS, (0, 1), QuotasHandler, QuotasHandler.describe),
    by_schema(
        Api.ALTER_CLIENT_QUOTAS,
        (0, 1),
        QuotasHandler,
        QuotasHandler.alter,
        refuse=QuotasHandler.refuse_alter,
        changes=_quotas_altered,
    ),
)
