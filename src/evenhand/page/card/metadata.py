"""The front matter of a model card, in the form that Hugging Face reads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.datasets.entry import GENERATED
from evenhand.page import numbers
from evenhand.page.card.subject import Subject
from evenhand.page.card.training import catalogued
from evenhand.studies.analysis.statistics import HEADINGS

# characters that end a line in YAML, and others that a reader refuses
UNPRINTED = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
PLAIN = re.compile(r"[a-z][a-z_-]*")
METRICS = ("mean", "worst10", "min", "pooled")


def front_matter(subject: Subject) -> str:
    """YAML between two lines of dashes."""
    return f"---\n{yaml(fields(subject))}---\n"


def fields(subject: Subject) -> dict[str, Any]:
    """The fields of the front matter."""
    table = subject.encoding is not None
    kind = "classification" if subject.classifies else "regression"
    task = f"tabular-{kind}" if table else kind
    entry = catalogued(subject)
    public = entry is not None and entry.kind != GENERATED
    tags = ["federated-learning", "fairness", subject.trial.method.name.rpartition(":")[2]]
    tags += [task] if table else []
    tags += ["personalised"] if subject.personal else []
    found: dict[str, Any] = {
        "license": subject.license,
        "library_name": "evenhand",
        "pipeline_tag": task if table else "",
        "tags": tags,
        "datasets": [entry.name] if entry is not None and public else [],
        "metrics": [_metric(subject)],
    }
    found = {key: value for key, value in found.items() if value not in ("", [])}
    if metrics := _metrics(subject):
        name = entry.name if entry else str(subject.spec.data.get("name", "")) or "unknown"
        result = {
            "task": {"type": task},
            "dataset": {
                "type": name,
                "name": entry.about if entry else subject.study.name,
                "split": subject.study.measure.part,
            },
            "metrics": metrics,
        }
        found["model-index"] = [{"name": subject.title, "results": [result]}]
    return found


def _metric(subject: Subject) -> str:
    kind = subject.study.measure.kind
    return {"error": "rmse", "auc": "roc_auc"}.get(kind, kind)


def _metrics(subject: Subject) -> list[dict[str, Any]]:
    """Shares between 0 and 1; errors in the unit of the label."""
    study, comparison = subject.study, subject.findings.comparison
    found = []
    for name in METRICS:
        interval = comparison.rows[subject.label][name]
        if math.isnan(interval.value) or (name == "worst10" and study.clients < 10):
            continue
        percent = study.measure.percent != ""
        value = interval.value if percent else numbers.written(study, name, interval.value)
        about = numbers.ends_words(study, name, interval)
        found.append(
            {
                "type": _metric(subject),
                "name": f"{study.measure.name}, {HEADINGS[name]}: {about}",
                "value": round(value, 6),
            }
        )
    return found


def yaml(value: Mapping[str, Any] | Sequence[Any], depth: int = 0) -> str:
    """Nested dicts and lists of texts and numbers as YAML.

    >>> print(yaml({"tags": ["a: b", "c"], "n": [{"x": 0.5}]}), end="")
    tags:
    - "a: b"
    - c
    n:
    - x: 0.5
    """
    indent, lines = "  " * depth, []
    entries = value.items() if isinstance(value, Mapping) else [(None, one) for one in value]
    for key, one in entries:
        start = f"{indent}- " if key is None else f"{indent}{key}:"
        if isinstance(one, Mapping | list | tuple):
            inner = yaml(one, depth + (isinstance(one, Mapping)))
            # the first line of a list's entry follows its dash
            lines.append(start + inner.lstrip() if key is None else f"{start}\n{inner}")
        else:
            lines.append(f"{start}{'' if key is None else ' '}{_scalar(one)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if PLAIN.fullmatch(value) and value not in ("yes", "no", "true", "false", "null", "on", "off"):
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return UNPRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
