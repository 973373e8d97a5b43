"""A container engine for tests: the one that runs here, or one that is started for the occasion and taken away again.

An engine of our own (Debian's docker.io) gets a temporary directory for its data, its state and its socket, and leaves
the machine's network as it is: no default bridge, no packet filter rules. Networks that are made by name, their DNS,
published ports (through docker-proxy), `network disconnect` and `pause` work all the same.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from strandline.proto.errors import StrandlineError

PACKAGES = ("docker.io", "docker-compose", "debootstrap")
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.1
DISK_BYTES_MIN = 4 * 1024**3
"""Free space that an engine of our own needs: a base image, its import, the build, six small volumes."""

ELSEWHERE = ("/etc/docker/key.json", "/run/docker/plugins", "/run/docker", "/run/containerd/s", "/run/containerd")
"""Paths that dockerd makes outside the directories that it is given: a key, and folders for sockets, left empty."""


class NoEngine(StrandlineError):
    """No engine runs here and none can be started; the message is the reason."""


class EngineError(StrandlineError):
    """A command of the engine failed; the message has its last words."""


class Engine:
    """Commands to one engine, as a context manager that takes away what it started.

    Attributes:
        own: this object started it (and nothing else uses it).
        directory: a temporary directory, deleted at the end.
    """

    def __init__(self) -> None:
        self.own = False
        self.directory = Path(tempfile.mkdtemp(prefix="strandline-engine-"))
        self._environment = dict(os.environ)
        self._daemon: subprocess.Popen[bytes] | None = None
        self._compose: list[str] = []
        self._made_elsewhere: list[Path] = []

    def __enter__(self) -> Self:
        """Find an engine, or start one. Raises NoEngine."""
        try:
            if not _answers(self._environment):
                self._start()
            self._compose = _compose_command()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def docker(self, *words: str, timeout_s: float = 60.0, merge: bool = False) -> str:
        """Run ``docker WORDS``; its standard output (`merge`: and standard error). Raises EngineError."""
        return self._run(["docker", *words], timeout_s, merge=merge)

    def compose(self, *words: str, timeout_s: float = 120.0, environment: dict[str, str] | None = None) -> str:
        """Run ``docker compose WORDS`` or ``docker-compose WORDS``, whichever is here. Raises EngineError."""
        return self._run([*self._compose, *words], timeout_s, environment)

    def type(
        self, commands: str, directory: Path, environment: dict[str, str], build: Sequence[str], timeout_s: float
    ) -> str:
        """Run commands in a shell at a terminal, as a reader types them, up to the first that fails; what they print.

        Args:
            build: options that `docker build` needs here beside what was typed.

        Raises:
            EngineError: a command failed, or there was no end in time.
        """
        compose = "" if self._compose[0] == "docker" else 'compose) shift; docker-compose "$@";;'
        script = self.directory / "typed.sh"
        script.write_text(
            f"""docker() {{ case "$1" in
    {compose}
    build) shift; command docker build {shlex.join(build)} "$@";;
    *) command docker "$@";;
esac; }}
set -e
cd {shlex.quote(str(directory))}
{commands}
"""
        )
        return self._run(["script", "-qefc", f"bash {script}", "/dev/null"], timeout_s, environment)

    def daemon_pid(self) -> int | None:
        """The process of an engine that was started here."""
        return None if self._daemon is None else self._daemon.pid

    def environment(self) -> dict[str, str]:
        """The environment in which other programs reach this engine."""
        return dict(self._environment)

    def version(self) -> str:
        """The engine's version, and whether it is ours."""
        number = self.docker("version", "--format", "{{.Server.Version}}").strip()
        return f"{number} ({'started for this run' if self.own else 'was running'})"

    def close(self) -> None:
        """Stop the engine if it was started here, and delete the temporary directory. Idempotent."""
        if self._daemon is not None:
            self._daemon.terminate()
            try:
                self._daemon.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._daemon.pid, signal.SIGKILL)  # its containerd is in its group
                self._daemon.wait()
            self._daemon = None
            for path in self._made_elsewhere:
                _remove_if_unused(path)
        _unmount_below(self.directory)
        # Never through a mount that is still there; tens of thousands of files, which rmtree takes its time for.
        subprocess.run(["rm", "-rf", "--one-file-system", str(self.directory)], check=False, capture_output=True)

    def _run(
        self, command: list[str], timeout_s: float, environment: dict[str, str] | None = None, *, merge: bool = False
    ) -> str:
        try:
            done = subprocess.run(
                command,
                env={**self._environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merge else subprocess.PIPE,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"{' '.join(command)}: no end after {timeout_s:g} s") from error
        if done.returncode:
            said = f"{done.stderr or ''}{done.stdout}".strip()[-2000:]
            raise EngineError(f"{' '.join(command)} ended with {done.returncode}: {said}")
        return done.stdout

    def _start(self) -> None:
        """Start dockerd. Raises NoEngine."""
        if os.geteuid() != 0:
            raise NoEngine("no container engine runs here, and only root can start one")
        install(*PACKAGES)
        free = shutil.disk_usage(self.directory).free
        if free < DISK_BYTES_MIN:
            raise NoEngine(f"{self.directory} has {free / 1e9:.1f} GB free, an engine needs {DISK_BYTES_MIN / 1e9:.1f}")
        self._made_elsewhere = [path for path in map(Path, ELSEWHERE) if not path.exists()]
        socket = self.directory / "docker.sock"
        log = self.directory / "dockerd.log"
        # Should this process be killed, the engine ends its containers and itself.
        command = ["setpriv", "--pdeathsig", "TERM", "dockerd"]
        command += ["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"]
        command += ["--data-root", str(self.directory / "data"), "--exec-root", str(self.directory / "exec")]
        command += ["--pidfile", str(self.directory / "docker.pid"), "--host", f"unix://{socket}"]
        with log.open("wb") as output:
            self._daemon = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        self.own = True
        self._environment["DOCKER_HOST"] = f"unix://{socket}"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self._environment):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._daemon.wait(POLL_S)
            ended = self._daemon.poll() is not None
            if ended or time.monotonic() > deadline:
                how = "ended" if ended else f"does not answer after {START_TIMEOUT_S:g} s"
                raise NoEngine(f"dockerd was started and {how}: {_last_words(log)}")


def install(*packages: str) -> None:
    """Install Debian packages whose programs are missing. Raises NoEngine."""
    programs = {"docker.io": "dockerd", "docker-compose": "docker-compose", "debootstrap": "debootstrap"}
    missing = [package for package in packages if shutil.which(programs[package]) is None]
    if not missing:
        return
    advice = f"not installed here: {' '.join(missing)} (Debian's packages of these names)"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NoEngine(advice)
    # What the packages would start by themselves is not wanted: the engine is started here, in a directory of its own.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-yqq", "--no-install-recommends", *missing]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise NoEngine(f"{advice}, and apt-get failed: {done.stderr.strip()[-500:]}")


def _answers(environment: dict[str, str]) -> bool:
    if shutil.which("docker") is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        asked = ["docker", "version", "--format", "{{.Server.Version}}"]
        return subprocess.run(asked, env=environment, capture_output=True, timeout=10, check=False).returncode == 0
    return False


def _compose_command() -> list[str]:
    if _output(["docker", "compose", "version"]):
        return ["docker", "compose"]
    install("docker-compose")
    return ["docker-compose"]


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout if done.returncode == 0 else ""


def _last_words(path: Path) -> str:
    return path.read_text(errors="replace").strip()[-800:]


def _remove_if_unused(path: Path) -> None:
    """Remove a file, or a folder that is empty: what else is in it belongs to others."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()


def _unmount_below(directory: Path) -> None:
    """Unmount what a killed engine leaves behind: overlays, shared memory and network namespaces of its containers."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for path in sorted((path for path in mounts if path.startswith(f"{directory}/")), reverse=True):
        subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)
