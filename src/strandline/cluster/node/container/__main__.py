"""The entry point of the image: process 1 of a container.

    node [--config FILE] [-X key=value ...]    format the volume if it is unformatted, and run the node (the default)
    health                                     exit 0 if /readyz answers 200, for HEALTHCHECK
    anything else                              run the `strandline` program with these arguments

The node runs in this process, without a shell around it: SIGTERM begins a controlled shutdown.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

EXIT_FAILED = 1
EXIT_WRONG_SETTING = 2
EXIT_TERMINATED = 128 + signal.SIGTERM


def main(arguments: list[str]) -> int:
    """Run the command in `arguments`. Returns the exit code."""
    # Before the slow imports: process 1 does not get signals without a handler, so that `docker stop` during the start
    # would wait for its timeout. The node sets its own handler once it runs.
    signal.signal(signal.SIGTERM, _terminated)
    word, rest = (arguments[0], arguments[1:]) if arguments else ("node", [])
    if word not in ("node", "health"):
        os.execv(sys.executable, [sys.executable, "-m", "strandline.cli.main", *arguments])
    from strandline.proto.errors import ConfigError, StrandlineError

    try:
        if word == "health":
            from strandline.cluster.node.container.health import ask

            ready, text = ask(rest, os.environ)
            print(text)  # noqa: T201 - `docker inspect` shows it
            return 0 if ready else EXIT_FAILED
        from strandline.cluster.node.container.settings import load, prepare

        config = load(rest, os.environ)
        prepare(config, os.environ)
    except ConfigError as error:
        return _say(error, EXIT_WRONG_SETTING)
    except (StrandlineError, OSError) as error:
        return _say(error, EXIT_FAILED)
    from strandline.cluster.node.run_node import run

    return run(config)


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(EXIT_TERMINATED)


def _say(error: Exception, code: int) -> int:
    from strandline.proto.printable import printable_lines

    print(printable_lines(f"strandline: {error}"), file=sys.stderr)  # noqa: T201 - what `docker logs` shows
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
