from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaKey(_message.Message):
    __slots__ = ("node_id", "directory_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    directory_id: bytes
    def __init__(self, node_id: _Optional[int] = ..., directory_id: _Optional[bytes] = ...) -> None: ...

class OffsetAndEpoch(_message.Message):
    __slots__ = ("offset", "epoch")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    offset: int
    epoch: int
    def __init__(self, offset: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("cluster_id", "candidate", "candidate_epoch", "voter", "last", "pre_vote", "voters_offset")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    VOTERS_OFFSET_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    candidate: ReplicaKey
    candidate_epoch: int
    voter: ReplicaKey
    last: OffsetAndEpoch
    pre_vote: bool
    voters_offset: int
    def __init__(self, cluster_id: _Optional[str] = ..., candidate: _Optional[_Union[ReplicaKey, _Mapping]] = ..., candidate_epoch: _Optional[int] = ..., voter: _Optional[_Union[ReplicaKey, _Mapping]] = ..., last: _Optional[_Union[OffsetAndEpoch, _Mapping]] = ..., pre_vote: _Optional[bool] = ..., voters_offset: _Optional[int] = ...) -> None: ...

class VoteResponse(_message.Message):
    __slots__ = ("error", "epoch", "leader_id", "granted", "in_doubt")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    IN_DOUBT_FIELD_NUMBER: _ClassVar[int]
    error: int
    epoch: int
    leader_id: int
    granted: bool
    in_doubt: bool
    def __init__(self, error: _Optional[int] = ..., epoch: _Optional[int] = ..., leader_id: _Optional[int] = ..., granted: _Optional[bool] = ..., in_doubt: _Optional[bool] = ...) -> None: ...

class BeginQuorumEpochRequest(_message.Message):
    __slots__ = ("cluster_id", "leader_id", "epoch", "voter")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    leader_id: int
    epoch: int
    voter: ReplicaKey
    def __init__(self, cluster_id: _Optional[str] = ..., leader_id: _Optional[int] = ..., epoch: _Optional[int] = ..., voter: _Optional[_Union[ReplicaKey, _Mapping]] = ...) -> None: ...

class BeginQuorumEpochResponse(_message.Message):
    __slots__ = ("error", "epoch", "leader_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    error: int
    epoch: int
    leader_id: int
    def __init__(self, error: _Optional[int] = ..., epoch: _Optional[int] = ..., leader_id: _Optional[int] = ...) -> None: ...

class EndQuorumEpochRequest(_message.Message):
    __slots__ = ("cluster_id", "leader_id", "epoch", "preferred_candidates")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    leader_id: int
    epoch: int
    preferred_candidates: _containers.RepeatedCompositeFieldContainer[ReplicaKey]
    def __init__(self, cluster_id: _Optional[str] = ..., leader_id: _Optional[int] = ..., epoch: _Optional[int] = ..., preferred_candidates: _Optional[_Iterable[_Union[ReplicaKey, _Mapping]]] = ...) -> None: ...

class EndQuorumEpochResponse(_message.Message):
    __slots__ = ("error", "epoch", "leader_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    error: int
    epoch: int
    leader_id: int
    def __init__(self, error: _Optional[int] = ..., epoch: _Optional[int] = ..., leader_id: _Optional[int] = ...) -> None: ...

class QuorumFetchRequest(_message.Message):
    __slots__ = ("cluster_id", "replica", "epoch", "fetch_offset", "last_fetched_epoch", "high_watermark", "max_wait_ms", "max_bytes", "voteless", "life")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FETCH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_FETCHED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    VOTELESS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    replica: ReplicaKey
    epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int
    max_wait_ms: int
    max_bytes: int
    voteless: bool
    life: int
    def __init__(self, cluster_id: _Optional[str] = ..., replica: _Optional[_Union[ReplicaKey, _Mapping]] = ..., epoch: _Optional[int] = ..., fetch_offset: _Optional[int] = ..., last_fetched_epoch: _Optional[int] = ..., high_watermark: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., max_bytes: _Optional[int] = ..., voteless: _Optional[bool] = ..., life: _Optional[int] = ...) -> None: ...

class QuorumFetchResponse(_message.Message):
    __slots__ = ("error", "epoch", "leader_id", "high_watermark", "log_start_offset", "diverging", "snapshot", "records")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DIVERGING_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    error: int
    epoch: int
    leader_id: int
    high_watermark: int
    log_start_offset: int
    diverging: OffsetAndEpoch
    snapshot: OffsetAndEpoch
    records: bytes
    def __init__(self, error: _Optional[int] = ..., epoch: _Optional[int] = ..., leader_id: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., diverging: _Optional[_Union[OffsetAndEpoch, _Mapping]] = ..., snapshot: _Optional[_Union[OffsetAndEpoch, _Mapping]] = ..., records: _Optional[bytes] = ...) -> None: ...

class QuorumFetchSnapshotRequest(_message.Message):
    __slots__ = ("cluster_id", "replica", "epoch", "snapshot", "position", "max_bytes", "voteless")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    VOTELESS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    replica: ReplicaKey
    epoch: int
    snapshot: OffsetAndEpoch
    position: int
    max_bytes: int
    voteless: bool
    def __init__(self, cluster_id: _Optional[str] = ..., replica: _Optional[_Union[ReplicaKey, _Mapping]] = ..., epoch: _Optional[int] = ..., snapshot: _Optional[_Union[OffsetAndEpoch, _Mapping]] = ..., position: _Optional[int] = ..., max_bytes: _Optional[int] = ..., voteless: _Optional[bool] = ...) -> None: ...

class QuorumFetchSnapshotResponse(_message.Message):
    __slots__ = ("error", "epoch", "leader_id", "snapshot", "size", "position", "data")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    error: int
    epoch: int
    leader_id: int
    snapshot: OffsetAndEpoch
    size: int
    position: int
    data: bytes
    def __init__(self, error: _Optional[int] = ..., epoch: _Optional[int] = ..., leader_id: _Optional[int] = ..., snapshot: _Optional[_Union[OffsetAndEpoch, _Mapping]] = ..., size: _Optional[int] = ..., position: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
