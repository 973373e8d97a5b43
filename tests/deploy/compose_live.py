"""The image and the compose files for real: `make compose-test`.

Not collected by `make test`: an image is built, and a base for it where no registry is at hand; some minutes. It skips,
with the reason, where no container engine runs and none can be started. Everything it starts it takes away again.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer

from lab.compose import image as compose_image
from lab.compose.cluster import READY_S, ComposeCluster, free_ports
from lab.compose.engine import Engine, EngineError, NoEngine
from strandline.chaos.live.runner import LiveRun, RunOptions
from tests.acceptance.rolling import sources_of

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
IMAGE = "strandline:compose-test"
BASE = "strandline-base:compose-test"
PROMETHEUS = "prom/prometheus:v3.5.0"
RECORDS = 500

CLIENTS = ["own", "confluent"]
CHAOS = [
    "kill-leader", "kill-controller", "pause", "kill-all", "slow-disk", "rolling-restart", "wiped-dir",
    "crash-all-one-rots", "one-stays-dead", "directory-lost",
]  # fmt: skip

Say = Callable[[str], None]


@pytest.fixture(scope="session")
def say() -> Say:
    began = time.monotonic()
    return lambda what: print(f"{time.monotonic() - began:7.1f} s  {what}", flush=True)


@pytest.fixture(scope="session")
def bare(say: Say) -> Iterator[Engine]:
    """An engine."""
    try:
        with Engine() as running:
            say(f"engine {running.version()}")
            yield running
        say("the engine is gone" if running.own else "the engine is as it was")
    except NoEngine as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def base(bare: Engine, say: Say) -> str:
    """The name of a base image that the engine has, or can pull."""
    try:
        name = compose_image.base_image(bare, BASE)
    except NoEngine as reason:
        pytest.skip(str(reason))
    say(f"base {name}")
    return name


@pytest.fixture(scope="session")
def engine(bare: Engine, base: str, say: Say) -> Iterator[Engine]:
    """An engine with the image on it."""
    with built(bare, ROOT, base, IMAGE, say):
        yield bare


@contextmanager
def built(engine: Engine, repository: Path, base: str, tag: str, say: Say) -> Iterator[None]:
    """The image of a source tree, for as long as the block lasts."""
    compose_image.build(engine, repository, base=base, tag=tag)
    say("built " + engine.docker("images", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}", tag).strip())
    try:
        yield
    finally:
        if not engine.own:
            engine.docker("image", "rm", tag)


@pytest.fixture(scope="class")
def split(engine: Engine, say: Say) -> Iterator[ComposeCluster]:
    """Three controllers and three brokers."""
    [port] = free_ports(1)
    variables = {"PROMETHEUS_IMAGE": PROMETHEUS, "PROMETHEUS_PORT": str(port)}
    with ComposeCluster(engine, DEPLOY / "compose.yaml", image=IMAGE, variables=variables) as cluster:
        say(f"up: brokers {cluster.broker_ids}, controllers {cluster.controller_ids}, outside {cluster.bootstrap}")
        yield cluster
    say("down")


@pytest.fixture(scope="class")
def small(engine: Engine, say: Say) -> Iterator[ComposeCluster]:
    """Three combined nodes."""
    with ComposeCluster(engine, DEPLOY / "compose-small.yaml", image=IMAGE) as cluster:
        say(f"up: nodes {cluster.node_ids}, outside {cluster.bootstrap}")
        yield cluster
    say("down")


def run_inside(cluster: ComposeCluster, *words: str) -> str:
    """The `strandline` program in a container of its own, on the network for clients."""
    network = ("--network", cluster.clients_network, "--env", f"STRANDLINE_BOOTSTRAP={cluster.inside}")
    return cluster.engine.docker("run", "--rm", *network, IMAGE, *words)


def produce_outside(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Records that confluent-kafka got acknowledged under acks=all."""
    acked: list[bytes] = []
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for number in range(count):
        producer.produce(
            topic,
            b"outside %d" % number,
            on_delivery=lambda error, message: failed.append(error) if error else acked.append(message.value()),
        )
    assert producer.flush(60) == 0
    assert not failed
    return acked


@contextmanager
def sending(bootstrap: str, topic: str) -> Iterator[list[bytes]]:
    """A producer that sends all the time; at the end its values in their order, each of which was acknowledged."""
    acked: list[bytes] = []
    failed: list[object] = []
    ended = threading.Event()
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})

    def send() -> None:
        number = 0
        while not ended.wait(0.02):
            producer.produce(
                topic,
                b"value %d" % number,
                on_delivery=lambda error, message: failed.append(error) if error else acked.append(message.value()),
            )
            producer.poll(0)
            number += 1

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield acked
    finally:
        ended.set()
        sender.join()
        assert producer.flush(60) == 0
    assert not failed
    assert acked


def wait_until_in_sync(cluster: ComposeCluster) -> None:
    """Until `strandline cluster describe` says so."""
    name = cluster.container(cluster.broker_ids[0])
    deadline = time.monotonic() + READY_S
    while True:
        told = ""
        with contextlib.suppress(EngineError):
            told = cluster.engine.docker("exec", name, "strandline", "cluster", "describe")
        if "all in sync" in told:
            return
        assert time.monotonic() < deadline, told


def consume_outside(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """The first `count` values of a topic with one partition, as confluent-kafka reads them."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "outside", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(count, 1.0):
            assert message.error() is None
            values.append(message.value())
    consumer.close()
    return values


def provide_prometheus(engine: Engine) -> None:
    """See that the engine has the image of deploy/'s Prometheus; without a registry, one made of Debian's program."""
    with contextlib.suppress(EngineError):
        engine.docker("image", "inspect", PROMETHEUS)
        return
    program = shutil.which("prometheus")
    if not engine.own or program is None:
        pytest.skip(f"no Prometheus: neither an image {PROMETHEUS} nor a program (Debian's package prometheus)")
    context = engine.directory / "prometheus"
    context.mkdir()
    shutil.copy(program, context / "prometheus")
    (context / "Dockerfile").write_text(
        f'FROM {IMAGE}\nUSER 0\nHEALTHCHECK NONE\nCOPY prometheus /bin/prometheus\nENTRYPOINT ["/bin/prometheus"]\n'
    )
    engine.docker("build", "--tag", PROMETHEUS, str(context))


def wait_for_health(cluster: ComposeCluster, status: str) -> None:
    """The engine's own view: what `docker ps` shows."""
    names = [cluster.container(node_id) for node_id in cluster.node_ids]
    deadline = time.monotonic() + READY_S
    while True:
        told = cluster.engine.docker("inspect", "--format", "{{.State.Health.Status}}", *names).split()
        if told == [status] * len(names):
            return
        assert time.monotonic() < deadline, dict(zip(names, told, strict=True))


def check_inside_and_outside(cluster: ComposeCluster, say: Say) -> None:
    """One topic, written and read from both sides; each side is told addresses that it can reach."""
    run_inside(cluster, "topic", "create", "meals", "--partitions", "1")
    sent = produce_outside(cluster.bootstrap, "meals", RECORDS)
    assert len(sent) == RECORDS
    node = cluster.container(cluster.broker_ids[0])
    cluster.engine.docker("exec", node, "sh", "-c", "echo from-inside | strandline produce meals")
    read = run_inside(cluster, "consume", "meals", "--from-beginning", "-n", str(RECORDS + 1)).splitlines()
    assert read == [value.decode() for value in sent] + ["from-inside"]
    assert consume_outside(cluster.bootstrap, "meals", RECORDS + 1) == [line.encode() for line in read]
    inside = run_inside(cluster, "cluster", "describe")
    for address in cluster.inside.split(","):
        assert address in inside
    say(f"{RECORDS + 1} records written and read from outside (confluent-kafka) and inside (strandline)")
    if shutil.which("kcat"):
        told = subprocess.run(
            ["kcat", "-b", cluster.bootstrap, "-L"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
        assert sorted(re.findall(r"broker \d+ at (\S+)", told)) == sorted(cluster.bootstrap.split(","))
        say("kcat -L names the addresses outside")


def storm(cluster: ComposeCluster, say: Say, tmp_path: Path, options: RunOptions) -> None:
    """Faults under load, each kind once at least, judged as every live run is."""
    outcome = LiveRun(cluster, options, tmp_path, say).execute()
    for row in outcome.faults:
        say("  " + "  ".join(f"{key} {value}" for key, value in row.items()))
    say(f"  {outcome.figures}")
    if not outcome.held:
        cluster.save_logs(tmp_path)
    assert outcome.violations == [], tmp_path
    assert not outcome.never_struck(options)


class TestSplit:
    """Three controllers and three brokers."""

    @pytest.mark.timeout(1500)  # the engine, its base and the image are made here
    def test_it_serves_both_sides(self, split: ComposeCluster, say: Say) -> None:
        wait_for_health(split, "healthy")
        print(split.compose("ps"))
        check_inside_and_outside(split, say)

    def test_every_target_of_prometheus_answers(self, split: ComposeCluster, say: Say) -> None:
        """Those of deploy/prometheus.yml, asked on the network on which it would ask."""
        jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
        targets = [target for job in jobs for config in job["static_configs"] for target in config["targets"]]
        code = (
            "import sys, urllib.request\n"
            "for target in sys.argv[1:]:\n"
            "    text = urllib.request.urlopen(f'http://{target}/metrics', timeout=5).read().decode()\n"
            "    assert 'strandline_ready 1' in text, (target, text)\n"
            "    print(target, len(text))\n"
        )
        words = ("run", "--rm", "--network", f"{split.project}_nodes", "--entrypoint", "python3", IMAGE, "-c", code)
        assert len(split.engine.docker(*words, *targets).splitlines()) == len(targets) == len(split.node_ids)
        say(f"{len(targets)} targets of prometheus.yml answer, all ready")

    def test_prometheus_scrapes_every_node(self, split: ComposeCluster, say: Say) -> None:
        """The service of the profile, where its image is, or this machine's own program put into one."""
        provide_prometheus(split.engine)
        split.compose("--profile", "metrics", "up", "--detach", "--no-build", "--no-recreate", "prometheus")
        address = split.compose("--profile", "metrics", "port", "prometheus", "9090").strip()
        deadline = time.monotonic() + 60
        while True:
            health: dict[str, str] = {}
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/api/v1/targets") as answer:
                found = json.load(answer)["data"]["activeTargets"]
                health = {target["labels"]["instance"]: target["health"] for target in found}
            if len(health) == len(split.node_ids) and set(health.values()) == {"up"}:
                break
            assert time.monotonic() < deadline, health
        say(f"Prometheus at {address} has scraped {', '.join(sorted(health))}")

    def test_stopping_is_a_controlled_shutdown(self, split: ComposeCluster, say: Say) -> None:
        """SIGTERM reaches the node itself, which is process 1: exit code 0, the clean marker, no waiting."""
        node_id = split.broker_ids[0]
        name = split.container(node_id)
        began = time.monotonic()
        split.stop_node(node_id)
        took = time.monotonic() - began
        assert split.engine.docker("inspect", "--format", "{{.State.ExitCode}}", name).strip() == "0"
        assert "clean=True" in split.engine.docker("logs", "--tail", "3", name, merge=True)
        assert took < 15
        split.start_node(node_id)
        assert "formatted" not in split.engine.docker("logs", "--since", "10s", name, merge=True)
        say(f"a broker stopped in {took:.1f} s and came back on its volume")

    def test_a_rolling_upgrade_under_load(self, split: ComposeCluster, say: Say) -> None:
        """docs/deploy.md: each service made anew on its volume, one after the other; every send is acknowledged."""
        run_inside(split, "topic", "create", "upgrade", "--partitions", "1")
        began = time.monotonic()
        with sending(split.bootstrap, "upgrade") as acked:
            for node_id in [*split.controller_ids, *split.broker_ids]:
                split.renew(node_id)
                split.wait_ready([node_id])
                assert "formatted" not in split.engine.docker("logs", split.container(node_id), merge=True)
                wait_until_in_sync(split)
        assert consume_outside(split.bootstrap, "upgrade", len(acked)) == acked
        assert len(consume_outside(split.bootstrap, "meals", RECORDS + 1)) == RECORDS + 1
        say(f"all containers made anew in {time.monotonic() - began:.0f} s; {len(acked)} sends, all acknowledged")

    def test_an_empty_volume_can_be_refused(self, split: ComposeCluster) -> None:
        environment = ("--env", "STRANDLINE_NODE_ID=1", "--env", "STRANDLINE_CLUSTER_ID=other")
        with pytest.raises(EngineError, match="Is the right volume mounted there"):
            split.engine.docker("run", "--rm", *environment, "--env", "STRANDLINE_FORMAT=never", IMAGE)
        with pytest.raises(EngineError, match="did you mean STRANDLINE_BROKER_RACK"):
            split.engine.docker("run", "--rm", *environment, "--env", "STRANDLINE_BROKR_RACK=a", IMAGE)

    @pytest.mark.timeout(900)
    def test_chaos_on_the_split_cluster(self, split: ComposeCluster, say: Say, tmp_path: Path) -> None:
        storm(split, say, tmp_path, RunOptions(CHAOS, 1.5, 7, CLIENTS, every_fault=True))

    @pytest.mark.timeout(600)
    def test_nodes_cut_off_from_the_split_cluster(self, split: ComposeCluster, say: Say, tmp_path: Path) -> None:
        """`docker network disconnect`: a node loses its peers while its clients still reach it."""
        topics = {"cut-a": 3, "cut-b": 1}
        storm(split, say, tmp_path, RunOptions(["isolate"], 0.8, 5, CLIENTS, topics=topics, every_fault=True))


class TestSmall:
    """Three combined nodes."""

    @pytest.mark.timeout(600)
    def test_it_serves_both_sides_and_holds(self, small: ComposeCluster, say: Say, tmp_path: Path) -> None:
        wait_for_health(small, "healthy")
        print(small.compose("ps"))
        check_inside_and_outside(small, say)
        faults = ["isolate", "kill-leader", "kill-all", "pause"]
        storm(small, say, tmp_path, RunOptions(faults, 0.5, 11, CLIENTS, every_fault=True))


class Reader:
    """Somebody with a checkout, who types what the pages say: under names and on ports that nobody else uses."""

    def __init__(self, engine: Engine, base: str, image: str) -> None:
        self._engine = engine
        self._build = compose_image.build_options(engine, base)
        self._checkout = engine.directory / "checkout"
        self._checkout.mkdir()
        compose_image.copy_sources(ROOT, self._checkout)
        shutil.copy(DEPLOY / "compose.yaml", self._checkout / "deploy")
        ports = free_ports(3)
        self._environment = {f"STRANDLINE_PORT_{number}": str(port) for number, port in enumerate(ports, 1)}
        self._environment |= compose_image.WITHOUT_BUILDKIT
        self._environment |= {"COMPOSE_PROJECT_NAME": f"strandline-typed-{ports[0]}", "STRANDLINE_IMAGE": image}
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)

    def types(self, commands: str) -> str:
        return self._engine.type(commands, self._checkout, self._environment, self._build, 900)


COMPOSE = "docker compose -f deploy/compose.yaml"
BEFORE_LEVELS = "53dd7cb1"
"""The last build before there were levels: the one that tests/acceptance/test_rolling_upgrade.py rolls."""


def typed_with_compose() -> tuple[str, str]:
    """(the recipe of docs/upgrade.md, the loop in it that makes one service after the other anew)."""
    section = (ROOT / "docs" / "upgrade.md").read_text().partition("## Typed, with compose\n")[2]
    recipe = section.partition("```sh\n")[2].partition("```")[0]
    loop = re.search(r"^for .*?^done$", recipe, re.MULTILINE | re.DOTALL)
    assert loop is not None
    return recipe, loop[0]


@pytest.mark.timeout(3000)
def test_an_upgrade_and_the_way_back_as_typed(bare: Engine, base: str, say: Say, tmp_path: Path) -> None:
    """docs/upgrade.md, "Typed, with compose": up from an earlier build, back to it, up and finalized, under load."""
    recipe, loop = typed_with_compose()
    old, new = "strandline:old", "strandline:new"
    assert f"-t {new} ." in recipe
    earlier = sources_of(BEFORE_LEVELS, tmp_path / "earlier")
    with built(bare, earlier, base, old, say):
        reader = Reader(bare, base, old)
        try:
            reader.types(f"{COMPOSE} up -d\n{loop}")
            reader.types(f"{COMPOSE} exec broker-1 strandline topic create upgrade --partitions 1")
            say("up, with the earlier build")
            with sending(reader.bootstrap, "upgrade") as acked:
                reader.types(recipe.partition(loop)[0] + loop)
                say("rolled up")
                reader.types(f"export STRANDLINE_IMAGE={old}\n{loop}")
                say("rolled back")
                told = reader.types(recipe)
                say("rolled up, and finalized")
            assert "metadata.version went from 1 to" in told, told[-3000:]
            assert "nothing to finalize" in reader.types(f"{COMPOSE} exec broker-1 strandline upgrade check")
            assert consume_outside(reader.bootstrap, "upgrade", len(acked)) == acked
            say(f"{len(acked)} sends, all acknowledged, and read")
        finally:
            reader.types(f"{COMPOSE} down --volumes")
            with contextlib.suppress(EngineError):
                bare.docker("image", "rm", new)
