"""The admin client for coroutines."""

from __future__ import annotations

from typing import Self

from strandline.client.aio.admin_base import Awaited
from strandline.client.aio.admin_cluster import ClusterAdmin
from strandline.client.aio.admin_configs import ConfigAdmin
from strandline.client.aio.admin_groups import GroupAdmin
from strandline.client.aio.admin_security import AclAdmin, QuotaAdmin, UserAdmin
from strandline.client.aio.admin_topics import TopicAdmin
from strandline.client.aio.admin_transactions import TransactionAdmin


class Operations(TopicAdmin, ConfigAdmin, ClusterAdmin, GroupAdmin, TransactionAdmin, UserAdmin, AclAdmin, QuotaAdmin):
    """Operations that both admin clients have."""


class Admin(Operations, Awaited):
    """Describes and changes a cluster. Calls may run concurrently.

    Every call retries what a retry may mend, for `default.api.timeout.ms`, and then raises ClientTimeout. For one name
    that fails its KafkaError is raised; for several, ManyErrors with `results` and `errors`.

    Args:
        bootstrap: ``"host:port,..."`` or a sequence of them.
        clock, rng: the world; the machine's own when left out.
        settings: see docs/client-settings.md.
    """

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self.session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
