"""A node's configuration as each part of it wants it."""

from __future__ import annotations

from strandline.cluster.broker.config import ListenerConfig
from strandline.cluster.broker.service.base import ServiceConfig, StaticSetting
from strandline.cluster.groups.config import GroupConfig, MigrationPolicy
from strandline.cluster.groups.group_coordinator import CoordinatorConfig
from strandline.cluster.node.config import NODE_SETTINGS, NodeConfig
from strandline.cluster.node.config_identity import RACK_AWARE
from strandline.controller.broker_session import BrokerSessionConfig
from strandline.controller.controller import ControllerConfig
from strandline.controller.machine.sessions import SessionTimes
from strandline.controller.machine.state import MachineSettings
from strandline.replica.states import ReplicaConfig


def controller_config(config: NodeConfig) -> ControllerConfig:
    """For the active controller."""
    return ControllerConfig(
        static=config.dynamic,
        machine=MachineSettings(
            times=SessionTimes(
                session_timeout_ms=config.broker_session_timeout_ms,
                silence_timeout_ms=config.broker_silence_timeout_ms,
            )
        ),
        auto_leader_rebalance_enable=config.leader_rebalance_enable,
        leader_imbalance_check_interval_ms=config.leader_rebalance_interval_s * 1000.0,
    )


def session_config(config: NodeConfig) -> BrokerSessionConfig:
    """For the broker's session with the controller."""
    return BrokerSessionConfig(
        heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
        registration_timeout_ms=config.initial_broker_registration_timeout_ms,
    )


def replica_config(config: NodeConfig) -> ReplicaConfig:
    """For the replica manager."""
    return ReplicaConfig(
        replica_lag_time_max_ms=config.replica_lag_time_max_ms, stray_delete_delay_ms=config.stray_delete_delay_ms
    )


def service_config(config: NodeConfig) -> ServiceConfig:
    """For the service."""
    return ServiceConfig(
        fetch_max_bytes=config.fetch_max_bytes,
        rack_aware_fetch=config.replica_selector == RACK_AWARE,
        fetch_session_slots=config.fetch_session_slots,
        memory_bytes=config.queued_max_request_bytes,
        describe_partitions_max=config.request_partition_limit,
        request_timeout_ms=config.request_timeout_ms,
    )


def coordinator_config(config: NodeConfig) -> CoordinatorConfig:
    """For the coordinator of groups."""
    return CoordinatorConfig(
        groups=GroupConfig(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_size=config.group_max_size,
            consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            consumer_max_size=config.group_consumer_max_size,
            consumer_assignors=config.group_consumer_assignors,
            consumer_migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_ms=config.offsets_retention_check_interval_ms,
        ),
        topic_partitions=config.offsets_topic_num_partitions,
        topic_replication_factor=config.offsets_topic_replication_factor,
        topic_segment_bytes=config.offsets_topic_segment_bytes,
        commit_timeout_ms=config.offsets_commit_timeout_ms,
    )


def listener_config(config: NodeConfig) -> ListenerConfig:
    """For each Kafka listener."""
    return ListenerConfig(request_bytes_max=config.socket_request_max_bytes, idle_ms_max=config.connections_max_idle_ms)


def static_settings(config: NodeConfig) -> list[StaticSetting]:
    """What DescribeConfigs tells of settings that cannot change while the node runs."""
    return [
        StaticSetting(
            name=setting.name,
            value=config.given.get(setting.name, setting.default),
            type=setting.type,
            doc=setting.doc,
            is_default=setting.name not in config.given,
        )
        for setting in NODE_SETTINGS.values()
    ]
