"""Runs ``flwr`` commands one after another in one process: importing Flower takes a second, a
command some milliseconds.

Each line on standard input is a JSON list of arguments; each line on standard output is a JSON list
of exit code and printed text.
"""

from __future__ import annotations

import io
import json
import os
import sys
from importlib.metadata import entry_points


def main() -> None:
    """Serve until standard input closes."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what prints past sys.stdout goes to the log, not into a reply
    # the command itself, as its script would load it
    (command,) = entry_points(group="console_scripts", name="flwr")
    flwr = command.load()
    real = sys.stdout, sys.stderr
    for line in sys.stdin:
        printed, code = io.StringIO(), 0
        # Flower prints JSON to sys.__stdout__, past any redirection
        sys.stdout = sys.__stdout__ = sys.stderr = sys.__stderr__ = printed  # type: ignore[misc, assignment]
        try:
            flwr(json.loads(line))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception as error:
            code = 1
            print(error)
        finally:
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = real  # type: ignore[misc, assignment]
        print(json.dumps([code, printed.getvalue()]), file=replies, flush=True)


if __name__ == "__main__":
    main()
