"""Settings: sessions, replication, and the limits of what clients can make a node do."""

from __future__ import annotations

from strandline.cluster.node.config_setting import boolean, integer, milliseconds, size


class Limits:
    """How long, how much, how many."""

    broker_session_timeout_ms = milliseconds(
        "broker.session.timeout.ms",
        9000,
        "A broker whose heartbeats have not come for so long is fenced. (One whose process died is noticed by "
        "its broken connection, in well under a second; one that is silent, by broker.silence.timeout.ms.)",
    )
    broker_silence_timeout_ms = milliseconds(
        "broker.silence.timeout.ms",
        2500,
        "A broker that sends no heartbeats and answers no probes for so long is fenced (Kafka knows nothing like it). "
        "It is probed after two fifths of this; one that is busy answers late, and stays. As great as "
        "broker.session.timeout.ms: only heartbeats count.",
        low=100,
    )
    broker_heartbeat_interval_ms = milliseconds(
        "broker.heartbeat.interval.ms", 2000, "How often a broker tells the controller that it is alive."
    )
    initial_broker_registration_timeout_ms = milliseconds(
        "initial.broker.registration.timeout.ms",
        60_000,
        "A broker that could not register with the controller for so long stops with an error.",
    )
    disk_sync_timeout_ms = milliseconds(
        "disk.sync.timeout.ms",
        5000,
        "A sync of the disk that takes longer: nothing is acknowledged meanwhile, so the node gives up what it leads "
        "and stops. A warning is logged at a fifth of it. (Under flush.policy=replicate acks wait for no sync: a "
        "broker stays, and stops at four times this.)",
        low=100,
    )
    controlled_shutdown_timeout_ms = milliseconds(
        "controlled.shutdown.timeout.ms",
        10_000,
        "How long a stopping broker waits for its leaderships to move away before it stops all the same.",
    )
    replica_lag_time_max_ms = milliseconds(
        "replica.lag.time.max.ms",
        30_000,
        "A follower that was not caught up for so long leaves the ISR. (One whose broker is fenced leaves at once.)",
    )
    stray_delete_delay_ms = integer(
        "log.stray.delete.delay.ms",
        3_600_000,
        "Directories of partitions whose topic was deleted, or whose replica moved, while this broker was down are "
        "renamed aside (-stray) when it starts, and removed after so long; -1: never, as Kafka has it.",
        low=-1,
        high=2**31 - 1,
        unit="ms",
    )
    leader_rebalance_enable = boolean(
        "auto.leader.rebalance.enable",
        True,
        "Whether leadership returns by itself to the preferred replica once that is in sync again.",
    )
    leader_rebalance_interval_s = integer(
        "leader.imbalance.check.interval.seconds",
        5,
        "How often the controller looks for partitions that are not led by their preferred replica (Kafka: 300).",
        low=1,
        high=2**31 - 1,
        unit="s",
    )
    socket_request_max_bytes = size(
        "socket.request.max.bytes",
        100 * 1024**2,
        "The largest request that is read from a client; a longer one closes the connection.",
        low=1024,
    )
    connections_max_idle_ms = milliseconds(
        "connections.max.idle.ms", 600_000, "A client's connection without a request for so long is closed."
    )
    queued_max_request_bytes = size(
        "queued.max.request.bytes",
        256 * 1024**2,
        "Memory for requests and answers of all clients together; beyond it their sockets are not read until there is "
        "room again.",
        low=1024**2,
    )
    fetch_max_bytes = size(
        "fetch.max.bytes", 55 * 1024**2, "The largest answer to one fetch, whatever the client asks for.", low=1024
    )
    fetch_session_slots = integer(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "How many incremental fetch sessions are remembered; clients without one send all their partitions each time.",
        low=0,
        high=2**31 - 1,
    )
    request_partition_limit = integer(
        "max.request.partition.size.limit",
        2000,
        "The most partitions in one answer to DescribeTopicPartitions; the rest comes with the next page.",
        low=1,
        high=2**31 - 1,
    )
    request_timeout_ms = milliseconds(
        "request.timeout.ms", 30_000, "How long an operation without a timeout of its own waits for the controller."
    )
    fault_injection = boolean(
        "strandline.fault.injection",
        False,
        "For tests alone: POST /faults on the HTTP listener makes chosen requests fail and the disk slow. Whoever "
        "reaches that listener can do so.",
    )
