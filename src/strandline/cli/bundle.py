"""`strandline cluster bundle`: everything that a report of a fault wants, in one archive, and no secret in it."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from strandline.cli.common import (
    Target,
    admin_for,
    dry_run_option,
    load_config,
    output_option,
    plain_errors,
    plural,
    print_json,
    shown_time,
    target_options,
)
from strandline.cli.http_listener import ask, cacert_option, http_option
from strandline.cli.screen import echo
from strandline.proto.errors import ConfigError, StrandlineError
from strandline.proto.secrets import Scrubber, is_secret, resolved, shown
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.client.admin import Admin

LOG_BYTES = 5_000_000
HISTORY_RECORDS = 2_000
"""Records of the metadata log, the newest, of each directory."""

FILES_SHOWN = 20_000


class Part(NamedTuple):
    """A file of the archive, and what makes it."""

    name: str
    what: str
    make: Callable[[], str]


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, writable=True), help="The archive (.tar.gz); it must be new.")
@http_option
@cacert_option
@click.option(
    "--config",
    "configs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A node of this machine, by its settings: these, and its directories, are looked at here.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A node's log, as it was kept; of journald first: journalctl -u strandline > strandline.log",
)
@click.option("--log-bytes", type=click.IntRange(0), default=LOG_BYTES, show_default=True, help="Of each log, its end.")
@dry_run_option
@output_option
@target_options
def bundle(
    *,
    out: str | None,
    http: tuple[str, ...],
    cacert: str | None,
    configs: tuple[str, ...],
    logs: tuple[str, ...],
    log_bytes: int,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Put into one archive what a report of a fault wants: metadata, quorum, versions, disk usage, and of each node
    metrics and stacks (--http), settings and directories (--config), logs (--log).

    No secret is in it: passwords, keys and tokens are hidden in every file, and so is each value that the settings name
    as secret, wherever it stands. No record of a topic is in it. README.md in the archive tells what is there, and what
    could not be got; a part that fails keeps no other from being made. Look through it before you send it: names of
    topics, users and machines are in it.

    \b
    strandline cluster bundle --dry-run
    strandline cluster bundle --http 10.0.0.1:8092 --http 10.0.0.2:8092 --config node.properties --log node.log
    """  # fmt: skip
    target = Target(**where)
    with plain_errors(target):
        nodes = [_local(path) for path in configs]
        scrubber = Scrubber(_secrets(nodes, target.settings))
        parts = [
            *_of_cluster(target),
            *(part for node in http for part in _of_listener(node, cacert)),
            *(part for node in nodes for part in _of_directory(node)),
            *(Part(f"logs/{number}-{Path(path).name}", f"the end of {path}", partial(_tail, path, log_bytes))
              for number, path in enumerate(logs, 1)),
            Part("versions.json", "versions of the program, of Python and of libraries, on this machine", _versions),
        ]  # fmt: skip
        if dry_run:
            _list(output, parts)
            return
        now_ms = SystemClock().wall_ms()
        path = Path(out or f"strandline-bundle-{now_ms // 1000}.tar.gz")
        missing = _write(path, parts, scrubber, now_ms)
    if output == "json":
        found = {"archive": str(path), "bytes": path.stat().st_size, "missing": missing}
        print_json(found | {"parts": [part.name for part in parts if part.name not in missing]})
        return
    echo(f"{path}: {plural(len(parts) - len(missing), 'part')}, {path.stat().st_size:,} bytes")
    for name, why in missing.items():
        echo(f"! without {name}: {why}")
    echo("Names of topics, users and machines are in it, secrets are not. Look through it before you send it.")


def _list(output: str, parts: Sequence[Part]) -> None:
    if output == "json":
        print_json({"parts": [{"name": part.name, "what": part.what} for part in parts]})
        return
    for part in parts:
        echo(f"{part.name}  {part.what}")


# ------------------------------------------------------------------ the archive


def _write(path: Path, parts: Sequence[Part], scrubber: Scrubber, now_ms: int) -> dict[str, str]:
    """Make every part, and write the archive; what could not be made, and why. Raises OSError."""
    missing: dict[str, str] = {}
    with path.open("xb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        os.chmod(path, 0o600)

        def add(name: str, text: str) -> None:
            data = scrubber.scrubbed(text).encode("utf-8", "backslashreplace")
            entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), now_ms // 1000, 0o600
            archive.addfile(entry, io.BytesIO(data))

        for part in parts:
            try:
                text = part.make()
            except (click.ClickException, StrandlineError, OSError, ValueError) as error:
                message = error.message if isinstance(error, click.ClickException) else error
                missing[part.name] = scrubber.scrubbed(str(message))
            else:
                add(part.name, text)
        add("README.md", _index(parts, missing, now_ms))
    return missing


def _index(parts: Sequence[Part], missing: Mapping[str, str], now_ms: int) -> str:
    lines = [
        "# A Strandline cluster, for a report",
        "",
        f"Made {shown_time(now_ms)} by `strandline cluster bundle`. Passwords, keys and tokens are hidden.",
        "No record of a topic is in it. Names of topics, users and machines are.",
        "",
        "| file | what it is |",
        "|---|---|",
        *(f"| {part.name} | {part.what} |" for part in parts if part.name not in missing),
        "",
        "## Could not be got",
        "",
        *(f"- {name}: {' '.join(why.split())}" for name, why in missing.items()),
    ]
    return "\n".join(lines if missing else [*lines, "Nothing: all of it is there."]) + "\n"


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, default=str) + "\n"


# ------------------------------------------------------------------ the parts


def _of_cluster(target: Target) -> Iterator[Part]:
    """Answers of the brokers."""

    def asked(question: Callable[[Admin], Any]) -> str:
        with admin_for(target) as admin:
            return _json(question(admin))

    def metadata(admin: Admin) -> Any:
        from strandline.tools.described import Described

        return Described(admin).document()

    def directories(admin: Admin) -> Any:
        told = admin.describe_log_dirs()
        return {
            node: [
                {
                    "path": one.path,
                    "total_bytes": one.total_bytes,
                    "usable_bytes": one.usable_bytes,
                    "error": one.error and str(one.error),
                    "replicas": {str(tp): asdict_of(replica) for tp, replica in one.replicas.items()},
                }
                for one in several
            ]
            for node, several in told.items()
        }

    yield Part("cluster/metadata.json", "brokers, topics, configs, access, users, quorum", partial(asked, metadata))
    yield Part("cluster/disks.json", "disk usage, by broker, directory and replica", partial(asked, directories))
    groups = partial(asked, lambda admin: [asdict_of(one) for one in admin.list_groups()])
    yield Part("cluster/groups.json", "consumer groups and their states", groups)
    transactions = partial(asked, lambda admin: [asdict_of(one) for one in admin.list_transactions()])
    yield Part("cluster/transactions.json", "transactions and their states", transactions)


def asdict_of(value: Any) -> dict[str, Any]:
    """A tuple with names, or a dataclass, as a mapping."""
    return dict(value._asdict()) if hasattr(value, "_asdict") else asdict(value)


def _of_listener(node: str, cacert: str | None) -> Iterator[Part]:
    """Pages of a node's HTTP listener."""
    name = node.removeprefix("https://").removeprefix("http://").replace(":", "-").strip("/[]")
    for page, what in (
        ("/healthz", "which node it is, and whether the process is in order"),
        ("/readyz", "whether it does its work, or why not"),
        ("/metrics", "what it counts"),
        ("/stacks", "what its threads and tasks do"),
    ):

        def make(page: str = page) -> str:
            try:
                return ask(node, page, cacert).decode("utf-8", "backslashreplace")
            except click.ClickException as error:
                if "answers 503" in error.message:
                    return error.message + "\n"  # it says why
                raise

        yield Part(f"nodes/{name}{page}.txt", f"{node}: {what}", make)


class LocalNode(NamedTuple):
    """A node of this machine, as its file says: it need not be one that starts.

    Attributes:
        refused: why it would not start.
    """

    path: str
    node_id: str
    given: Mapping[str, str]
    log_dirs: tuple[str, ...]
    refused: str


def _local(path: str) -> LocalNode:
    refused = ""
    given: Mapping[str, str] = _lines(path)
    directories: Sequence[str] = [one.strip() for one in given.get("log.dirs", given.get("log.dir", "")).split(",")]
    try:
        config = load_config(path, {})
        given, directories = config.given, config.log_dirs
    except ConfigError as error:
        refused = str(error)
    return LocalNode(path, given.get("node.id", "unknown"), given, tuple(directories), refused)


def _lines(path: str) -> dict[str, str]:
    """Settings in a file, as name -> value; lines that are not settings are skipped. Raises OSError."""
    text = Path(path).read_text(encoding="utf-8", errors="backslashreplace")
    found = (re.match(r"\s*([\w.\-]+)\s*[=:]\s*(.*)", line) for line in text.splitlines())
    return {one[1]: one[2].strip().strip('"') for one in found if one is not None}


def _of_directory(config: LocalNode) -> Iterator[Part]:
    """A node of this machine: its settings, and what is in its directories."""
    room = f"local/node-{config.node_id}"
    settings = {name: shown(name, value) for name, value in sorted(config.given.items())}
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    if config.refused:
        text = f"# The node does not start: {config.refused}\n{text}"
    yield Part(f"{room}/settings.properties", f"settings of {config.path}, secrets hidden", lambda: text)
    yield Part(f"{room}/files.txt", "directories: room, and files with their sizes", partial(_files, config.log_dirs))

    def metadata(look: Callable[[Any], Any]) -> str:
        from strandline.cli.metadata import opened

        main = next((path for path in config.log_dirs if (Path(path) / "__cluster_metadata-0").exists()), "")
        with opened(main or config.log_dirs[0]) as reader:
            return _json(look(reader))

    def dumped(reader: Any) -> Any:
        from strandline.cli.metadata import directory_document

        return directory_document(reader, None)

    def history(reader: Any) -> Any:
        from strandline.cli.metadata import newest_changes

        return newest_changes(reader, HISTORY_RECORDS)

    def check(reader: Any) -> Any:
        from strandline.cli.metadata import found_in

        return found_in(reader)

    yield Part(f"{room}/metadata.json", "the metadata on its disk", partial(metadata, dumped))
    yield Part(f"{room}/metadata-history.json", "the newest records of its metadata log", partial(metadata, history))
    yield Part(f"{room}/metadata-check.json", "what cannot be in its metadata", partial(metadata, check))


def _files(directories: Sequence[str]) -> str:
    lines = []
    for directory in directories:
        usage = shutil.disk_usage(directory)
        lines.append(f"{directory}: {usage.total:,} bytes, {usage.free:,} free")
        for number, (root, _, names) in enumerate(os.walk(directory)):
            sizes = [(name, size) for name in sorted(names) if (size := _size(f"{root}/{name}")) >= 0]
            lines.append(f"{root.removeprefix(directory) or '/'}  {sum(size for _, size in sizes):,} bytes")
            lines += [f"    {size:>14,}  {name}" for name, size in sizes]
            if len(lines) > FILES_SHOWN:
                return "\n".join([*lines, f"and more: {number} directories are shown"]) + "\n"
    return "\n".join(lines) + "\n"


def _size(path: str) -> int:
    """-1: it is gone meanwhile."""
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return -1


def _tail(path: str, size: int) -> str:
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - size))
        text = file.read(size).decode("utf-8", "backslashreplace")
    return text if end <= size else text.partition("\n")[2]


def _versions() -> str:
    from importlib.metadata import distributions

    import strandline

    return _json(
        {
            "strandline": strandline.__version__,
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "system": platform.platform(),
            "machine": platform.machine(),
            "processors": os.cpu_count(),
            "libraries": dict(sorted((one.metadata["Name"], one.version) for one in distributions())),
        }
    )


# ------------------------------------------------------------------ secrets that are known


_OPEN_OPTIONS = ("username", "user", "serviceName", "region", "endpoint")
"""Options of a login or a store that are no secrets, and that a report wants."""


def _secrets(nodes: Sequence[LocalNode], settings: Mapping[str, str]) -> set[str]:
    """Values that the settings of nodes and of this client name as secret, and those of this environment."""
    pairs = [pair for node in nodes for pair in node.given.items()] + [*settings.items(), *os.environ.items()]
    found: set[str] = set()
    for name, value in pairs:
        if is_secret(name) or _KEY_OF_A_STORE.search(name):
            for text in (value, *_inner(value)):
                found.add(text)
                with suppress(ValueError):  # it refers to what is not there: the node's start says so
                    found.add(resolved(text))
    return found


_KEY_OF_A_STORE = re.compile(r"(?i)(access|account|api)_?key|token")
_OPTION = re.compile(r"""([\w.\-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;,"']+))""")


def _inner(value: str) -> Iterator[str]:
    """Secrets inside of one: options of a login (JAAS), and of an object store."""
    for name, *written in _OPTION.findall(value):
        text = next((one for one in written if one), "")
        if name not in _OPEN_OPTIONS and text.lower() not in ("true", "false"):
            yield text
            yield re.sub(r"\\(.)", r"\1", text)
