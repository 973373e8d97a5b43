"""What deploy/ says, held against the product without an engine: every setting known, every address of one piece."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.container.settings import BOOTSTRAP, CLUSTER_ID, FORMAT, load
from strandline.cluster.node.format import format_directory
from strandline.cluster.node.settings import HTTP, INTERNAL
from strandline.log.real_disk import RealDisk
from strandline.proto.ids import Endpoint
from strandline.proto.system import system_rng

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
FILES = {"compose.yaml": "prometheus.yml", "compose-small.yaml": "prometheus-small.yml"}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def filled_in(text: str, given: dict[str, str]) -> str:
    """`${NAME:-default}` as compose fills it in."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: given.get(match.group(1), match.group(2)), text)


def compose(name: str, given: dict[str, str] | None = None) -> dict[str, Any]:
    tree = yaml.safe_load(filled_in((DEPLOY / name).read_text(), given or {}))
    assert isinstance(tree, dict)
    return tree


def image_environment() -> dict[str, str]:
    """The STRANDLINE_ variables that the image sets itself."""
    return dict(re.findall(r"(STRANDLINE_\w+)=(\S+)", DOCKERFILE.partition("\nENV ")[2].partition("\nUSER")[0]))


def nodes(tree: dict[str, Any]) -> dict[str, tuple[dict[str, Any], NodeConfig]]:
    """Service -> (its definition, the settings its node would start with)."""
    found = {}
    for name, service in tree["services"].items():
        if "profiles" not in service:
            found[name] = (service, load([], {**image_environment(), **service["environment"]}))
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_variable_is_a_setting_and_every_value_is_allowed(name: str) -> None:
    """`load` refuses a variable that names no setting, so a renamed setting cannot stay behind in a file."""
    found = nodes(compose(name))
    brokers = [config for _, config in found.values() if config.is_broker]
    controllers = [config for _, config in found.values() if config.is_controller]
    assert len(brokers) == len(controllers) == 3
    assert len({config.node_id for _, config in found.values()}) == len(found)


@pytest.mark.parametrize("name", FILES)
def test_the_voters_are_the_controllers(name: str) -> None:
    found = nodes(compose(name))
    told = {
        config.node: config.advertised(INTERNAL, config.internal)
        for _, config in found.values()
        if config.is_controller
    }
    for service, config in found.values():
        assert {voter.node_id: voter.endpoint for voter in config.quorum_voters} == told
        assert service["environment"][FORMAT] == "missing"
        assert service["environment"][CLUSTER_ID]


@pytest.mark.parametrize("name", FILES)
def test_every_node_can_be_formatted(name: str, tmp_path: Path) -> None:
    for service, (definition, config) in nodes(compose(name)).items():
        own = NodeConfig({**config.given, "log.dirs": str(tmp_path / service)})
        made = format_directory(
            RealDisk(), own, cluster_id=definition["environment"][CLUSTER_ID], rng=system_rng(), dry_run=True
        )
        assert made.meta.node_id == config.node


@pytest.mark.parametrize("name", FILES)
def test_names_lead_to_the_nodes_they_name(name: str) -> None:
    """INTERNAL names are aliases on the nodes' network alone: who is cut off from it is cut off from the nodes."""
    tree = compose(name)
    found = nodes(tree)
    for service, (definition, config) in found.items():
        internal = config.advertised(INTERNAL, config.internal)
        assert internal.host in definition["networks"]["nodes"]["aliases"]
        assert internal.host == f"{service}.nodes"
        for listener in config.listeners:
            assert listener.endpoint.host == "0.0.0.0", "a container's loopback is reached by nobody"
        if config.is_broker:
            assert "clients" in definition["networks"]
            [inside] = [each.endpoint for each in config.advertised_listeners if each.name == "PLAINTEXT"]
            assert inside.host == service
            bound = next(each.endpoint.port for each in config.listeners if each.name == "PLAINTEXT")
            assert inside.port == bound
        else:
            assert list(definition["networks"]) == ["nodes"]
            assert "ports" not in definition
    inside = [f"{service}:9092" for service, (_, config) in found.items() if config.is_broker]
    for definition, _ in found.values():
        assert definition["environment"][BOOTSTRAP].split(",") == inside


@pytest.mark.parametrize("given", [{}, {"STRANDLINE_HOST": "kafka.example", "STRANDLINE_PORT_2": "31000"}])
@pytest.mark.parametrize("name", FILES)
def test_outside_clients_are_told_the_published_ports(name: str, given: dict[str, str]) -> None:
    ports = []
    for definition, config in nodes(compose(name, given)).values():
        if config.is_broker:
            [published] = definition["ports"]
            address, host_port, container_port = published.split(":")
            assert address == "127.0.0.1", "nothing is open to the network unless STRANDLINE_BIND says so"
            bound = {each.name: each.endpoint for each in config.listeners}["OUTSIDE"]
            told = {each.name: each.endpoint for each in config.advertised_listeners}["OUTSIDE"]
            assert bound.port == int(container_port)
            assert told == Endpoint(given.get("STRANDLINE_HOST", "127.0.0.1"), int(host_port))
            ports.append(told.port)
    assert len(set(ports)) == 3
    assert given or ports == [9092, 9093, 9094]


@pytest.mark.parametrize("name", FILES)
def test_every_node_keeps_its_data_in_a_volume_of_its_own(name: str) -> None:
    tree = compose(name)
    used = []
    for definition, config in nodes(tree).values():
        [volume] = definition["volumes"]
        source, target = volume.split(":")
        assert source in tree["volumes"]
        assert Path(config.data_dir).parent == Path(target), "a directory below the mount: a new disk has lost+found"
        used.append(source)
    assert len(set(used)) == len(used)


@pytest.mark.parametrize(("name", "prometheus"), FILES.items())
def test_prometheus_scrapes_every_node(name: str, prometheus: str) -> None:
    tree = compose(name)
    service = tree["services"]["prometheus"]
    assert service["profiles"] == ["metrics"]
    assert any(volume.startswith(f"./{prometheus}:") for volume in service["volumes"])
    jobs = yaml.safe_load((DEPLOY / prometheus).read_text())["scrape_configs"]
    targets = [target for job in jobs for config in job["static_configs"] for target in config["targets"]]
    http = {}
    for service_name, (_, config) in nodes(tree).items():
        assert config.http is not None
        http[f"{service_name}.nodes:{config.http.port}"] = service_name
    assert sorted(targets) == sorted(http)
    relabel = jobs[0]["relabel_configs"][0]
    for target, instance in http.items():
        match = re.fullmatch(relabel["regex"], target)
        assert match is not None
        assert match.group(1) == instance


@pytest.mark.parametrize("name", FILES)
def test_the_build_names_what_is_there(name: str) -> None:
    for definition, _ in nodes(compose(name)).values():
        build = definition["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
        assert all(re.search(rf"^ARG {argument}=", DOCKERFILE, re.MULTILINE) for argument in build["args"])
        assert not re.search(r"^ARG BASE=(?!python:)", DOCKERFILE, re.MULTILINE)
        assert definition["read_only"]
        assert definition["cap_drop"] == ["ALL"]
        assert definition["stop_grace_period"] == "30s"


OPTIONAL = {"deploy/pip.conf", "deploy/ca-certificates.pem"}
"""What somebody behind a mirror puts there for a build."""


def test_the_image_is_what_the_compose_files_expect() -> None:
    exposed = re.search(r"^EXPOSE (.+)$", DOCKERFILE, re.MULTILINE)
    assert exposed is not None
    _, config = nodes(compose("compose-small.yaml"))["node-1"]
    assert {int(port) for port in exposed.group(1).split()} == {each.endpoint.port for each in config.listeners}
    assert HTTP in {each.name for each in config.listeners}
    user = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert user == ["10001:10001"], "a number: Kubernetes' runAsNonRoot cannot judge a name"
    assert DOCKERFILE.count("strandline.cluster.node.container") == 2, "entry point and health check"
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        word for words in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for word in words.split()
    ]
    assert sorted(let_in) == sorted(re.sub(r"\[(.)\]$", r"\1", word) for word in copied)
    assert all((ROOT / name).exists() for name in let_in if name not in OPTIONAL)


def test_the_image_needs_no_buildkit() -> None:
    """The page names Docker Engine 20.10, whose builder, and Debian's docker.io without a plugin, know none of these.
    `make compose-test` builds with that builder."""
    instructions = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)
    for word in ("--mount", "--link", "--chmod", "--parents", "<<"):
        assert word not in instructions, word
    ignored = (ROOT / ".gitignore").read_text().split()
    assert {f"/{name}" for name in OPTIONAL} <= set(ignored)
    final = instructions.rpartition("FROM")[2]
    assert not any(Path(name).name in final for name in OPTIONAL)


def test_the_image_takes_nothing_that_is_not_pinned() -> None:
    """deploy/requirements.txt is newer than pyproject.toml: what that names is there, in a version that it allows, and
    each line has the hashes of its files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (DEPLOY / "requirements.txt").read_text().replace("\\\n", " ").splitlines()
    pinned = {}
    for line in lines:
        name, version = line.split()[0].split("==")
        pinned[name] = version
        assert "--hash=sha256:" in line, name
    wanted = [*project["dependencies"], *project["optional-dependencies"]["oauth"], "setuptools>=77"]
    for text in wanted:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[requirement.name]), f"{text}: make pins"
