"""The admin and the users together: their process, what is watched meanwhile, and what is judged in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.rights import PASSWORD, Key, Rights, Value, check_not_denied, is_password
from strandline.chaos.secured.admin import LOGIN, Administration
from strandline.chaos.secured.options import (
    ADMIN,
    GUARDED,
    PARTITIONS,
    SecuredOptions,
    binding_of,
    entity_of,
    is_quota,
)
from strandline.chaos.secured.users import Users
from strandline.chaos.workload import READS, Ports
from strandline.client.aio import Consumer
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.scram import ScramKey
from strandline.proto.scram import ScramMechanism

_USERS_AT_ONCE = 2


class Secured:
    """Authorizer, admin and users of one run."""

    def __init__(self, bootstrap: str, options: SecuredOptions, now_ms: Callable[[], float]) -> None:
        self.rights = Rights(super_users=(ADMIN,))
        self.admin = Administration(bootstrap, options, self.rights, now_ms)
        self._users = Users(bootstrap, options, self.rights)
        self._bootstrap = bootstrap
        self._broken: BaseException | None = None

    async def main(self, ports: Ports) -> None:
        """Run the process of the admin and the users."""
        try:
            await self.admin.prepare(ports)
            async with asyncio.TaskGroup() as group:
                for work in (self.admin.work, self._users.knock, *[self._users.use] * _USERS_AT_ONCE):
                    group.create_task(work(ports))
        except BaseExceptionGroup as several:
            self._broken = several.exceptions[0]

    def check(self) -> None:
        """Check what is to hold at any time. Raises InvariantViolated."""
        if self._broken is not None:
            raise self._broken
        check_not_denied(self.admin.errors)

    def is_known_to(self, image: MetadataImage) -> bool:
        """Whether a node's metadata have all that was prepared."""
        keys = self.rights.changes.items()
        return self.admin.prepared and all(_holds(image, key, changes[-1].value) for key, changes in keys)

    def check_image(self, node: str, image: MetadataImage) -> None:
        """Check that the metadata of a node that has caught up contain all confirmed changes, and no other ones. Raises
        InvariantViolated."""
        self.rights.check_held(node, lambda key, value: _holds(image, key, value))
        asked = {binding_of(key) for key in self.rights.changes if key.kind != PASSWORD and not is_quota(key)}
        strange = [str(one) for one in image.acls if one not in asked]
        if strange:
            raise InvariantViolated("NobodyGetsIn", "a node has ACLs that nobody made", node=node, acls=strange)

    async def look_at_the_end(self, ports: Ports) -> None:
        """Check at the end that users with the right are served and others are not, and that all acknowledged records
        exist. Raises InvariantViolated."""
        await self._users.try_all(ports)
        self.rights.check_records(await self._whole(ports))

    async def _whole(self, ports: Ports) -> dict[tuple[int, int], str]:
        """(partition, offset) -> value, of the guarded topic."""
        found: dict[tuple[int, int], str] = {}
        async with Consumer(self._bootstrap, clock=ports.clock, rng=ports.rng, **READS, **LOGIN) as consumer:
            places = [(GUARDED, partition) for partition in range(PARTITIONS)]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                for record in await consumer.poll(0.5):
                    found[record.partition, record.offset] = (record.value or b"").decode()
        return found

    def figures(self) -> dict[str, object]:
        """Counts of what was tried."""
        attempts = [change for changes in self.rights.changes.values() for change in changes]
        return {
            "changes": len(attempts),
            "answered": sum(change.answered for change in attempts),
            "attempts": dict(sorted(self._users.came.items())),
            "errors": dict(self.admin.errors),
        }


def _holds(image: MetadataImage, key: Key, value: Value) -> bool:
    """Whether a key has this value in an image."""
    if key.kind == PASSWORD:
        found = image.scram_credentials.get(ScramKey(key.who, ScramMechanism.SHA_256))
        return is_password(None if found is None else found.credential, value)
    if is_quota(key):
        return image.quotas.get(entity_of(key), {}).get(key.kind) == value
    return (binding_of(key) in image.acls) == bool(value)
