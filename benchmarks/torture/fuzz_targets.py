"""What is fuzzed: each target makes an input of a random generator and gives it to evenhand."""

from __future__ import annotations

import dataclasses
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord

import evenhand as eh
from benchmarks.torture.mutating import TEXTS, mutated, mutated_value, number, value
from evenhand.algorithms import ALGORITHMS
from evenhand.data.storage.file import File
from evenhand.data.tables.files import read_table
from evenhand.datasets.idx import read_idx
from evenhand.datasets.loaders.table import table as table_federation
from evenhand.flower.packing import STYPE, pack, unpack
from evenhand.flower.records import fault_in, read_reply, read_task, reply_content
from evenhand.flower.registration import read_report, report_data
from evenhand.flower.wire import read_work
from evenhand.messages import Reply
from evenhand.studies.specs.method import build_algorithm
from evenhand.studies.specs.parsing import parse_method, parse_table
from evenhand.studies.specs.spec import Spec


class Target(NamedTuple):
    """One kind of input, and its share of the time."""

    what: str
    share: float
    once: Callable[[random.Random, Path], object]


# ---- methods and specs ---------------------------------------------------------------------------

FIELDS = {
    name: [field.name for field in dataclasses.fields(kind)] for name, kind in ALGORITHMS.items()
}
SPEC = Spec.default().to_toml() + '\n[select]\nrule = "worst10"\n'
PARTITION = b'partition = { name = "dirichlet", clients = 5, alpha = 0.5 }'
TOKENS = (
    *(b"lr = 1e30", b"[data]", b"[[methods]]", b'name = "afl"', b"seeds = [0, 1]", b"folds = 5"),
    *(b"validation = 0.5", b'[tune]\nrule = "mean"', b"[cohort]", b"clients = 10", PARTITION),
)


def method_texts(rng: random.Random, _: Path) -> object:
    name = rng.choice([*ALGORITHMS, "", "x", "os:system", ":"])
    keys = [*FIELDS.get(name, ["q"]), "local.lr", "inner", "inner.q", "local", "", "name"]
    pairs = ",".join(
        f"{rng.choice(keys)}{rng.choice(('=', '=', '=', '', '=='))}"
        f"{rng.choice((repr(number(rng)), rng.choice(TEXTS), str(value(rng)), 'qffl'))}"
        for _ in range(rng.randint(0, 3))
    )
    text = f"{name}:{pairs}" if pairs else name
    if rng.random() < 0.2:
        text = mutated(rng, text.encode()).decode(errors="replace")
    parse_table(text) if rng.random() < 0.2 else None
    return build_algorithm(parse_method(text))


def method_values(rng: random.Random, _: Path) -> object:
    name = rng.choice(list(ALGORITHMS))
    given: dict[str, Any] = {}
    for key in FIELDS[name]:
        if key == "inner":
            given[key] = ALGORITHMS[rng.choice(list(ALGORITHMS))]() if rng.random() < 0.9 else 3
        elif rng.random() < 0.4:
            given[key] = number(rng) if rng.random() < 0.7 else value(rng)
    return ALGORITHMS[name](**given)


def specs(rng: random.Random, _: Path) -> object:
    text = mutated(rng, SPEC.encode(), TOKENS).decode(errors="replace")
    spec = Spec.from_toml(text, "a.toml")
    for method in spec.methods:
        method.algorithm()
        spec.build_local(method)
    spec.settings(without=("device",))
    if spec.data.get("name") == "digits" and rng.random() < 0.03:
        spec.build_data()
    return spec.to_toml()


def trained(rng: random.Random, _: Path) -> object:
    """Two rounds with settings that may be absurd: a result, or one line."""
    name = rng.choice([name for name in ALGORITHMS if FIELDS[name]])
    given = {
        key: rng.choice((1e30, 1e-30, 0, -1, 1, 1e10, 0.5, 3, 1e300))
        for key in FIELDS[name]
        if key != "inner" and rng.random() < 0.5
    }
    method = ALGORITHMS[name](**given)
    classify = rng.random() < 0.5
    module = torch.nn.Linear(3, 2 if classify else 1)
    lr = rng.choice((0.1, 0.1, 1e3, 1e30, 1e-30))
    loss = "cross_entropy" if classify else "mse"
    local = eh.LocalSGD(lr=lr, epochs=1, batch_size=4)
    engine = rng.choice(("loop", "vmap"))
    return eh.fit(module, _small(classify), method, rounds=2, loss=loss, local=local, engine=engine)


def _small(classify: bool) -> eh.Federation:
    if classify not in _SMALL:
        rng = np.random.default_rng(0)
        rows = [
            {
                "x": rng.normal(size=(6, 3)).astype(np.float32),
                "y": rng.integers(0, 2, 6) if classify else rng.normal(size=6).astype(np.float32),
                "group": np.array(["a", "b"])[rng.integers(0, 2, 6)],
            }
            for _ in range(3)
        ]
        _SMALL[classify] = eh.Federation.from_arrays(rows, test=rows)
    return _SMALL[classify]


_SMALL: dict[bool, eh.Federation] = {}

# ---- tables --------------------------------------------------------------------------------------

CELLS = ("1", "0", "2.5", "-3", "yes", "no", "a", "b", "", "NA", "007", "2020-01-02", *TEXTS)


def _csv(rng: random.Random) -> bytes:
    separator, end = rng.choice((",", ",", ";", "\t")), rng.choice(("\n", "\n", "\r\n", "\r"))
    names = ["hospital", "sex", "age", "score", "ill"]
    lines = [separator.join(names)]
    plain = rng.random() < 0.7
    for row in range(rng.randint(0, 30)):
        cells = [f"h{row % 3}", "mf"[row % 2], str(20 + row), f"{rng.random():.2f}", str(row % 2)]
        if not plain:
            cells[rng.randrange(5)] = rng.choice(CELLS)
        lines.append(separator.join(cells))
    content = end.join(lines).encode(
        rng.choice(("utf-8", "utf-8", "utf-16", "utf-8-sig")), "replace"
    )
    return mutated(rng, content) if rng.random() < 0.7 else content


def _column(rng: random.Random) -> Any:
    usual = ("hospital", "sex", "age", "score", "ill")
    return rng.choice((*usual, *usual, *usual, "age>30", "score >= 0.5", "ill == 1", "x", "", 3))


def tables(rng: random.Random, place: Path) -> object:
    path = place / rng.choice(("t.csv", "t.csv", "t.tsv"))
    path.write_bytes(_csv(rng))
    if rng.random() < 0.3:
        return read_table(path, missing=rng.choice(((), "NA", 3, ["x", 9], None)))
    usual = rng.random() < 0.6
    return table_federation(
        path,
        label="ill" if usual else _column(rng),
        client="hospital" if usual else rng.choice((None, _column(rng))),
        group=rng.choice((None, "sex", _column(rng), ["sex", _column(rng)])),
        partition=rng.choice((None, None, None, "iid", "iid:clients=3", {"name": "power_law"})),
        clients=rng.choice((None, None, None, 2, number(rng))),
    )


def audits(rng: random.Random, place: Path) -> object:
    path = place / "a.csv"
    path.write_bytes(_csv(rng))
    usual = rng.random() < 0.6
    found = eh.audit(
        str(path),
        label="ill" if usual else _column(rng),
        prediction="score >= 0.5" if usual else _column(rng),
        client=rng.choice((None, "hospital", _column(rng))),
        group=rng.choice((None, "sex", _column(rng))),
        weight=rng.choice((None, None, "age", _column(rng))),
        draws=10,
    )
    return repr(found)


def counts(rng: random.Random, place: Path) -> object:
    lines = ["client,group,label,prediction,count"]
    for _ in range(rng.randint(0, 12)):
        count = rng.choice(("3", "0", "12", str(rng.randint(0, 99)), str(number(rng)), "9" * 400))
        count = count if rng.random() < 0.3 else str(rng.randint(0, 99))
        lines.append(
            f"c{rng.randrange(3)},{rng.choice('ab')},{rng.choice('yn')},{rng.choice('yn')},{count}"
        )
    content = rng.choice(("\n", "\n", "\r", "\r\n")).join(lines).encode()
    path = place / "c.csv"
    path.write_bytes(mutated(rng, content) if rng.random() < 0.6 else content)
    return repr(eh.audit(str(path), counts=True, draws=10))


def parquet(rng: random.Random, place: Path) -> object:
    path = place / "p.parquet"
    if _PARQUET.get("content") is None:
        frame = pd.DataFrame(
            {"hospital": ["a", "b"] * 10, "age": range(20), "ill": [0, 1, 1, 0] * 5}
        )
        frame.to_parquet(path)
        _PARQUET["content"] = path.read_bytes()
    path.write_bytes(mutated(rng, _PARQUET["content"]))
    return read_table(path)


_PARQUET: dict[str, bytes] = {}

# ---- formats of data sets ------------------------------------------------------------------------

LEAF: dict[str, Any] = {
    "users": ["u1", "u2"],
    "num_samples": [2, 3],
    "user_data": {
        "u1": {"x": [[0.1, 0.2, 0.3, 0.4]] * 2, "y": [0, 1]},
        "u2": {"x": [[0.5, 0.2, 0.1, 0.4]] * 3, "y": [1, 1, 0]},
    },
}


def leaf(rng: random.Random, place: Path) -> object:
    path = place / "l.json"
    if rng.random() < 0.5:
        path.write_bytes(mutated(rng, json.dumps(LEAF).encode()))
    else:
        path.write_text(json.dumps(mutated_value(rng, LEAF)))
    kind = rng.choice(("auto", "numbers", "images", "characters"))
    return eh.Federation.from_leaf(path, kind=kind)


def idx(rng: random.Random, place: Path) -> object:
    axes = rng.choice((1, 3))
    shape = [rng.randint(0, 4) for _ in range(axes)]
    content = struct.pack(f">I{axes}I", 0x0800 | axes, *shape) + bytes(int(np.prod(shape)))
    path = place / "i"
    path.write_bytes(mutated(rng, content) if rng.random() < 0.9 else content)
    return read_idx(path, File("i"), axes)


def arrays(rng: random.Random, _: Path) -> object:
    def made(usual: bool) -> Any:
        if usual:
            return rng.choice(([0, 1], [1.5, 2.0], np.zeros((2, 3), np.float32), np.array([0, 1])))
        odd = (
            *(np.zeros((0, 3)), np.zeros((2, 0)), np.zeros((3, 3)), np.array(["a", "b"])),
            *(np.array([np.nan, 1.0]), np.array([1j, 2]), np.array([2**63, 1], np.uint64)),
            *(torch.zeros(2, 3), torch.zeros(2).half(), torch.tensor([True, False])),
            *([[1], [2, 3]], [None, 1], [object(), 1], np.array([b"a", b"b"]), "ab", 3),
        )
        return rng.choice((*odd, value(rng)))

    def client() -> Any:
        found: dict[str, Any] = {
            "x": np.zeros((2, 3), np.float32) if rng.random() < 0.7 else made(False),
            "y": np.array([0, 1]) if rng.random() < 0.7 else made(rng.random() < 0.5),
        }
        for key in ("group", "team", "name", "z"):
            if rng.random() < 0.15:
                found[key] = made(False)
        return found if rng.random() < 0.95 else value(rng)

    clients = [client() for _ in range(rng.randint(0, 3))]
    test = [client() for _ in clients] if rng.random() < 0.3 else None
    return eh.Federation.from_arrays(clients, test=test)


# ---- runs that were saved ------------------------------------------------------------------------


def saved_run(place: Path) -> Path:
    """A small comparison, made once."""
    root = place / "run"
    if not root.exists():
        methods = [eh.FedAvg(), eh.QFFL(q=1.0), eh.LocalOnly()]
        local = eh.LocalSGD(lr=0.1, epochs=1, batch_size=4)
        eh.compare(
            lambda: torch.nn.Linear(3, 2), _small(True), methods, seeds=2, rounds=2, local=local,
            out=root,
        )  # fmt: skip
    return root


def saved(rng: random.Random, place: Path) -> object:
    root = saved_run(place)
    path = rng.choice(sorted(path for path in root.rglob("*") if path.is_file()))
    before = path.read_bytes()
    try:
        if path.suffix == ".json" and rng.random() < 0.5:
            path.write_text(json.dumps(mutated_value(rng, json.loads(before))))
        else:
            path.write_bytes(mutated(rng, before))
        study = eh.load(root)
        if rng.random() < 0.3:
            study.trial().read_models()
        if rng.random() < 0.05:
            return repr(eh.analyse(study))
        return study
    finally:
        path.write_bytes(before)


# ---- messages of a federation --------------------------------------------------------------------

TREE = {"model": {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, "n": torch.tensor(3)}
WORK: dict[str, Any] = {
    "kind": "train",
    "part": "train",
    "local": dataclasses.asdict(eh.LocalSGD(lr=0.1)),
    "method": {"name": "qffl", "q": 1.0},
    "last": False,
}


def _record(values: dict[Any, Any]) -> ConfigRecord:
    record = ConfigRecord()
    for key, one in values.items():
        try:
            record[key] = one
        except (TypeError, ValueError):  # Flower itself refuses it
            continue
    return record


def packed(rng: random.Random, _: Path) -> object:
    array = pack(TREE)
    data = array.data
    if rng.random() < 0.5:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        changed = json.dumps(mutated_value(rng, header)).encode()
        size = len(changed) if rng.random() < 0.9 else rng.choice((0, 2**63, 2**64 - 1))
        data = size.to_bytes(8, "little") + changed + data[8 + length :]
    else:
        data = mutated(rng, data)
    shape = (len(data),) if rng.random() < 0.95 else (rng.randint(0, 9),) * rng.randint(0, 2)
    stype = STYPE if rng.random() < 0.95 else rng.choice(TEXTS)
    return unpack(Array(dtype="uint8", shape=shape, stype=stype, data=data))


def records(rng: random.Random, _: Path) -> object:
    content = reply_content(Reply(total=TREE, each={"n": TREE["n"]}), {"round": 1, "client": 2})
    if rng.random() < 0.5:
        content["about"] = _record(
            {**content["about"], rng.choice(("format", "round", "x")): value(rng)}
        )
    if rng.random() < 0.3:
        trees = ArrayRecord()
        for key in rng.sample(["total", "each", "own", "shared", "x"], rng.randint(0, 3)):
            trees[key] = pack(TREE)
        content["trees"] = trees
    if rng.random() < 0.2:
        content[rng.choice(("fault", "about", "trees", "x"))] = _record({"reason": value(rng)})
    if rng.random() < 0.1 and content:
        del content[rng.choice(list(content))]
    fault_in(content)
    limit = rng.choice((1 << 30, 10, 200))
    return read_reply(content, limit) if rng.random() < 0.7 else read_task(content, limit)


def reports(rng: random.Random, _: Path) -> object:
    federation = _small(True)
    one = federation.first(federation.extent) if hasattr(federation, "extent") else federation
    reply, about = report_data(one, "n1")
    counts = dict(reply.each)
    for key in rng.sample(list(counts), rng.randint(0, 2)):
        counts[key] = rng.choice(
            (
                *(
                    torch.tensor([2**62, 2**62]),
                    torch.tensor([-1, 3]),
                    torch.zeros(2),
                    torch.zeros(0),
                ),
                *(torch.tensor([3, 4]), torch.tensor(3), torch.tensor([float("nan"), 1.0])),
            )
        )
    return read_report(
        Reply(each=counts), mutated_value(rng, about) if rng.random() < 0.9 else about
    )


def works(rng: random.Random, _: Path) -> object:
    if rng.random() < 0.6:
        return read_work(json.dumps(mutated_value(rng, WORK)))
    text = mutated(rng, json.dumps(WORK).encode()).decode(errors="replace")
    return read_work(text)


TARGETS = {
    "methods": Target("methods as text, name:key=value", 0.10, method_texts),
    "constructors": Target("methods, constructed", 0.05, method_values),
    "trained": Target("methods with absurd settings, trained", 0.06, trained),
    "specs": Target("specs (TOML)", 0.10, specs),
    "tables": Target("CSV tables, read and dealt", 0.12, tables),
    "audits": Target("CSV tables, audited", 0.08, audits),
    "counts": Target("tables of counts, audited", 0.06, counts),
    "parquet": Target("Parquet", 0.05, parquet),
    "leaf": Target("LEAF (JSON)", 0.05, leaf),
    "idx": Target("IDX", 0.04, idx),
    "arrays": Target("arrays", 0.05, arrays),
    "saved": Target("saved runs, loaded", 0.06, saved),
    "packed": Target("Flower arrays", 0.06, packed),
    "records": Target("Flower records", 0.05, records),
    "reports": Target("Flower data reports", 0.03, reports),
    "works": Target("Flower requests for work", 0.04, works),
}
