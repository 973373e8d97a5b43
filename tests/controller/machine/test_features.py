"""UpdateFeatures as the machine decides it (rule A33), and who may register (rule A34)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from strandline.controller.broker_api import told
from strandline.controller.features_api import FeatureUpdate, UpdateFeaturesRequest, UpdateKind
from strandline.controller.machine import features as machine
from strandline.controller.machine.state import MachineSettings, Result
from strandline.controller.metadata import features
from strandline.controller.metadata.features import (
    BEFORE_LEVELS,
    LEVEL_OF_MOVES,
    METADATA_FEATURE,
    OWN_LEVELS,
    TRANSACTION_TOPIC,
    FeatureLevelRecord,
    Range,
)
from strandline.controller.metadata.records import MetadataVersionRecord, PartitionChangeRecord
from strandline.controller.survey import NodeAnswer, Survey
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

UP, SAFE, UNSAFE = UpdateKind.UPGRADE, UpdateKind.SAFE_DOWNGRADE, UpdateKind.UNSAFE_DOWNGRADE
TRANSACTIONS = "transaction.version"


def all_new(cluster: Any, **others: Any) -> Survey:
    """Every broker answers with this build's levels."""
    known = cluster.state.settings.supported
    answers = {node: NodeAnswer(one.incarnation_id, known, "0.1.0") for node, one in cluster.image.brokers.items()}
    return {**answers, **{int(name.removeprefix("node_")): answer for name, answer in others.items()}}


def update(
    cluster: Any, *updates: tuple[str, int, UpdateKind], survey: Survey | None = None, validate_only: bool = False
) -> None:
    asked = UpdateFeaturesRequest(tuple(FeatureUpdate(*one) for one in updates), validate_only)
    cluster.run(machine.update_features(cluster.state, asked, all_new(cluster) if survey is None else survey))


def refused(cluster: Any, *updates: tuple[str, int, UpdateKind], survey: Survey | None = None) -> KafkaError:
    before = len(cluster.log)
    with pytest.raises(KafkaError) as caught:
        update(cluster, *updates, survey=survey)
    assert len(cluster.log) == before
    return caught.value


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch, machine_cluster: Any) -> Any:
    """A cluster whose builds know transaction.version 0 to 2, of which 2 cannot be left."""
    levels = tuple(features.Level(number, "9.9.9", "", number < 2, "they are one way") for number in (0, 1, 2))
    known = {**features.FEATURES, TRANSACTIONS: features.Feature(TRANSACTIONS, 0, levels)}
    monkeypatch.setattr(features, "FEATURES", known)
    monkeypatch.setattr(machine, "FEATURES", known)
    cluster = machine_cluster(2)
    cluster.settings = MachineSettings(supported={**OWN_LEVELS, TRANSACTIONS: Range(0, 2)})
    cluster.fail_over()
    return cluster


def test_a_level_is_raised_and_lowered_again(machine_cluster: Any) -> None:
    """Up and down between the first two levels; the metadata are as they were."""
    cluster = machine_cluster(2)
    before = cluster.image
    update(cluster, (METADATA_FEATURE, 2, UP))
    assert cluster.image.finalized == {**before.finalized, METADATA_FEATURE: 2}
    assert cluster.image.levels == {METADATA_FEATURE: 2, "eligible.leader.replicas.version": 1, "group.version": 1}
    assert cluster.log[-3] == MetadataVersionRecord(2, "0.1.0")
    update(cluster, (METADATA_FEATURE, 1, SAFE))
    assert cluster.log[-1] == MetadataVersionRecord(1)
    assert cluster.image.finalized == before.finalized
    assert cluster.image.levels == {METADATA_FEATURE: 1}


def test_a_level_that_is_there_already_writes_nothing(machine_cluster: Any) -> None:
    """A request that is repeated, because its answer was lost, succeeds; so does a feature that is on always."""
    cluster = machine_cluster(1)
    length = len(cluster.log)
    update(cluster, (METADATA_FEATURE, 1, UP), ("group.version", 1, UP))
    assert len(cluster.log) == length


def test_validate_only_changes_nothing(machine_cluster: Any) -> None:
    cluster = machine_cluster(1)
    length = len(cluster.log)
    update(cluster, (METADATA_FEATURE, 2, UP), validate_only=True)
    assert len(cluster.log) == length


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
    [
        ([], ErrorCode.INVALID_REQUEST, "at least one"),
        ([(METADATA_FEATURE, 2, UP)] * 2, ErrorCode.INVALID_REQUEST, "each of them once"),
        ([(METADATA_FEATURE, 99, UP)], ErrorCode.INVALID_UPDATE_VERSION, "build knows 1 to 3"),
        ([(METADATA_FEATURE, 0, UNSAFE)], ErrorCode.INVALID_UPDATE_VERSION, "build knows 1 to 3"),
        ([(METADATA_FEATURE, -1, UP)], ErrorCode.INVALID_UPDATE_VERSION, "build knows 1 to 3"),
        ([("share.version", 1, UP)], ErrorCode.INVALID_UPDATE_VERSION, "there is no such feature"),
        ([(TRANSACTIONS, 3, UP)], ErrorCode.INVALID_UPDATE_VERSION, "build knows 0 to 2"),
        ([("kraft.version", 2, UP)], ErrorCode.INVALID_UPDATE_VERSION, "build knows 0"),
        ([("group.version", 0, SAFE)], ErrorCode.INVALID_UPDATE_VERSION, "build knows 1"),
        ([(METADATA_FEATURE, 2, SAFE)], ErrorCode.INVALID_UPDATE_VERSION, "ask for an upgrade"),
    ],
)
def test_refused(machine_cluster: Any, wanted: list[Any], code: ErrorCode, words: str) -> None:
    """What no node needs to be asked about."""
    error = refused(machine_cluster(1), *wanted)
    assert (error.code, words in error.message) == (code, True), error.message


def test_an_upgrade_does_not_lower(machine_cluster: Any) -> None:
    cluster = machine_cluster(1)
    update(cluster, (METADATA_FEATURE, 2, UP))
    assert "ask for a downgrade" in refused(cluster, (METADATA_FEATURE, 1, UP)).message


def test_every_node_has_to_know_the_level(machine_cluster: Any) -> None:
    """Rule A33: an older broker, an older controller, one that is silent, and one that has just been started anew."""
    cluster = machine_cluster(2)
    mine = cluster.image.brokers[2].incarnation_id
    level = (METADATA_FEATURE, 2, UP)
    old = all_new(cluster, node_2=NodeAnswer(mine, BEFORE_LEVELS, ""))
    error = refused(cluster, level, survey=old)
    assert error.code is ErrorCode.INVALID_UPDATE_VERSION
    assert (
        "node 2 does not know metadata.version 2 (the build knows 1; Strandline 0.1.0 or newer does)" in error.message
    )
    voter = all_new(cluster, node_9=NodeAnswer(UUID(int=9), BEFORE_LEVELS, ""))
    assert "node 9 does not know" in refused(cluster, level, survey=voter).message
    silent = refused(cluster, level, survey=all_new(cluster, node_2="it does not answer"))
    assert silent.code is ErrorCode.FEATURE_UPDATE_FAILED
    assert "node 2: it does not answer" in silent.message
    other = all_new(cluster, node_2=NodeAnswer(UUID(int=77), OWN_LEVELS, "0.1.0"))
    assert "ask again" in refused(cluster, level, survey=other).message
    late = {node: answer for node, answer in all_new(cluster).items() if node != 2}
    assert "ask again" in refused(cluster, level, survey=late).message
    update(cluster, level)


def test_a_feature_needs_the_level_that_has_a_record_of_it(transactions: Any) -> None:
    """One request may raise both."""
    cluster = transactions
    assert "metadata.version 1 has no record" in refused(cluster, (TRANSACTIONS, 1, UP)).message
    update(cluster, (TRANSACTIONS, 1, UP), (METADATA_FEATURE, 2, UP))
    assert cluster.image.finalized[TRANSACTIONS] == 1
    assert FeatureLevelRecord(TRANSACTIONS, 1, "9.9.9") in cluster.log
    update(cluster, (TRANSACTIONS, 0, SAFE))
    assert cluster.image.finalized[TRANSACTIONS] == 0


def test_a_safe_downgrade_loses_nothing_and_an_unsafe_one_says_what(transactions: Any) -> None:
    """Rule A33: the level that has no record of the others is reached unsafely alone while one of them is raised."""
    cluster = transactions
    update(cluster, (METADATA_FEATURE, 2, UP), (TRANSACTIONS, 1, UP))
    assert "transaction.version 1" in refused(cluster, (METADATA_FEATURE, 1, SAFE)).message
    update(cluster, (METADATA_FEATURE, 1, UNSAFE))
    assert cluster.image.finalized[TRANSACTIONS] == 0


@pytest.mark.parametrize("kind", [SAFE, UNSAFE], ids=lambda kind: kind.name)
def test_a_level_that_cannot_be_left_is_not(transactions: Any, kind: UpdateKind) -> None:
    """Rule A33: the table says so, and no way of asking changes it."""
    cluster = transactions
    update(cluster, (METADATA_FEATURE, 2, UP), (TRANSACTIONS, 2, UP))
    assert "they are one way" in refused(cluster, (TRANSACTIONS, 1, kind)).message


@pytest.mark.parametrize("kind", [SAFE, UNSAFE], ids=lambda kind: kind.name)
def test_a_level_of_which_something_is_written_is_not_left(machine_cluster: Any, kind: UpdateKind) -> None:
    """Rule A33: builds before would show open and aborted transactions, and end none. Until the first transaction the
    level can be left; no way round by the level of the metadata, which has no record of it."""
    cluster = machine_cluster(2)
    update(cluster, (METADATA_FEATURE, 2, UP), (TRANSACTIONS, 2, UP))
    update(cluster, (TRANSACTIONS, 0, kind))
    update(cluster, (TRANSACTIONS, 2, UP))
    cluster.create(TRANSACTION_TOPIC, [[1, 2]])
    assert TRANSACTION_TOPIC in refused(cluster, (TRANSACTIONS, 0, kind)).message
    assert "cannot" in refused(cluster, (METADATA_FEATURE, 1, kind)).message or kind is SAFE
    assert TRANSACTION_TOPIC in refused(cluster, (TRANSACTIONS, 0, kind), (METADATA_FEATURE, 1, kind)).message
    update(cluster, (TRANSACTIONS, 1, kind))
    assert cluster.image.transaction_version == 1


@pytest.mark.parametrize("kind", [SAFE, UNSAFE], ids=lambda kind: kind.name)
def test_a_level_that_the_metadata_need_is_not_left(machine_cluster: Any, kind: UpdateKind) -> None:
    """Rule A33: a move under way stands in the metadata, and builds below the level would forget it."""
    cluster = machine_cluster(2)
    update(cluster, (METADATA_FEATURE, LEVEL_OF_MOVES, UP))
    cluster.create("t", [[1]])
    topic_id = cluster.partition("t").topic_id
    cluster.run(Result(None, [PartitionChangeRecord(topic_id, 0, replicas=(1, 2), adding_replicas=(2,))]))
    assert "partition 0 of topic 't' is moving" in refused(cluster, (METADATA_FEATURE, 2, kind)).message
    update(cluster, (METADATA_FEATURE, LEVEL_OF_MOVES, UP))
    cluster.run(Result(None, [PartitionChangeRecord(topic_id, 0, replicas=(1,), adding_replicas=())]))
    update(cluster, (METADATA_FEATURE, 2, kind))


def test_a_build_that_does_not_know_a_level_cannot_register(machine_cluster: Any) -> None:
    """Rule A34: it says which level it lacks, and what knows it. A build from before there were levels tells its
    metadata.version alone."""
    cluster = machine_cluster(2)
    cluster.fence(2)
    cluster.start(2, max_metadata_version=1, features=())
    update(cluster, (METADATA_FEATURE, 2, UP))
    cluster.fence(2)
    for changes in ({"features": ()}, {"features": told(BEFORE_LEVELS)}):
        with pytest.raises(KafkaError) as caught:
            cluster.register(2, max_metadata_version=1, **changes)
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert "metadata.version 2 (the build knows 1; Strandline 0.1.0 or newer does)" in caught.value.message
    with pytest.raises(KafkaError, match=r"group\.version 1"):
        cluster.register(2, features=told({**OWN_LEVELS, "group.version": Range(2, 3)}))
    cluster.register(2, features=told(OWN_LEVELS))
