"""Why a server app ended."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evenhand.errors import CallbackError, RunError, first_line
from evenhand.files import cannot_write

log = logging.getLogger(__name__)

# error numbers of disks, not of networks
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT)


@contextmanager
def in_one_line(out: Path) -> Iterator[None]:
    """Say in one line why a run ended and how to resume it; Flower shows only a traceback."""
    try:
        yield
    except (OSError, RunError, CallbackError) as error:
        if isinstance(error, OSError) and error.errno in DISK:
            line = f"{cannot_write(error.filename or out, error)}; then start the run again"
            log.error("%s, it resumes after its last round", line)
            raise RunError(f"{line}, it resumes after its last round") from error
        log.error("%s", first_line(error))
        raise
