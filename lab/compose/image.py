"""The image under test: deploy/Dockerfile on a base that no registry is needed for.

On an engine of our own the base is a minimal Debian with Python, made by debootstrap from the mirror that this
machine uses, and imported. How this machine reaches its package index (pip's configuration, certificates, a proxy) goes
into the build as docs/deploy.md says, beside a copy of the sources, and not into the image.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lab.compose.engine import Engine, EngineError, NoEngine, install

BASE_VARIABLE = "STRANDLINE_BASE"
DEFAULT_BASE = "python:3.13-slim"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
BOOTSTRAP_TIMEOUT_S = 600.0
BUILD_TIMEOUT_S = 600.0

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "default-timeout", "timeout", "retries")
WITHOUT_BUILDKIT = {"DOCKER_BUILDKIT": "0"}
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def base_image(engine: Engine, tag: str) -> str:
    """The name of a base image: the one in STRANDLINE_BASE; on an engine that was running, python:slim (pulled by the
    build); else a Debian made here and imported under `tag`.

    Raises:
        NoEngine: none can be made here.
    """
    named = os.environ.get(BASE_VARIABLE)
    if named or not engine.own:
        return named or DEFAULT_BASE
    install("debootstrap")
    root = Path(tempfile.mkdtemp(prefix="base-", dir=engine.directory))
    suite, mirror, proxy = _debian()
    command = ["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", suite, str(root), mirror]
    environment = {**os.environ, **({"http_proxy": proxy, "https_proxy": proxy} if proxy else {})}
    done = _bounded(command, environment, BOOTSTRAP_TIMEOUT_S)
    if done.returncode:
        raise NoEngine(f"debootstrap made no base image: {done.stdout.strip()[-500:]}")
    archive = engine.directory / "base.tar"
    caches = ("--exclude=./var/cache/apt/*", "--exclude=./var/lib/apt/lists/*", "--exclude=./dev/*")
    subprocess.run(["tar", "-C", str(root), *caches, "-cf", str(archive), "."], check=True, capture_output=True)
    subprocess.run(["rm", "-rf", "--one-file-system", str(root)], check=True)
    engine.docker("import", str(archive), tag, timeout_s=120)
    archive.unlink()
    return tag


def build(engine: Engine, repository: Path, *, base: str, tag: str) -> None:
    """Build deploy/Dockerfile of `repository` on `base`, with the builder that every engine has (BuildKit may be a
    plugin that is missing). Raises EngineError, with the end of the build's output."""
    with tempfile.TemporaryDirectory(prefix="context-", dir=engine.directory) as directory:
        context = Path(directory)
        copy_sources(repository, context)
        words = ["docker", "build", *build_options(engine, base), "--tag", tag]
        words += ["--file", str(context / "deploy" / "Dockerfile"), str(context)]
        done = _bounded(words, engine.environment() | WITHOUT_BUILDKIT, BUILD_TIMEOUT_S)
    (engine.directory / "build.log").write_text(done.stdout)
    if done.returncode:
        raise EngineError(f"the image does not build:\n{done.stdout.strip()[-3000:]}")


def build_options(engine: Engine, base: str) -> list[str]:
    """What `docker build` is told here beside what docs/deploy.md says."""
    words = ["--build-arg", f"BASE={base}"]
    if engine.own:
        words += ["--network", "host"]  # without packet filter rules a container's own network ends at the bridge
    for name in PROXIES:
        if name in os.environ:
            words += ["--build-arg", f"{name}={os.environ[name]}"]
    return words


def copy_sources(repository: Path, context: Path) -> None:
    """Copy what .dockerignore lets into the build, and .dockerignore itself: the checkout stays as it is. Beside it,
    how this machine reaches its package index."""
    for name in (".dockerignore", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(repository / name, context / name)
    shutil.copytree(repository / "src", context / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (context / "deploy").mkdir()
    for name in ("Dockerfile", "requirements.txt"):
        shutil.copyfile(repository / "deploy" / name, context / "deploy" / name)
    settings, certificates = _pip_settings()
    configuration = "[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())
    (context / "deploy" / "pip.conf").write_text(configuration)
    if certificates.is_file():
        shutil.copyfile(certificates, context / "deploy" / "ca-certificates.pem")


def _bounded(command: list[str], environment: dict[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{command[0]}: no end after {timeout_s:g} s") from error


def _debian() -> tuple[str, str, str]:
    """(suite, mirror, proxy) that this machine's apt uses. Raises NoEngine."""
    pairs = (line.partition("=") for line in Path("/etc/os-release").read_text().splitlines())
    release = {key: value.strip('"') for key, _, value in pairs}
    suite = release.get("VERSION_CODENAME", "")
    advice = f"name a base image with Python 3.11 or later in {BASE_VARIABLE}"
    if release.get("ID") != "debian":
        raise NoEngine(f"a base image is made on Debian alone; {advice}")
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    for line in _output(asked).splitlines():
        uri, of, component = line.split()
        if of == suite and component == "main":
            proxy = _output(["apt-config", "shell", "PROXY", "Acquire::http::Proxy"])
            return suite, uri, proxy.partition("=")[2].strip().strip("'")
    raise NoEngine(f"apt knows no mirror of {suite}; {advice}")


def _pip_settings() -> tuple[dict[str, str], Path]:
    """(what this machine's pip is told about its index, the certificates that it trusts)."""
    settings: dict[str, str] = {}
    certificates = CERTIFICATES
    for line in _output([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        text = value.strip().strip("'\"")
        if key == "cert":
            certificates = Path(text)
        elif key in PIP_KEYS:
            settings[key] = text.replace("\\n", " ")
    return settings, certificates


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
