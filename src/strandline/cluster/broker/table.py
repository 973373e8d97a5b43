"""The table of APIs: which versions are served, and what answers them.

Each version that stands here is served whole; nothing else is advertised.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.cluster.broker.api import ApiRow, Handlers, ServedApi, by_hand, by_schema
from strandline.cluster.broker.handlers import api_versions, metadata, sasl
from strandline.cluster.broker.handlers.acls import AclsHandler as Acls
from strandline.cluster.broker.handlers.alter_configs import AlterConfigsHandler as AlterConfigs
from strandline.cluster.broker.handlers.api_versions import ApiVersionsHandler as ApiVersions
from strandline.cluster.broker.handlers.cluster import ClusterHandler as Cluster
from strandline.cluster.broker.handlers.consumer_groups import ConsumerGroupsHandler as ConsumerGroups
from strandline.cluster.broker.handlers.coordinators import CoordinatorsHandler as Coordinators
from strandline.cluster.broker.handlers.delete_records import DeleteRecordsHandler as DeleteRecords
from strandline.cluster.broker.handlers.describe_configs import DescribeConfigsHandler as DescribeConfigs
from strandline.cluster.broker.handlers.elections import ElectionsHandler as Elections
from strandline.cluster.broker.handlers.fetch import FetchHandler as Fetch
from strandline.cluster.broker.handlers.group_admin import GroupAdminHandler as GroupAdmin
from strandline.cluster.broker.handlers.group_members import GroupMembersHandler as GroupMembers
from strandline.cluster.broker.handlers.log_dirs import LogDirsHandler as LogDirs
from strandline.cluster.broker.handlers.metadata import MetadataHandler as Metadata
from strandline.cluster.broker.handlers.offset_commit import OffsetCommitHandler as OffsetCommit
from strandline.cluster.broker.handlers.offset_fetch import OffsetFetchHandler as OffsetFetch
from strandline.cluster.broker.handlers.offsets import OffsetsHandler as Offsets
from strandline.cluster.broker.handlers.produce import ProduceHandler as Produce
from strandline.cluster.broker.handlers.producers import ProducersHandler as Producers
from strandline.cluster.broker.handlers.quotas import QuotasHandler as Quotas
from strandline.cluster.broker.handlers.sasl import SaslAuthenticateHandler as SaslAuthenticate
from strandline.cluster.broker.handlers.sasl import SaslHandshakeHandler as SaslHandshake
from strandline.cluster.broker.handlers.scram_credentials import ScramCredentialsHandler as ScramCredentials
from strandline.cluster.broker.handlers.topic_partitions import TopicPartitionsHandler as TopicPartitions
from strandline.cluster.broker.handlers.topics import TopicsHandler as Topics
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka import fetch, produce, schema
from strandline.proto.kafka.apis import Api

_ROWS = (
    by_hand(Api.PRODUCE, (produce.FIRST, produce.LAST), Produce, large=True),
    by_hand(Api.FETCH, (fetch.FIRST, fetch.LAST), Fetch, large_answer=True),
    by_hand(Api.METADATA, metadata.VERSIONS, Metadata),
    by_hand(Api.API_VERSIONS, api_versions.VERSIONS, ApiVersions),
    by_hand(Api.SASL_HANDSHAKE, sasl.HANDSHAKE_VERSIONS, SaslHandshake),
    by_hand(Api.SASL_AUTHENTICATE, sasl.AUTHENTICATE_VERSIONS, SaslAuthenticate),
    by_schema(Api.LIST_OFFSETS, (1, 11), Offsets, Offsets.list_offsets),
    by_schema(Api.OFFSET_FOR_LEADER_EPOCH, (2, 4), Offsets, Offsets.ends_of_epochs),
    by_schema(Api.DESCRIBE_TOPIC_PARTITIONS, (0, 0), TopicPartitions, TopicPartitions.describe),
    by_schema(Api.CREATE_TOPICS, (2, 7), Topics, Topics.create),
    by_schema(Api.DELETE_TOPICS, (1, 6), Topics, Topics.delete),
    by_schema(Api.CREATE_PARTITIONS, (0, 3), Topics, Topics.create_partitions),
    by_schema(Api.DELETE_RECORDS, (0, 2), DeleteRecords, DeleteRecords.delete),
    by_schema(Api.DESCRIBE_CONFIGS, (1, 4), DescribeConfigs, DescribeConfigs.describe),
    by_schema(Api.ALTER_CONFIGS, (0, 2), AlterConfigs, AlterConfigs.alter_altogether),
    by_schema(Api.INCREMENTAL_ALTER_CONFIGS, (0, 1), AlterConfigs, AlterConfigs.alter_incrementally),
    by_schema(Api.DESCRIBE_ACLS, (1, 3), Acls, Acls.describe),
    by_schema(Api.CREATE_ACLS, (1, 3), Acls, Acls.create),
    by_schema(Api.DELETE_ACLS, (1, 3), Acls, Acls.delete),
    by_schema(Api.INIT_PRODUCER_ID, (0, 5), Producers, Producers.init_producer_id),
    by_schema(Api.DESCRIBE_PRODUCERS, (0, 0), Producers, Producers.describe),
    by_schema(Api.FIND_COORDINATOR, (0, 6), Coordinators, Coordinators.find),
    by_schema(Api.JOIN_GROUP, (0, 9), GroupMembers, GroupMembers.join),
    by_schema(Api.HEARTBEAT, (0, 4), GroupMembers, GroupMembers.heartbeat),
    by_schema(Api.LEAVE_GROUP, (0, 5), GroupMembers, GroupMembers.leave),
    by_schema(Api.SYNC_GROUP, (0, 5), GroupMembers, GroupMembers.sync),
    by_schema(Api.CONSUMER_GROUP_HEARTBEAT, (0, 1), ConsumerGroups, ConsumerGroups.heartbeat),
    by_schema(Api.CONSUMER_GROUP_DESCRIBE, (0, 1), ConsumerGroups, ConsumerGroups.describe),
    by_schema(Api.OFFSET_COMMIT, (2, 10), OffsetCommit, OffsetCommit.commit),
    by_schema(Api.OFFSET_DELETE, (0, 0), OffsetCommit, OffsetCommit.delete),
    by_schema(Api.OFFSET_FETCH, (1, 10), OffsetFetch, OffsetFetch.fetch),
    by_schema(Api.DESCRIBE_GROUPS, (0, 6), GroupAdmin, GroupAdmin.describe),
    by_schema(Api.LIST_GROUPS, (0, 5), GroupAdmin, GroupAdmin.list_groups),
    by_schema(Api.DELETE_GROUPS, (0, 2), GroupAdmin, GroupAdmin.delete),
    by_schema(Api.DESCRIBE_CLUSTER, (0, 2), Cluster, Cluster.describe_cluster, Cluster.refuse_cluster),
    by_schema(Api.DESCRIBE_QUORUM, (0, 2), Cluster, Cluster.describe_quorum, Cluster.refuse_quorum),
    by_schema(Api.ADD_RAFT_VOTER, (0, 0), Cluster, Cluster.add_voter),
    by_schema(Api.REMOVE_RAFT_VOTER, (0, 0), Cluster, Cluster.remove_voter),
    by_schema(Api.ELECT_LEADERS, (0, 2), Elections, Elections.elect),
    by_schema(Api.ALTER_REPLICA_LOG_DIRS, (1, 2), LogDirs, LogDirs.alter, LogDirs.refuse_alter),
    by_schema(Api.DESCRIBE_LOG_DIRS, (1, 5), LogDirs, LogDirs.describe),
    by_schema(Api.DESCRIBE_CLIENT_QUOTAS, (0, 1), Quotas, Quotas.describe),
    by_schema(Api.ALTER_CLIENT_QUOTAS, (0, 1), Quotas, Quotas.alter, Quotas.refuse_alter),
    by_schema(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), ScramCredentials, ScramCredentials.describe),
    by_schema(
        Api.ALTER_USER_SCRAM_CREDENTIALS,
        (0, 0),
        ScramCredentials,
        ScramCredentials.alter,
        ScramCredentials.refuse_alter,
    ),
)

APIS: Mapping[int, ApiRow] = {row.api: row for row in _ROWS}
"""By API key."""


def served_by(handlers: Handlers) -> Mapping[int, ServedApi]:
    """The APIs of one broker, by key."""
    return {row.api: row.bind(handlers) for row in _ROWS}


def in_other_version(served: ServedApi, version: int) -> tuple[ServedApi, int]:
    """What answers a version that is not served, and in the format of which version.

    ApiVersions answers in version 0 (KIP-511); others say UNSUPPORTED_VERSION where the format of that version is
    known.

    Raises:
        ProtocolError: there is no format in which to answer.
    """
    api = served.api
    if api is Api.API_VERSIONS:
        return served, 0
    if served.by_schema and schema.knows(api, version):
        return served, version
    raise ProtocolError(f"version {version} of {api.title} is not served, only {served.first} to {served.last}")
