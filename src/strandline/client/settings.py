"""The clients' settings as a type checker sees them: their Python names, with the types of `config`.

`Producer(bootstrap, linger_mz=20)` is an error of mypy and pyright then, and not only of the running program. Values
that come as text, and Kafka's dotted names, pass as a `dict[str, Any]`. A test holds these classes equal to those of
`config`, where each setting is explained.
"""

from __future__ import annotations

from typing import TypedDict

from strandline.client.config import Deserializer, Partitioner


class CommonSettings(TypedDict, total=False):
    """Settings of every client."""

    client_id: str
    security_protocol: str
    sasl_mechanism: str
    sasl_username: str
    sasl_password: str
    sasl_jaas_config: str
    sasl_oauthbearer_token_endpoint_url: str
    sasl_oauthbearer_client_credentials_client_id: str
    sasl_oauthbearer_client_credentials_client_secret: str
    sasl_oauthbearer_scope: str
    sasl_oauthbearer_header_urlencode: bool
    sasl_login_connect_timeout_ms: int
    sasl_login_read_timeout_ms: int
    sasl_login_retry_backoff_ms: int
    sasl_login_retry_backoff_max_ms: int
    sasl_login_refresh_window_factor: float
    sasl_login_refresh_window_jitter: float
    sasl_login_refresh_min_period_seconds: int
    sasl_login_refresh_buffer_seconds: int
    ssl_truststore_location: str
    ssl_truststore_certificates: str
    ssl_truststore_type: str
    ssl_endpoint_identification_algorithm: str
    ssl_keystore_location: str
    ssl_keystore_certificate_chain: str
    ssl_keystore_key: str
    ssl_keystore_type: str
    ssl_key_password: str
    ssl_enabled_protocols: str
    ssl_cipher_suites: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    metadata_max_age_ms: int


class ProducerSettings(CommonSettings, total=False):
    """Settings of a producer."""

    acks: str | int
    batch_size: int
    batch_size_max: int | None
    linger_ms: float
    buffer_memory: int
    max_block_ms: int
    max_in_flight_requests_per_connection: int
    max_request_size: int
    delivery_timeout_ms: int
    retries: int
    enable_idempotence: bool | None
    compression_type: str
    metadata_max_idle_ms: int
    partitioner: Partitioner | None


class ConsumerSettings(CommonSettings, total=False):
    """Settings of a consumer."""

    group_id: str | None
    group_instance_id: str | None
    group_protocol: str
    group_remote_assignor: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    partition_assignment_strategy: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    auto_offset_reset: str
    max_poll_records: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    check_crcs: bool
    isolation_level: str
    client_rack: str
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None
    default_api_timeout_ms: int


class AdminSettings(CommonSettings, total=False):
    """Settings of an admin client."""

    default_api_timeout_ms: int
