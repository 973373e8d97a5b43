"""Getting the clients: each into a folder of its own in the user's cache, once for each version of its recipe."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import fetched
from bench.clusters import KAFKA_VERSION
from bench.fetched import Unavailable, need

DRIVERS = Path(__file__).parent / "drivers"


def cache() -> Path:
    """Where clients are kept."""
    return fetched.cache("interop")


def folder(name: str, recipe: Sequence[str], sources: Sequence[Path] = (), *, make: bool = True) -> tuple[Path, bool]:
    """The folder of one client, and whether it stands whole already; sources are copied into a new one."""
    digest = hashlib.sha256("\n".join(recipe).encode())
    for source in sources:
        digest.update(source.read_bytes())
    place = cache() / f"{name}-{digest.hexdigest()[:12]}"
    whole = (place / "complete").exists()
    if not whole and make:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for source in sources:
            target = place / ("src" if source.suffix == ".rs" else "") / source.name
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
    return place, whole


def run(command: Sequence[str], where: Path, what: str, environment: Mapping[str, str] | None = None) -> None:
    """One step of an installation; its whole output stays in the client's folder where it fails. Raises Unavailable."""
    fetched.run(command, where, what, environment, log=where / "install.log")


def python(name: str, packages: Sequence[str]) -> list[str]:
    """A virtual environment with these packages; the command that runs the driver `name` in it."""
    place, whole = folder(name, packages)
    interpreter = place / "venv" / "bin" / "python"
    if not whole:
        run([sys.executable, "-m", "venv", "venv"], place, "python -m venv")
        pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, *packages], place, "pip install")
        (place / "complete").touch()
    return [str(interpreter), str(DRIVERS / f"{name}.py")]


def go(name: str) -> list[str]:
    """The Go driver `name`, built."""
    need("go", what_for=name)
    sources = [*sorted((DRIVERS / name).glob("*.go")), DRIVERS / name / "go.mod", *sorted(DRIVERS.glob("*.go"))]
    place, whole = folder(name, ["go"], sources)
    if not whole:
        run(["go", "mod", "tidy"], place, "go mod tidy")
        run(["go", "build", "-o", "driver", "."], place, "go build")
        (place / "complete").touch()
    return [str(place / "driver")]


def node(name: str) -> list[str]:
    """The JavaScript driver."""
    need("node", "npm", what_for=name)
    place, whole = folder(name, ["npm"], [DRIVERS / name / "driver.mjs", DRIVERS / name / "package.json"])
    if not whole:
        run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], place, "npm install")
        (place / "complete").touch()
    return ["node", str(place / "driver.mjs")]


def rust(name: str) -> list[str]:
    """The Rust driver, built; what was compiled is kept, should the build be cut short."""
    need("cargo", what_for=name)
    place, whole = folder(name, ["cargo"], [DRIVERS / name / "main.rs", DRIVERS / name / "Cargo.toml"])
    if not whole:
        kept = cache() / "cargo-target"
        run(["cargo", "build", "--quiet"], place, "cargo build", {"CARGO_TARGET_DIR": str(kept)})
        shutil.copy(kept / "debug" / "driver", place / "driver")
        (place / "complete").touch()
    return [str(place / "driver")]


TOOLS = ("kafka-tools", "kafka_2.13")
"""Where the command-line tools live: kafka-configs is still in the broker's own jar."""


def kafka_jars(*artifacts: str, fetch: bool = True, logger: str = "slf4j-nop:2.0.16") -> str:
    """The class path of these artifacts of Apache Kafka and all that they need, by Maven; or as it was fetched before.

    Args:
        logger: what takes their log: nothing does, or `CONSOLE`.

    Raises:
        Unavailable: no Java, no Maven, or Maven Central is not reached.
    """
    need("java", *(["mvn"] if fetch else []), what_for="Apache Kafka")
    version = f"<version>{KAFKA_VERSION}</version>"
    wanted = "".join(
        f"<dependency><groupId>org.apache.kafka</groupId><artifactId>{artifact}</artifactId>{version}</dependency>"
        for artifact in artifacts
    )
    takes_log, _, log_version = logger.partition(":")
    pom = (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>interop</groupId><artifactId>interop</artifactId><version>1</version><dependencies>{wanted}"
        f"<dependency><groupId>org.slf4j</groupId><artifactId>{takes_log}</artifactId><version>{log_version}</version>"
        "</dependency></dependencies></project>"
    )
    place, whole = folder(artifacts[0], [pom], make=fetch)
    if not whole and not fetch:
        raise Unavailable("Apache Kafka's jars are not here")
    if not whole:
        (place / "pom.xml").write_text(pom)
        copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={place}"]
        run(copy, place, "Maven")
        (place / "complete").touch()
    return f"{place}/*"


CONSOLE = "slf4j-simple:1.7.36"
"""Writes the log to the standard error, of the slf4j that Kafka 4.3 comes with; for `APPLICATION`."""

JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
"""A start as quick as Java's can be."""

APPLICATION = (*JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
"""The same for an application, which says why it ends."""


def java(*, fetch: bool = True) -> list[str]:
    """Java with both Java programs, `Driver` and `Tools`, compiled against Kafka's jars; its name is to follow.

    Raises Unavailable.
    """
    need("javac", what_for="Java's driver")
    jars = kafka_jars(*TOOLS, fetch=fetch)
    sources = sorted((DRIVERS / "java").glob("*.java"))
    place, whole = folder("java", [KAFKA_VERSION], sources)
    if not whole:
        run(["javac", "-cp", jars, "-d", str(place), *(each.name for each in sources)], place, "javac")
        (place / "complete").touch()
    return [*JAVA, "-cp", f"{place}:{jars}"]


def streams() -> list[str]:
    """Java with Kafka Streams and a word count, compiled; `WordCount` is to follow. Raises Unavailable."""
    need("javac", what_for="Kafka Streams")
    jars = kafka_jars("kafka-streams", logger=CONSOLE)
    sources = sorted((DRIVERS / "streams").glob("*.java"))
    place, whole = folder("streams", [KAFKA_VERSION], sources)
    if not whole:
        run(["javac", "-cp", jars, "-d", str(place), *(each.name for each in sources)], place, "javac")
        (place / "complete").touch()
    return [*APPLICATION, "-cp", f"{place}:{jars}"]
