"""UpdateFeatures (KIP-584, KIP-778): levels raised and lowered, all that a request asks for or nothing (rule A33)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

from strandline.controller.features_api import FeatureUpdate, UpdateFeaturesReply, UpdateFeaturesRequest, UpdateKind
from strandline.controller.machine.state import MachineState, Result
from strandline.controller.metadata.features import (
    FEATURES,
    LEVEL_OF_FEATURES,
    METADATA_FEATURE,
    excluded,
    level_records,
)
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import MetadataRecord
from strandline.controller.metadata.snapshot import what_needs_more_than
from strandline.controller.survey import Survey
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


def update_features(state: MachineState, request: UpdateFeaturesRequest, survey: Survey) -> Result[UpdateFeaturesReply]:
    """Give features other levels. Every broker and every voter has to know each of them, by what it has just said.

    Raises:
        KafkaError: INVALID_REQUEST (nothing asked for, or one feature twice); INVALID_UPDATE_VERSION (no such level,
            the wrong way, a level that cannot be left, a node that does not know it); FEATURE_UPDATE_FAILED (a node
            that does not say what it knows).
    """
    image = state.image
    names = [update.name for update in request.updates]
    if not names or len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Name at least one feature, and each of them once.")
    for update in request.updates:
        _judge(state, update)
    levels = {**image.finalized, **{update.name: update.level for update in request.updates}}
    kinds = {update.kind for update in request.updates}
    if levels[METADATA_FEATURE] < LEVEL_OF_FEATURES:
        levels |= _implied(image, levels, unsafe=UpdateKind.UNSAFE_DOWNGRADE in kinds)
    changed = {name: level for name, level in levels.items() if image.finalized.get(name) != level}
    if changed:
        _ask_the_nodes(image, changed, survey)
    if request.validate_only or not changed:
        return Result(UpdateFeaturesReply())
    return Result(UpdateFeaturesReply(), _records(image, levels))


def _judge(state: MachineState, update: FeatureUpdate) -> None:
    """Check that the feature may get this level at all. Raises KafkaError if it may not, whatever the nodes support."""
    feature, supported = FEATURES.get(update.name), state.settings.supported.get(update.name)
    if feature is None or supported is None:
        _refuse(update.name, update.level, f"there is no such feature here; there are {', '.join(sorted(FEATURES))}")
    now = state.image.finalized.get(update.name, 0)
    if update.level not in supported:
        _refuse(update.name, update.level, f"the active controller's build knows {supported}")
    if update.level > now and update.kind is not UpdateKind.UPGRADE:
        _refuse(update.name, update.level, f"it is at {now}, and a downgrade does not raise it: ask for an upgrade")
    if update.level < now and update.kind is UpdateKind.UPGRADE:
        _refuse(
            update.name,
            update.level,
            f"it is at {now}, and an upgrade does not lower it: ask for a downgrade, safe or unsafe",
        )
    _may_be_left(state.image, update.name, now, update.level)


def _may_be_left(image: MetadataImage, name: str, now: int, wanted: int) -> None:
    """Check that the levels above the new one may be given up. Raises KafkaError if one may not, or its records are in
    use."""
    for level in FEATURES[name].levels:
        kept = level.kept_by in image.topics  # rule A33/a-level-in-use-is-left
        if wanted < level.number <= now and (kept or not level.can_be_left):  # rule A33/a-level-that-cannot-be-left
            why = f"it is at {now}, and level {level.number} cannot be left: {level.leaving}"
            _refuse(name, wanted, why)
    needed = what_needs_more_than(wanted, image) if name == METADATA_FEATURE and wanted < now else ""
    if needed:  # rule A33/a-level-that-is-needed-is-left
        _refuse(name, wanted, f"it is at {now}, and {needed}: end that first")


def _refuse(name: str, level: int, why: str) -> NoReturn:
    raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"{name} cannot get level {level}: {why}.")


def _implied(image: MetadataImage, levels: Mapping[str, int], *, unsafe: bool) -> dict[str, int]:
    """The levels of the other features without records of them. Raises KafkaError: that would lose a level, or leave
    one that cannot be left."""
    implied = {name: feature.implied for name, feature in FEATURES.items() if name != METADATA_FEATURE}
    lost = [f"{name} {levels[name]}" for name, level in sorted(implied.items()) if levels[name] != level]
    if lost and not unsafe:  # rule A33/a-safe-downgrade-loses-levels
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{METADATA_FEATURE} {levels[METADATA_FEATURE]} has no record of {', '.join(lost)}: lower them first, or "
            "ask for an unsafe downgrade, which makes them fall back.",
        )
    for name, level in implied.items():  # rule A33/an-unsafe-downgrade-leaves-any-level
        _may_be_left(image, name, levels[name], level)
    return implied


def _ask_the_nodes(image: MetadataImage, changed: Mapping[str, int], survey: Survey) -> None:
    """Check that every node supports the new levels. Raises KafkaError if one does not, or has not answered."""
    unknown = [f"{who} does not know {', '.join(faults)}" for who, faults in _excluding(changed, survey)]
    silent = list(_silent(image, survey))
    if unknown or silent:  # rule A33/nodes-are-not-asked
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION if unknown else ErrorCode.FEATURE_UPDATE_FAILED,
            "Not every node is known to be ready: "
            + "; ".join([*unknown, *silent])
            + ". Every one has to run, with a build that knows the level. A broker that does not come back is taken "
            "out by UnregisterBroker (strandline cluster unregister NODE).",
        )


def _excluding(changed: Mapping[str, int], survey: Survey) -> Iterator[tuple[str, list[str]]]:
    for node_id, answer in sorted(survey.items()):
        faults = [] if isinstance(answer, str) else excluded(changed, answer.supported)
        if faults:
            yield f"node {node_id}", faults


def _silent(image: MetadataImage, survey: Survey) -> Iterator[str]:
    """Nodes that have not answered, or of which another process has registered since."""
    for node_id in sorted({*survey, *image.brokers}):
        answer = survey.get(node_id, "it has registered just now: ask again")
        if isinstance(answer, str):
            yield f"node {node_id}: {answer}"
        elif node_id in image.brokers and image.brokers[node_id].incarnation_id != answer.incarnation_id:
            yield f"node {node_id}: another process of it has answered than is registered: ask again"


def _records(image: MetadataImage, levels: Mapping[str, int]) -> list[MetadataRecord]:
    """The records of these levels; what has its level already is written once more, but for nothing else."""
    metadata_version = levels[METADATA_FEATURE]
    if metadata_version < LEVEL_OF_FEATURES:
        return level_records(metadata_version, {})
    features = {name: level for name, level in levels.items() if level > 0 or name in image.levels}
    del features[METADATA_FEATURE]
    return level_records(metadata_version, features)
