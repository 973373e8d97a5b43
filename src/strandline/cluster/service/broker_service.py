"""The broker's service: every operation a client can ask for, whatever the wire it came by.

One method an operation, its first argument the `RequestContext`; requests and answers are frozen values. A listener
turns wire into these and decides nothing. Operations answered from this broker's memory return at once, those that ask
the controller are coroutines, and produce and fetch call back, because they are many and may wait for other machines.
"""

from __future__ import annotations

from strandline.cluster.service.admin import Admin
from strandline.cluster.service.configs import Configs
from strandline.cluster.service.consumer_groups import ConsumerGroups
from strandline.cluster.service.coordinators import Coordinators
from strandline.cluster.service.deletions import Deletions
from strandline.cluster.service.elections import Elections
from strandline.cluster.service.fetch import Fetching
from strandline.cluster.service.group_admin import GroupAdmin
from strandline.cluster.service.group_members import GroupMembers
from strandline.cluster.service.group_offsets import GroupOffsets
from strandline.cluster.service.inspection import Inspection
from strandline.cluster.service.metadata import Metadata
from strandline.cluster.service.offsets import Offsets
from strandline.cluster.service.produce import Producing
from strandline.cluster.service.producer_ids import ProducerIds
from strandline.cluster.service.quorum import QuorumQueries


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
