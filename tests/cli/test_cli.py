"""The program's own commands: what they print, what they refuse, how they exit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from tests.ports import free_port

from strandline.cli.lazy import LazyGroup
from strandline.cli.main import COMMANDS, main
from strandline.log.batch import Record, build_batch

VOTERS = "1@127.0.0.1:19092"


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), prog_name="strandline")


def test_the_program_teaches_its_first_five_minutes() -> None:
    """`--help` teaches: it has examples and says what comes next."""
    told = run("--help")
    assert told.exit_code == 0
    for word in ("strandline dev", "strandline produce", *COMMANDS, "topic", "consume", "sim", "demo"):
        assert word in told.output


def test_every_command_has_a_sentence_and_an_example() -> None:
    """Each command's help has examples; groups name what is inside."""

    def walk(command: click.Command, path: str) -> list[str]:
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=path)
            children = [command.get_command(context, name) for name in command.list_commands(context)]
            return [fault for child in children if child for fault in walk(child, f"{path} {child.name}")]
        text = command.help or ""
        return [] if "strandline " in text or path in ("strandline demo",) else [path]

    assert walk(main, "strandline") == []


def test_a_mistyped_command_is_guessed() -> None:
    """Errors say the next step."""
    told = run("docter")
    assert told.exit_code == 2
    assert "Did you mean 'doctor'?" in told.output


def test_a_light_command_does_not_import_the_heavy() -> None:
    """Commands are imported when used: asking for the version must not load gRPC, rich or Kafka's schemas."""
    code = (
        "import sys\n"
        "from strandline.cli.main import main\n"
        "main(['format', '--help'], standalone_mode=False)\n"
        "print(sorted({'grpc', 'rich', 'kio', 'pyspark', 'prometheus_client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed(shell: str) -> None:
    """Shell completion."""
    told = run("completion", shell)
    assert told.exit_code == 0
    assert "_STRANDLINE_COMPLETE" in told.output


def test_commands_of_other_packages_come_by_entry_point() -> None:
    """Layers: the cluster may not import the simulator, and still `strandline sim` is there."""
    assert isinstance(main, LazyGroup)
    context = click.Context(main)
    sim = main.get_command(context, "sim")
    assert sim is not None
    assert "simulated world" in (sim.help or "")
    assert main.get_command(context, "nothing-of-that-name") is None


def format_(path: Path, *more: str) -> Result:
    settings = ["-X", "node.id=1", "-X", f"log.dirs={path}"]
    return run("format", *settings, "--initial-controllers", VOTERS, *more)


def test_format_makes_a_cluster_id_and_refuses_a_second_time(tmp_path: Path) -> None:
    """It refuses formatted directories unless told to ignore them."""
    path = tmp_path / "data"
    told = format_(path, "--output", "json")
    assert told.exit_code == 0, told.output
    made = json.loads(told.output)
    assert (made["node_id"], made["formatted"]) == (1, True)
    again = format_(path, "--cluster-id", made["cluster_id"])
    assert again.exit_code == 2
    assert "formatted already; --ignore-formatted" in again.output
    assert format_(path, "--cluster-id", made["cluster_id"], "--ignore-formatted").exit_code == 0
    assert format_(path, "--cluster-id", "other", "--ignore-formatted").exit_code == 2


def test_format_again_formats_a_directory_that_was_added(tmp_path: Path) -> None:
    """It says which one is as it was, and takes the cluster's id from it."""
    first, second = tmp_path / "first", tmp_path / "second"
    made = json.loads(format_(first, "--output", "json").output)
    told = format_(Path(f"{first},{second}"))
    assert told.exit_code == 0, told.output
    assert told.output.splitlines() == [
        f"{first} is formatted already: node 1 of cluster {made['cluster_id']}.",
        f"{second} is formatted: node 1 of cluster {made['cluster_id']}.",
    ]


def test_format_tells_what_it_would_do(tmp_path: Path) -> None:
    """--dry-run on writes."""
    path = tmp_path / "data"
    told = format_(path, "--dry-run")
    assert "would be formatted: node 1 of cluster" in told.output
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-X", "node.idd=1"), "did you mean node.id?"),
        (("-X", "nonsense"), "key=value"),
        (("--config", "/nowhere.properties"), "a readable file"),
        ((), "node.id"),
    ],
)
def test_a_wrong_configuration_exits_2_with_a_sentence(words: tuple[str, ...], says: str) -> None:
    """Bad input: a wrong key, value, option or file."""
    for command in ("node", "format"):
        told = run(command, *words)
        assert told.exit_code == 2, told.output
        assert says in told.output


def start_node(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strandline.cli.main", "node", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_a_node_refuses_an_unformatted_directory_with_the_command(tmp_path: Path) -> None:
    """Schedule 26; the sentence can be pasted."""
    config = tmp_path / "node.properties"
    config.write_text(f"node.id=1\nlog.dirs={tmp_path}/data\ncontroller.quorum.voters={VOTERS}\n")
    told = start_node("--config", str(config))
    assert told.returncode == 1
    assert f"strandline format --cluster-id ID --config {config}" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("taken", ["INTERNAL", "HTTP", "PLAINTEXT"])
def test_a_node_names_who_holds_its_port(tmp_path: Path, taken: str) -> None:
    """Bad input, a taken port: every listener; the process that holds it and the setting that changes it."""
    path = tmp_path / "data"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen(1)
        ports = {"PLAINTEXT": 0, "INTERNAL": free_port(), "HTTP": 0, taken: held.getsockname()[1]}
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        voters = f"1@127.0.0.1:{ports['INTERNAL']}"
        settings = ("-X", "node.id=1", "-X", f"log.dirs={path}", "-X", f"listeners={listeners}")
        assert run("format", *settings, "--initial-controllers", voters).exit_code == 0
        told = start_node(*settings)
    assert told.returncode == 1
    assert f"{taken} cannot listen on 127.0.0.1:{ports[taken]}: process {os.getpid()} (" in told.stderr
    assert "`listeners` sets another port" in told.stderr
    assert "Traceback" not in told.stderr


def test_log_dump_shows_batches_and_finds_damage(tmp_path: Path) -> None:
    """`strandline log dump`: a segment as it is, JSON for programs, exit 1 where something does not make sense."""
    directory = tmp_path / "orders-0"
    directory.mkdir()
    segment = directory / ("0" * 20 + ".log")
    record = Record(0, 1000, b"key", b"value", (("h", b"1"),))
    segment.write_bytes(bytes(build_batch([record], leader_epoch=3)))
    told = run("log", "dump", str(segment), "--records")
    assert told.exit_code == 0, told.output
    assert "offsets 0..0 count 1 epoch 3" in told.output
    assert "key 'key' value 'value' h='1'" in told.output
    lines = run("log", "dump", str(directory), "--records", "--output", "json").output.splitlines()
    [batch] = [json.loads(line) for line in lines]
    assert (batch["kind"], batch["crc_holds"], batch["records"][0]["value"]) == ("DumpedBatch", True, "value")
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    told = run("log", "dump", str(segment))
    assert told.exit_code == 1
    assert "the CRC does not hold" in told.output
    assert "1 place where the bytes make no sense" in told.output
    assert run("log", "dump", __file__).exit_code == 2
    (tmp_path / "orders-1").mkdir()  # a partition that never had a record
    told = run("log", "dump", str(tmp_path / "orders-1"))
    assert (told.exit_code, told.stdout) == (0, "")
    assert "orders-1: no segments" in told.stderr


def test_doctor_judges_files_and_exits_1_when_it_finds(tmp_path: Path) -> None:
    """Row S97: exits non-zero when something is found; on files without any cluster."""
    safe = "node.id=1\nlog.dirs=/var/lib/strandline\ncontroller.quorum.voters=1@a:1,2@b:1,3@c:1\n"
    good, bad = tmp_path / "good.properties", tmp_path / "bad.properties"
    good.write_text(safe)
    bad.write_text(safe + "default.replication.factor=1\nmin.insync.replicas=1\nunclean.leader.election.enable=true\n")
    told = run("doctor", str(good))
    assert told.exit_code == 0
    assert told.output.splitlines()[-1] == "Nothing found that could lose data."
    told = run("doctor", str(good), str(bad))
    assert told.exit_code == 1
    assert "3 found." in told.output
    found = json.loads(run("doctor", str(bad), "--output", "json").output)
    assert {(finding["kind"], finding["where"]) for finding in found} == {("risk", str(bad))}


def test_doctor_judges_a_producer_and_config_shows_its_settings() -> None:
    """Row S30: what can reorder is named, with exit code 1; row S26: the settings of a client can be read, 16384 among
    them."""
    told = run("doctor", "--producer", "-X", "enable.idempotence=false")
    assert told.exit_code == 1
    assert "max.in.flight.requests.per.connection = 5" in told.output
    assert run("doctor", "--producer").exit_code == 0
    settings = {item["name"]: item for item in json.loads(run("config", "client", "producer", "-o", "json").output)}
    assert settings["batch.size"]["value"] == "16384"
    assert settings["batch.size"]["is_default"]
    wrong = run("config", "client", "producer", "-X", "batch.sise=1")
    assert wrong.exit_code != 0
    assert "batch.size" in wrong.output


def test_doctor_names_the_default_of_auto_commit() -> None:
    """Row S64: a consumer's default is named, with what it may lose; a consumer that commits by hand is left alone."""
    told = run("doctor", "--consumer")
    assert told.exit_code == 1
    assert "enable.auto.commit = true (the default)" in told.output
    safe = run("doctor", "--consumer", "-X", "enable.auto.commit=false", "-X", "auto.offset.reset=earliest")
    assert (safe.exit_code, safe.output) == (0, "Nothing found that could lose data.\n")


def test_doctor_says_where_to_go_when_no_broker_answers() -> None:
    """Errors say the next step; exit code 3: no broker answers."""
    told = run("doctor", "--bootstrap", "127.0.0.1:1")
    assert told.exit_code == 3
    assert "strandline dev" in told.output


def test_dev_deletes_only_what_it_made(tmp_path: Path) -> None:
    """--fresh is for clusters of `strandline dev`; another directory stays."""
    (tmp_path / "thesis.tex").write_text("years of work")
    told = run("dev", "--fresh", "--data-dir", str(tmp_path), "--nodes", "1", "--port-base", "0")
    assert told.exit_code == 2
    assert (tmp_path / "thesis.tex").exists()
    assert run("dev", "--fresh").exit_code == 2
