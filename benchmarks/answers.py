"""Recompute what an answer says from the files of its run, with pandas and nothing of evenhand.

    python -m benchmarks.answers runs/heart runs/acs

Every share ("42 % (45 of 108)"), every change of a group's or client's rate, and the mean and the
worst client of every method are counted again from the test samples' labels and predictions; a
number that does not match is printed and the exit status is 1.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
from safetensors.numpy import load_file

SHARE = re.compile(r"(\d+) % \(([\d.,]+) of ([\d.,]+)\)")
# "lifts the recall of group A by 13.9 points", "harms A (-4.6 points", "harms group A (-4.6 points"
RATE = re.compile(r"the (recall|specificity|accuracy) of group (.+?) by ([\d.]+) points")
HARM = re.compile(r"harms (group )?(\S.*?) \(-([\d.]+) points")


def samples(directory: Path) -> pd.DataFrame:
    """A row per test sample, method and seed: client, group, label, prediction."""
    spec = tomllib.loads((directory / "spec.toml").read_text(encoding="utf-8"))
    frames = []
    for seed in spec["seeds"]:
        run = directory / f"seed-{seed}"
        shared = load_file(run / "samples.safetensors")
        for method in tomllib.loads((run / "spec.toml").read_text(encoding="utf-8"))["methods"]:
            folder = run / method.get("label", method["name"])
            scores = pd.read_csv(folder / "scores.csv")
            names = {
                by: scores[scores.by == by].name.astype(str).tolist() for by in ("client", "group")
            }
            frames.append(
                pd.DataFrame(
                    {
                        "seed": seed,
                        "method": folder.name,
                        "client": [names["client"][code] for code in shared["client"]],
                        "group": [
                            names["group"][code] if names["group"] else ""
                            for code in shared["group"]
                        ],
                        "label": shared["label"],
                        "prediction": load_file(folder / "values.safetensors")["prediction"],
                    }
                )
            )
    frame = pd.concat(frames, ignore_index=True)
    frame["right"] = frame.label == frame.prediction
    return frame


def recounted(frame: pd.DataFrame) -> dict[tuple[float, float], str]:
    """Hits and samples of every group's true-positive and false-positive rate with FedAvg, means
    over seeds, by what they are."""
    found = {}
    seeds = frame.seed.nunique()
    for group, rows in frame[frame.method == "fedavg"].groupby("group"):
        for label, name in ((1, "true positives"), (0, "false positives")):
            some = rows[rows.label == label]
            hits = round(float((some.prediction == 1).sum()) / seeds, 1)
            found[hits, len(some) / seeds] = f"{name} of {group}"
    return found


def changes(frame: pd.DataFrame) -> dict[tuple[str, str], set[float]]:
    """By rate and group or client: how far each method's mean over seeds is from FedAvg's, in
    points."""
    found: dict[tuple[str, str], set[float]] = {}
    some = {
        "accuracy": frame,
        "recall": frame[frame.label == 1],
        "specificity": frame[frame.label == 0],
    }
    for rate, rows in some.items():
        for by in ("group", "client"):
            means = rows.groupby([by, "method", "seed"]).right.mean().groupby([by, "method"]).mean()
            for name, own in means.groupby(by):
                apart = 100 * (own - own[name, "fedavg"]).abs()
                found.setdefault((rate, str(name)), set()).update(apart.round(6))
    return found


def check(directory: Path) -> list[str]:
    """What does not match."""
    frame = samples(directory)
    page = str(directory / "checked.html")
    command = [sys.executable, "-m", "evenhand", "report", str(directory), "--json", "--out", page]
    printed = subprocess.run(command, check=True, capture_output=True, text=True)
    answer = json.loads(printed.stdout)["answer"]
    print(f"\n{directory}")
    for sentence in answer:
        print(f"  {sentence}")
    wrong, known = [], recounted(frame)
    for percent, *counts in SHARE.findall(" ".join(answer)):
        hits, of = (float(count.replace(",", "")) for count in counts)
        what = known.get((hits, of))
        if what is None or abs(100 * hits / of - int(percent)) > 0.6:
            wrong.append(f"{percent} % ({hits:g} of {of:g}) is not in the files")
        else:
            print(f"  counted: {hits:g} of {of:g} {what}")
    apart, text = changes(frame), " ".join(answer)
    told = RATE.findall(text)
    told += [
        ("accuracy", name, size) for _, name, size in HARM.findall(text) if "most of" not in name
    ]
    for rate, name, size in told:
        if any(abs(float(size) - one) <= 0.0501 for one in apart.get((rate, name), ())):
            print(f"  recomputed: {rate} of {name} changes by {size} points")
        else:
            wrong.append(f"{rate} of {name} does not change by {size} points")
    table = pd.read_csv(directory / "comparison.csv").set_index(["method", "statistic"]).value
    clients = frame.groupby(["method", "seed", "client"]).right.mean().unstack()
    for method in frame.method.unique():
        own = clients.loc[method]
        for name, number in (("mean", own.mean(axis=1)), ("min", own.min(axis=1))):
            if abs(table[method, name] - number.mean()) > 1e-9:
                wrong.append(f"{method} {name}: {table[method, name]} and {number.mean()}")
    print(f"  recomputed: mean and worst client of {frame.method.nunique()} methods")
    return wrong


def main() -> None:
    wrong = [line for path in sys.argv[1:] for line in check(Path(path))]
    print("\n".join(wrong) or "\nall numbers match")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
