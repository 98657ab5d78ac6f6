"""The exceptions a caller may want to catch.

    EvenhandError
    ├── CallbackError    a callback failed; names it, hook and round, and has the result so far
    ├── ClientError      a client's work failed; names client, round and stage
    ├── DataError        a data file is missing, damaged or unsuitable; names file and row
    ├── RunError         a run directory is missing, damaged, or belongs to another run
    │   └── WriteError   a file cannot be written (disk full, read-only); also an OSError
    └── SpecError        a spec file or a command-line override is invalid

Wrong arguments raise ValueError or TypeError.
"""

from __future__ import annotations

import difflib
import dis
import os
import re
import resource
import sysconfig
from collections.abc import Collection, Mapping
from math import inf, nan
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

HERE = str(Path(__file__).parent)
RAISE = dis.opmap["RAISE_VARARGS"]
# how torch and NumPy report a lack of memory, besides MemoryError
NO_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "Storage size calculation overflowed",
    "array is too big",
    "Maximum allowed dimension exceeded",
)


class EvenhandError(Exception):
    """Base class of this library's errors."""


AGAIN = "resume them with resume=True"  # what to do after a callback has failed


class CallbackError(EvenhandError):
    """A callback failed; the cause is chained.

    ``result`` is the :class:`evenhand.Result` of the rounds done, for a run without a directory or
    with all its rounds done. In ``fit_many``, ``number`` says which run it is, and ``earlier`` has
    the results of the runs done before, by number.
    """

    result: Any = None
    number: int = 0
    earlier: Mapping[int, Any] = MappingProxyType({})


class ClientError(EvenhandError):
    """A client's work failed; the cause is chained."""


class DataError(EvenhandError, ValueError):
    """A data file is missing, damaged, or holds unsuitable values."""


class RunError(EvenhandError):
    """A run directory is missing, damaged, or belongs to another run."""


class WriteError(RunError, OSError):
    """A file cannot be written, for example because the disk is full."""


class SpecError(EvenhandError, ValueError):
    """A spec or a command-line override is invalid."""


def require_whole(name: str, value: object, least: int, optional: bool = False) -> None:
    """Raise a ValueError unless ``value`` is a whole number >= ``least``, or None if optional."""
    if value is None and optional:
        return
    if (
        not isinstance(value, Integral)
        or isinstance(value, bool)
        or not least <= int(value) < 2**63
    ):
        raise ValueError(f"{name} must be a whole number >= {least}, got {brief(value)}")


def require_number(name: str, value: object, interval: str, hint: str = "") -> None:
    """Raise a ValueError unless ``value`` is a number in ``interval``: "[0, inf)", "(0, 1]"."""
    low, high = (float(end) for end in interval[1:-1].split(","))

    def inside(number: float) -> bool:  # NaN lies in no interval
        return (low <= number if interval[0] == "[" else low < number) and (
            number <= high if interval[-1] == "]" else number < high
        )

    if isinstance(value, Real) and not isinstance(value, bool) and inside(_as_float(value)):
        return
    if isinstance(value, str) and inside(number := _as_float(value)):
        hint = f"write it as a number: {number:.12g}"
    if high < inf:
        wanted = f"in {interval}"
    else:
        wanted = "a finite number" + (
            "" if low == -inf else f" {'>=' if interval[0] == '[' else '>'} {low:g}"
        )
    raise ValueError(f"{name} must be {wanted}, got {brief(value)}" + (f"; {hint}" if hint else ""))


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return inf if int(value) > 0 else -inf
    except ValueError:  # text
        return nan


def brief(value: object, most: int = 60) -> str:
    r"""Show a user's value on one line, shortened if it is long.

    >>> brief("a\nb"), brief(10**400, 12)
    ("'a\\nb'", '100000000000…')
    """
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()  # type: ignore[attr-defined]  # 3, not np.int64(3)
    try:
        shown = repr(value)
    except ValueError:  # Python prints no integer of more than 4,300 digits
        shown = f"{type(value).__name__} with thousands of digits"
    shown = " ".join(shown.split())
    return shown if len(shown) <= most else f"{shown[:most]}…"


def require_memory(what: str, size: float) -> None:
    """Raise a ValueError if ``what`` needs more bytes (``size``) than this machine has."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    have = pages if limit == resource.RLIM_INFINITY else min(pages, limit)
    if size > have:
        raise ValueError(
            f"{what} would need about {gibibytes(size)} of memory; this machine has"
            f" {gibibytes(have)}"
        )


def gibibytes(size: float) -> str:
    """Format an amount of memory for people.

    >>> gibibytes(3 << 29), gibibytes(10**14)
    ('1.5 GiB', '93,132 GiB')
    """
    amount = size / (1 << 30)
    return f"{amount:,.1f} GiB" if amount < 100 else f"{amount:,.0f} GiB"


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise a ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        listed = " or ".join((", ".join(f'"{c}"' for c in choices[:-1]), f'"{choices[-1]}"'))
        same = [choice for choice in choices if plain(choice) == plain(str(value))]
        hint = f'; write "{same[0]}"' if same else ""
        raise ValueError(f"{name} must be {listed}, got {brief(value)}{hint}")


def plain(text: str) -> str:
    """Return a name in one spelling: lower case, British, words separated by spaces.

    >>> plain("Equalized-odds"), plain("false_positive parity")
    ('equalised odds', 'false positive parity')
    """
    return " ".join(re.split(r"[\s_-]+", text.lower().strip())).replace("equalized", "equalised")


def require_kind(name: str, value: object, kind: type, example: str) -> None:
    """Raise a TypeError unless ``value`` is a ``kind``; the message shows ``example``."""
    if not isinstance(value, kind):
        shown = f" {value!r}" if isinstance(value, str | Real) else ""
        got = (
            f"the class {value.__name__}; did you mean {value.__name__}()?"
            if isinstance(value, type)
            else f"{type(value).__name__}{shown}"
        )
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise TypeError(
            f"{name} must be {article} {kind.__name__} object such as {example}, got {got}"
        )


def unknown(what: str, name: object, known: Collection[str]) -> str:
    """Return the message for a name that is not in ``known``, with the closest match."""
    close = difflib.get_close_matches(str(name).lower(), known, n=1)
    hint = (
        f"did you mean {close[0]!r}?"
        if close
        else f"choose from {', '.join(known)}"
        if known
        else "it has none"
    )
    return f"unknown {what} {brief(name)}; {hint}"


def require_known(what: str, name: object, known: Collection[str]) -> None:
    """Raise a ValueError that suggests the closest match unless ``name`` is in ``known``."""
    if not isinstance(name, str) or name not in known:
        raise ValueError(unknown(what, name, known))


def require(condition: bool, message: str, *values: object) -> None:
    """Raise a ValueError with ``values`` filled into ``message`` unless ``condition`` holds."""
    if not condition:
        raise ValueError(message.format(*values))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; our own messages have only one."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def is_expected(error: BaseException) -> bool:
    """Whether an error tells the user what to fix; any other error is a bug.

    Expected are errors of this library and of the operating system, missing packages, and argument
    errors raised by a ``raise`` statement in our code or in the user's. Errors raised by the
    interpreter or by another library are not.
    """
    if isinstance(error, EvenhandError | OSError | ImportError):
        return True
    if not isinstance(error, ValueError | TypeError | RuntimeError) or isinstance(
        error, UnicodeError | RecursionError
    ):
        return False
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None:
        return False
    code = innermost.tb_frame.f_code
    return _is_own(code.co_filename) and code.co_code[innermost.tb_lasti] == RAISE


def _is_own(file: str) -> bool:
    """Whether a file belongs to this library or to its user."""
    places = sysconfig.get_paths()
    installed = [places[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file.startswith(HERE) or not file.startswith(("<", *installed))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, NumPy or torch ran out of memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ValueError)
        and any(text in str(error) for text in NO_MEMORY)
    )
