"""Which Python Spark looks for formats with: this one, or the `python3` on the path.

Spark starts Python processes of its own, on the driver already: one imports every module named `pyspark_*`, to learn
which formats there are. It takes PYSPARK_PYTHON for them, or else the `python3` that is found on the path. A job that
is run as `venv/bin/python job.py`, without `activate`, has another one there, without this package:
DATA_SOURCE_NOT_FOUND.

`strandline-python`, a script beside the interpreter, starts it without Spark's archives on its path, see there.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path

_log = logging.getLogger("strandline.spark")

_CHOSEN = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""Environment variables by which users choose a Python; if one is set, it is kept."""

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit: its JVM runs already, and has started this process with the Python that it takes for others."""


QUICK = "strandline-python"
"""The script's name."""


def quick_python() -> str:
    """Command that starts this interpreter for Spark: the script beside it, or the interpreter itself if there is no
    script."""
    beside = Path(sys.executable).with_name(QUICK)
    return str(beside) if os.access(beside, os.X_OK) else sys.executable


def use_this_python() -> None:
    """Have Spark start its Python processes with this interpreter, unless the environment says which, or it does so.

    Call it before the session is made: Spark's JVM reads the environment when it starts. Executors on other machines
    get this path too; where theirs is another one, set PYSPARK_PYTHON to theirs.
    """
    if any(os.environ.get(name) for name in (*_CHOSEN, _SUBMITTED)) or not sys.executable:
        return
    from pyspark import SparkContext

    late = SparkContext._gateway is not None
    found = shutil.which("python3")
    if found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve():
        # By its name: executors on other machines have the script on their path as well, and not at this place.
        if not late and quick_python() != sys.executable:
            os.environ["PYSPARK_PYTHON"] = QUICK
        return
    if late:
        _log.warning(
            "Spark was started before pyspark_strandline was imported, and looks for formats with %s instead of %s: "
            "import pyspark_strandline before the session is made, or set PYSPARK_PYTHON=%s in the environment of the "
            "job",
            found or "a python3 that is not there",
            sys.executable,
            sys.executable,
        )
        return
    os.environ["PYSPARK_PYTHON"] = quick_python()
