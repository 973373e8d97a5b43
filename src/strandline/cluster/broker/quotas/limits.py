"""Which quota is a client's: the most specific of the eight that may fit (KIP-55, Kafka's `DefaultQuotaCallback`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from strandline.controller.metadata.quotas import QuotasImage
from strandline.proto.quotas import DEFAULT, QuotaEntity, QuotaKey


class Share(NamedTuple):
    """What a client may take, and who takes of it together.

    Attributes:
        of: everybody that is in here shares `limit`: a user's clients, the users of a client.id, or both in one; the
            connections of an ip. A default gives a share to each that it stands for, and is no share itself.
        limit: a second.
    """

    of: QuotaEntity
    limit: float


class Limits:
    """The quotas of one key."""

    def __init__(self, quotas: QuotasImage, key: str) -> None:
        self._values: Mapping[QuotaEntity, float] = {
            entity: values[key] for entity, values in quotas.items() if key in values
        }

    def share(self, user: str, client_id: str) -> Share | None:
        """The share of a client; None: there is no bound. Whoever has no client.id has no quota that depends on it."""
        for entity, of in _candidates(user, client_id):
            limit = self._values.get(entity)
            if limit is not None:
                return Share(of, limit)
        return None


class AddressLimits:
    """The quotas of addresses (KIP-612)."""

    def __init__(self, quotas: QuotasImage) -> None:
        key = QuotaKey.CONNECTION_CREATION_RATE
        self._values = {entity.ip: values[key] for entity, values in quotas.items() if key in values}

    def __bool__(self) -> bool:
        return bool(self._values)

    def share(self, address: str) -> Share | None:
        """The share of an address as `address_of` writes it, or "" for none; None: there is no bound."""
        limit = self._values.get(address, self._values.get(DEFAULT))
        return None if limit is None or not address else Share(QuotaEntity(ip=address), limit)


def _candidates(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, QuotaEntity]]:
    """(whose quota it would be, whose share), the most specific first."""
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
