"""A Spark cluster of its own on this machine: a master and workers as processes, out of PySpark's own distribution."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from tests.acceptance.helpers import eventually
from tests.ports import free_ports

HOST = "127.0.0.1"


@dataclass
class Job:
    """One `spark-submit`, and where its driver writes."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def said(self, timeout_s: float = 400) -> str:
        """All that it wrote, once it has ended well."""
        try:
            code = self.process.wait(timeout_s)
        finally:
            text = self.log.read_text(errors="replace")
        assert code == 0, text[-6000:]
        return text

    def kill(self) -> None:
        """End it, if it still runs."""
        if not self.ended:
            self.process.kill()
            self.process.wait()


class Standalone:
    """One master, some workers of one core each. Everything they write lies in `root`.

    `hosts` are the workers' names: Spark runs two attempts at a task at the same time on different hosts alone.
    """

    def __init__(self, root: Path, hosts: Sequence[str] = (HOST, HOST)) -> None:
        import pyspark

        self._home = Path(pyspark.__path__[0])
        self._root = root
        self._hosts = hosts
        self._processes: list[subprocess.Popen[bytes]] = []
        self._submitted = 0
        self._port, self._web = free_ports(2)
        self.environment = {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(root / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }

    @property
    def url(self) -> str:
        """What --master wants."""
        return f"spark://{HOST}:{self._port}"

    def __enter__(self) -> Self:
        self._root.mkdir(parents=True, exist_ok=True)
        master = ["--host", HOST, "--port", str(self._port), "--webui-port", str(self._web)]
        self._spawn("master", "org.apache.spark.deploy.master.Master", *master)
        for number, host in enumerate(self._hosts):
            worker = ["--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            work = str(self._root / f"work-{number}")
            name = f"worker-{number}"
            self._spawn(name, "org.apache.spark.deploy.worker.Worker", *worker, "--work-dir", work, self.url)
        try:
            eventually(self._registered, 120)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        executors = self.executors()
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for executor in executors:
            if executor.is_running():
                executor.kill()

    def executors(self) -> list[psutil.Process]:
        """The JVMs that the workers have started for applications."""
        found = []
        for process in self._processes[1:]:
            if process.poll() is None:
                children = psutil.Process(process.pid).children(recursive=True)
                found += [child for child in children if "CoarseGrainedExecutorBackend" in " ".join(command(child))]
        return found

    def submit(self, job: Path, *arguments: str, shipped: Sequence[str], cwd: Path | None = None) -> Job:
        """`spark-submit` of a job, with the arguments that ship the package, in a directory."""
        settings = {
            "spark.driver.bindAddress": HOST,
            "spark.driver.host": HOST,
            "spark.executor.memory": "512m",
            "spark.log.level": "WARN",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.ui.enabled": "false",
        }
        told = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        command = [str(self._home / "bin/spark-submit"), "--master", self.url, *shipped, *told]
        self._submitted += 1
        log = self._root / f"job-{self._submitted}.log"
        return Job(self._start([*command, str(job), *arguments], log, cwd), log)

    def _start(self, command: list[str], log: Path, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(command, env=self.environment, cwd=cwd or self._root, stdout=output, stderr=output)

    def _spawn(self, name: str, *arguments: str) -> None:
        command = [str(self._home / "bin/spark-class"), *arguments]
        self._processes.append(self._start(command, self._root / f"{name}.log"))

    def _registered(self) -> bool:
        for process in self._processes:
            assert process.poll() is None, "\n".join(path.read_text()[-2000:] for path in self._root.glob("*.log"))
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web}/json/", timeout=5) as answer:
                workers = json.load(answer)["workers"]
        except (urllib.error.URLError, ConnectionError, TimeoutError, json.JSONDecodeError):
            return False  # not there yet; for a moment the master answers everything with its first page
        return sum(worker["state"] == "ALIVE" for worker in workers) == len(self._hosts)


def command(process: psutil.Process) -> list[str]:
    """Its command line; none where it has just ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
