"""Finds the quota of a client, the most specific of eight possible ones (KIP-55, Kafka's `DefaultQuotaCallback`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from strandline.controller.metadata.quotas import QuotasImage
from strandline.proto.quotas import DEFAULT, QuotaEntity, QuotaKey


class Share(NamedTuple):
    """A quota and the entity that uses it.

    Attributes:
        of: entity whose members share `limit`: all clients of a user, all users of a client.id, one client.id of one
            user, or the connections of an ip. A default quota gives each entity that it applies to a share of its own.
        limit: maximum rate, per second.
    """

    of: QuotaEntity
    limit: float


class Limits:
    """The quotas of one key, by entity."""

    def __init__(self, quotas: QuotasImage, key: str) -> None:
        self._values: Mapping[QuotaEntity, float] = {
            entity: values[key] for entity, values in quotas.items() if key in values
        }

    def share(self, user: str, client_id: str) -> Share | None:
        """Return the share of a client, or None without a quota. For an empty `user` or `client_id`, quotas that depend
        on it do not apply."""
        for entity, of in _candidates(user, client_id):
            limit = self._values.get(entity)
            if limit is not None:
                return Share(of, limit)
        return None


class AddressLimits:
    """The quotas connection_creation_rate of addresses (KIP-612)."""

    def __init__(self, quotas: QuotasImage) -> None:
        key = QuotaKey.CONNECTION_CREATION_RATE
        self._values = {entity.ip: values[key] for entity, values in quotas.items() if key in values}

    def __bool__(self) -> bool:
        return bool(self._values)

    def share(self, address: str) -> Share | None:
        """Return the share of an address (as `address_of` writes it; "": the transport has none), or None without a
        quota."""
        limit = self._values.get(address, self._values.get(DEFAULT))
        return None if limit is None or not address else Share(QuotaEntity(ip=address), limit)


def _candidates(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, QuotaEntity]]:
    """Yield (entity that may have a quota, entity that would share it), the most specific first."""
    both, user_alone, client_alone = QuotaEntity(user, client_id), QuotaEntity(user), QuotaEntity(None, client_id)
    if user and client_id:
        yield both, both
        yield QuotaEntity(user, DEFAULT), both
    if user:  # rule A21/a-users-own-quota-is-passed-over
        yield user_alone, user_alone
    if user and client_id:
        yield QuotaEntity(DEFAULT, client_id), both
        yield QuotaEntity(DEFAULT, DEFAULT), both
    if user:
        yield QuotaEntity(DEFAULT), user_alone  # rule A21/all-users-share-a-default
    if client_id:
        yield client_alone, client_alone
        yield QuotaEntity(None, DEFAULT), client_alone
