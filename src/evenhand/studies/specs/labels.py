"""Labels of methods, which name their folders."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evenhand.algorithms.naming import label_of
from evenhand.errors import SpecError
from evenhand.studies.specs.method import Method
from evenhand.training.directory import RUN_FILES
from evenhand.training.manifest import MANIFEST

FILE_NAME = re.compile(r"[\w][\w.=+ -]*")


def check_labels(methods: Sequence[Method]) -> None:
    """Raise if two methods have one label, or a label cannot be the name of a folder."""
    labels = [method.label for method in methods]
    for label in labels:
        if labels.count(label) > 1:
            raise SpecError(f"labels must differ; {label!r} is used {labels.count(label)} times")
    for method in methods:
        if method.label == label_of(method.name):
            continue
        if not FILE_NAME.fullmatch(method.label) or method.label in (*RUN_FILES, MANIFEST):
            raise SpecError(
                f"label must be a plain file name other than {', '.join(RUN_FILES)}, got"
                f" {method.label!r}"
            )
