"""The APIs that are served, and how versions outside what is served are met."""

from __future__ import annotations

from strandline.cluster.broker.api import ServedApi
from strandline.cluster.broker.apis import (
    add_raft_voter,
    alter_configs,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    remove_raft_voter,
    sync_group,
)
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api

APIS: dict[int, ServedApi] = {
    served.api: served
    for served in (
        produce.API,
        fetch.API,
        list_offsets.API,
        metadata.API,
        offset_commit.API,
        offset_fetch.API,
        find_coordinator.API,
        join_group.API,
        heartbeat.API,
        leave_group.API,
        sync_group.API,
        describe_groups.API,
        list_groups.API,
        delete_groups.API,
        offset_delete.API,
        create_topics.API,
        delete_topics.API,
        delete_records.API,
        init_producer_id.API,
        offset_for_leader_epoch.API,
        describe_configs.API,
        alter_configs.API,
        describe_log_dirs.API,
        describe_producers.API,
        create_partitions.API,
        elect_leaders.API,
        incremental_alter_configs.API,
        describe_quorum.API,
        describe_cluster.API,
        consumer_group_heartbeat.API,
        consumer_group_describe.API,
        describe_topic_partitions.API,
        add_raft_voter.API,
        remove_raft_voter.API,
    )
}
"""By API key. Each version that stands here is served whole; nothing else is advertised."""

APIS[Api.API_VERSIONS] = api_versions.make_api(APIS)


def api_of_other_version(served: ServedApi, version: int) -> tuple[ServedApi, int]:
    """Who answers a version that is not served, and in the format of which version.

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
