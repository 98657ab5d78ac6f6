"""The secret of a run: what its noise and its cohorts are drawn from."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from evenhand.errors import RunError
from evenhand.files import cannot_write
from evenhand.privacy.noise import derived

FILE, MODE = "secret.key", 0o600
BYTES = 32


class Secret:
    """The secret of one run: 32 bytes of the system's generator, or of a number that a simulation
    repeats.

    It is written to a file of its own and nowhere else, so it does not print and cannot be pickled.
    """

    def __init__(self, key: bytes, simulated: bool) -> None:
        self.key, self.simulated = key, simulated

    @classmethod
    def new(cls) -> Secret:
        """Draw a secret from the system's generator."""
        return cls(secrets.token_bytes(BYTES), simulated=False)

    @classmethod
    def of(cls, number: int) -> Secret:
        """Return the secret of a simulation, which anyone who knows the number can compute."""
        return cls(derived(b"evenhand: not a secret", str(number)), simulated=True)

    @property
    def cohorts(self) -> int:
        """The seed of the cohorts; it does not tell the noise."""
        return int.from_bytes(derived(self.key, "cohorts"), "big")

    def keep(self, folder: Path, resumed: bool) -> None:
        """Write the secret next to a run's checkpoint, or read that of the run being resumed.

        A resumed round must repeat its noise and its cohort: with others it would be a second
        release, which nobody has counted.
        """
        path = folder / FILE
        if self.simulated:
            return
        if resumed:
            self.key = _read(path)
            return
        try:
            path.unlink(missing_ok=True)  # of a run that ended before its first checkpoint
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(f"{self.key.hex()}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(path, error) from error

    def __repr__(self) -> str:
        return "Secret()"

    def __reduce__(self) -> Any:
        raise TypeError("the secret of a private run is written to its own file only")


def _read(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except FileNotFoundError as error:
        raise RunError(
            f"{path} is gone, and with it the noise of this private run: rounds after the"
            " checkpoint cannot be repeated; train again in another directory"
        ) from error
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} cannot be read; restore a copy, or train again elsewhere"
        ) from error
    if len(key) != BYTES:
        raise RunError(f"{path} is damaged; restore a copy, or train again in another directory")
    return key
