"""The broker's service: every operation a client can ask for, whatever the wire it came by.

One method an operation, its first argument the `RequestContext`; requests and answers are frozen values. A listener
turns wire into these and decides nothing. Operations answered from this broker's memory return at once, those that ask
the controller are coroutines, and produce and fetch call back, because they are many and may wait for other machines.
"""

from __future__ import annotations

from strandline.cluster.broker.service.admin import Admin
from strandline.cluster.broker.service.configs import Configs
from strandline.cluster.broker.service.consumer_groups import ConsumerGroups
from strandline.cluster.broker.service.coordinators import Coordinators
from strandline.cluster.broker.service.deletions import Deletions
from strandline.cluster.broker.service.elections import Elections
from strandline.cluster.broker.service.fetch import Fetching
from strandline.cluster.broker.service.group_admin import GroupAdmin
from strandline.cluster.broker.service.group_members import GroupMembers
from strandline.cluster.broker.service.group_offsets import GroupOffsets
from strandline.cluster.broker.service.inspection import Inspection
from strandline.cluster.broker.service.metadata import Metadata
from strandline.cluster.broker.service.offsets import Offsets
from strandline.cluster.broker.service.produce import Producing
from strandline.cluster.broker.service.producer_ids import ProducerIds
from strandline.cluster.broker.service.quorum import QuorumQueries


class BrokerService(
    Producing,
    Fetching,
    Offsets,
    Metadata,
    Admin,
    Deletions,
    Elections,
    Configs,
    ProducerIds,
    Coordinators,
    GroupMembers,
    ConsumerGroups,
    GroupOffsets,
    GroupAdmin,
    QuorumQueries,
    Inspection,
):
    """All operations; each group stands in a file of its own."""
