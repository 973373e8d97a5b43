"""Bootstrap records of a formatted directory: feature levels and users of a new cluster.

`strandline format --feature` and `--add-scram` write records of the metadata log into a file. The first controller that
leads appends them, levels first; a cluster that has metadata already ignores the file. So a cluster can begin at the
level of an older build, and one whose listeners all require a login has a user that can create others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import strandline
from strandline.controller.machine.scram import new_secret
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.features import (
    FEATURES,
    LEVEL_OF_FEATURES,
    METADATA_FEATURE,
    NEWEST_LEVEL,
    OWN_LEVELS,
    first_features,
    level_records,
)
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import MetadataRecord, MetadataVersionRecord
from strandline.controller.metadata.scram import ScramKey, scram_record
from strandline.controller.metadata.table import decode_record, encode_record
from strandline.log.disk import Disk, read_file, write_file_durably
from strandline.proto.errors import ConfigError, CorruptLogError, FatalError
from strandline.proto.ports import Rng
from strandline.proto.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    SCRAM_BY_TITLE,
    credential_of,
    salted_password,
)
from strandline.proto.secrets import resolved

BOOTSTRAP = "bootstrap-records"
"""Name of the file, with one metadata record per line, in hexadecimal."""

ADD_SCRAM = "--add-scram"
FEATURE = "--feature"
RELEASE_VERSION = "--release-version"

_CREDENTIAL = re.compile(r"\s*([A-Z0-9-]+)\s*=\s*\[(.*)\]\s*", re.DOTALL)
_FIELD = re.compile(r'\s*([a-z]+)\s*=\s*(?:"([^"]*)"|([^,]*?))\s*(?:,|$)')

_FORM = "SCRAM-SHA-256=[name=alice,password=${env:ALICE_PASSWORD}], with iterations=8192 if need be"


def scram_records(texts: Sequence[str], rng: Rng) -> list[MetadataRecord]:
    """Return the records of `--add-scram` options, in Kafka's form; passwords may be references (``${env:NAME}``).

    Raises:
        ConfigError: an option is invalid; its message never shows a password.
    """
    records: list[MetadataRecord] = []
    seen: set[ScramKey] = set()
    for text in texts:
        title, values = _parsed(text)
        mechanism = SCRAM_BY_TITLE[title]
        name, password = values["name"], values["password"]
        key = ScramKey(name, mechanism)
        if key in seen:
            raise ConfigError(ADD_SCRAM, f"{title} of {name}", "each user once a mechanism")
        seen.add(key)
        try:
            iterations = int(values.get("iterations", ITERATIONS_MIN))
            password = resolved(password)
        except ValueError as error:
            raise ConfigError(ADD_SCRAM, f"{title} of {name}", str(error)) from None
        if not password:
            raise ConfigError(ADD_SCRAM, f"{title} of {name}", "a password that is not empty")
        salt = rng.getrandbits(8 * SALT_BYTES).to_bytes(SALT_BYTES, "big")
        salted = salted_password(mechanism, password, salt, iterations) if iterations > 0 else b""
        records.append(scram_record(key, credential_of(mechanism, salted, salt, iterations)))
    if records:
        records.insert(0, new_secret(rng))
    try:
        _replay(records)
    except FatalError as error:
        raise ConfigError(ADD_SCRAM, ", ".join(sorted({key.name for key in seen})), str(error)) from None
    return records


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    match = _CREDENTIAL.fullmatch(text)
    if match is None or match[1] not in SCRAM_BY_TITLE:
        raise ConfigError(ADD_SCRAM, "(not shown: it may hold a password)", _FORM)
    values: dict[str, str] = {}
    at, body = 0, match[2]
    while at < len(body):
        found = _FIELD.match(body, at)
        if found is None or found[1] in values or found[1] not in ("name", "password", "iterations"):
            raise ConfigError(ADD_SCRAM, "(not shown: it may hold a password)", _FORM)
        values[found[1]] = found[3] if found[2] is None else found[2]
        at = found.end()
    if not values.get("name") or "password" not in values:
        raise ConfigError(ADD_SCRAM, "(not shown: it may hold a password)", _FORM)
    return match[1], values


def levels_of_release(release: str) -> int:
    """Return the metadata.version with which a release begins clusters. Raises ConfigError for an unknown release."""
    asked, ours = _numbers(release), _numbers(strandline.__version__)
    if not asked or asked > ours:
        raise ConfigError(RELEASE_VERSION, release, f"a release of Strandline up to {strandline.__version__}")
    levels = FEATURES[METADATA_FEATURE].levels
    return max(level.number for level in levels if _numbers(level.release or "0") <= asked)


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")] if re.fullmatch(r"[0-9]+(\.[0-9]+)*", release) else []


def first_level_records(release: str, features: Sequence[str]) -> list[MetadataRecord]:
    """Return the records of the `--release-version` and `--feature` options; none if neither is given.

    Raises:
        ConfigError: an unknown release, feature or level, or a level that the metadata.version is too old to record.
    """
    if not release and not features:
        return []
    metadata_version = levels_of_release(release) if release else NEWEST_LEVEL
    others: dict[str, int] = {}
    for text in features:
        name, _, number = text.partition("=")
        known = OWN_LEVELS.get(name)
        if known is None:
            raise ConfigError(FEATURE, text, f"NAME=LEVEL, of {', '.join(sorted(OWN_LEVELS))}")
        if not number.isdecimal() or int(number) not in known:
            raise ConfigError(FEATURE, text, f"{name}=LEVEL, the level {known}")
        if name == METADATA_FEATURE:
            metadata_version = int(number)
        else:
            others[name] = int(number)
    if metadata_version >= LEVEL_OF_FEATURES:
        return level_records(metadata_version, {name: at for name, at in {**first_features(), **others}.items() if at})
    for name, level in others.items():
        if level != FEATURES[name].implied:
            expected = f"{METADATA_FEATURE}={LEVEL_OF_FEATURES} or higher beside it"
            raise ConfigError(FEATURE, f"{name}={level}", expected)
    return level_records(metadata_version, {})


def write_bootstrap(disk: Disk, path: str, records: Sequence[MetadataRecord]) -> None:
    """Write the file with the records for the first controller. Raises DiskError."""
    lines = [encode_record(record).hex() + "\n" for record in records]
    write_file_durably(disk, f"{path}/{BOOTSTRAP}", "".join(lines).encode())


def read_bootstrap(disk: Disk, path: str) -> list[MetadataRecord]:
    """Return the records of a directory; none if it has no such file.

    Raises:
        CorruptLogError: the file is damaged, or its records cannot be replayed.
    """
    where = f"{path}/{BOOTSTRAP}"
    try:
        lines = read_file(disk, where).decode().split()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise _damaged(where, error) from None
    try:
        records = [decode_record(bytes.fromhex(line)) for line in lines]
        _replay(records)
    except (ValueError, FatalError) as error:
        raise _damaged(where, error) from None
    return records


def _damaged(where: str, error: Exception) -> CorruptLogError:
    advice = "It is needed by a cluster without metadata alone: format the directory anew, or remove the file"
    return CorruptLogError(where, 0, None, str(error), advice)


def _replay(records: Sequence[MetadataRecord]) -> None:
    delta = MetadataDelta(MetadataImage(""))
    delta.apply_all([MetadataVersionRecord(NEWEST_LEVEL), *records])
    delta.check_whole()
