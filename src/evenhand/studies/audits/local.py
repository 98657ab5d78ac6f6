"""Gaps within clients, next to those over all clients, in the words of an audit."""

from __future__ import annotations

import math

from evenhand.studies.analysis.local_in_words import FEW_LOOK_LARGER, disagree, local_sentence
from evenhand.studies.audits.numbers import Numbers

KINDS = ("equal opportunity", "false-positive parity", "accuracy parity")
NOTE = (
    f"{FEW_LOOK_LARGER} Intervals within clients are over samples; those of single clients and of"
    " the largest gap hold for all clients at once."
)


def sentence(audit: Numbers, striking: bool = False) -> str:
    """Whether groups are treated alike over all clients and within them, by the first rate in which
    the two disagree; ``striking``: "" if there is no such rate."""
    both = [kind for kind in KINDS if kind in audit.local and kind in audit.gaps]
    known = [
        kind
        for kind in both
        if audit.local[kind].clients and not math.isnan(audit.gaps[kind].interval.value)
    ]
    apart = [kind for kind in known if disagree(audit.gaps, audit.local, kind)]
    told = apart or ([] if striking else known)
    if not told:
        return ""
    return local_sentence(audit.gaps, audit.local, told[0], "the model", audit.least)
