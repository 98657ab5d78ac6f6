"""A codebook from all nodes together: the one that the simulator makes of all their rows."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Message
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.errors import RunError, SpecError
from evenhand.flower import Codebook, Columns, client_app, records, server_app
from evenhand.flower.codebook import training_rows
from evenhand.flower.columns.merging import means_of, merged, read_squares, read_told
from evenhand.flower.columns.sums import OwnColumns
from evenhand.models import Linear
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import trusting

COLUMNS = Columns("ill", ("sex",), drop=("note",), test=0.25)
SITES = ("site 1", "site 2", "site 3")  # sums round by the order of names
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "local": eh.LocalSGD(lr=0.1, epochs=1, batch_size=16),
    "seed": 2,
}


def tables(seed: int = 0) -> list[pd.DataFrame]:
    """Three sites that differ in size, in their categories and in what is missing."""
    rng = np.random.default_rng(seed)
    found = []
    for site, rows in enumerate((60, 41, 90)):
        table = pd.DataFrame(
            {
                "age": rng.normal(50 + 10 * site, 9, rows).round(1),
                "dose": np.where(rng.random(rows) < 0.1 * site, np.nan, rng.gamma(2, 1e4, rows)),
                "ward": rng.choice(["B", "A", "C10", "C9"][: 2 + site], rows),
                "scan": rng.integers(0, 2, rows),
                "patient_id": range(1000 * site, 1000 * site + rows),
                "always": 7,
                "day": "2024-01-01",
                "note": [f"text {i}" for i in range(rows)],
                "sex": rng.choice(["f", "m"], rows),
                "ill": rng.choice(["no", "yes"], rows),
            }
        )
        table.loc[rng.integers(0, rows, 2), "ill"] = None
        found.append(table)
    return found


def pooled(parts: list[pd.DataFrame], wanted: Columns = COLUMNS) -> eh.Federation:
    """The simulator's federation of all rows, with the nodes' choice of rows for testing."""
    whole, held_out = [], []
    for site, table in zip(SITES, parts, strict=True):
        labelled = np.flatnonzero(table["ill"].notna())
        train = labelled[training_rows(len(labelled), wanted.test)]
        mask = np.ones(len(table), dtype=bool)
        mask[train] = False
        whole.append(table.assign(site=site))
        held_out.append(mask)
    return eh.Federation.from_frame(
        pd.concat(whole, ignore_index=True),
        client="site",
        label=wanted.label,
        group=list(wanted.group),
        drop=[*wanted.drop, "day"],  # codebooks have no dates
        held_out=np.concatenate(held_out),
    )


def model(codebook: Codebook) -> nn.Module:
    return Linear(codebook.inputs, codebook.outputs, init="zero").double()


class Nodes:
    """Nodes with a table each, and a server that wants a codebook of them."""

    def __init__(self, place: Path, parts: list[pd.DataFrame], policy: str | None = None) -> None:
        self.place = place
        path = trusting(place)
        if policy is not None:
            Path(path).write_text(policy)
        configs = []
        for site, table in zip(SITES, parts, strict=False):
            table.to_csv(place / f"{site}.csv", index=False)
            configs.append(
                {
                    "name": site,
                    "data": str(place / f"{site}.csv"),
                    "state-dir": str(place / f"state {site}"),
                    "policy": path,
                }
            )
        app = client_app(model, lambda config: config["data"], columns=COLUMNS)
        self.grid = InProcessGrid(app, configs)

    def run(self, clients: int = 3, **settings: Any) -> eh.Result:
        found: list[eh.Result] = []
        app = server_app(
            eh.AFL(lr_lambda=0.2),
            model,
            clients=clients,
            out=self.place / "run",
            finished=found.append,
            columns=COLUMNS,
            **SETTINGS | settings,
        )
        app(self.grid, self.grid.contexts[1])
        return found[0]

    @property
    def codebook(self) -> Codebook:
        return Codebook.load(self.place / "run" / "codebook.toml")


def assert_same(codebook: Codebook, federation: eh.Federation) -> None:
    """The same columns, with the same constants to the last bit."""
    encoding = federation.encoding
    assert encoding is not None
    used = [column for column in encoding.columns if column.kind != "left out"]
    assert [
        (column.name, column.kind, column.mean, column.std, column.categories, column.features)
        for column in codebook.columns
    ] == [
        (column.name, column.kind, column.mean, column.std, column.categories, column.features)
        for column in used
    ]
    assert codebook.classes == encoding.label_names


def test_codebook_and_model_are_those_of_the_simulator_to_the_bit(tmp_path: Path) -> None:
    parts = tables()
    federation = pooled(parts)
    nodes = Nodes(tmp_path, parts)
    result = nodes.run()
    codebook = nodes.codebook
    assert_same(codebook, federation)
    assert [column.name for column in codebook.columns] == ["age", "dose", "ward", "scan", "sex"]
    assert codebook.columns[2].categories == ("A", "B", "C10", "C9")
    text = (tmp_path / "run" / "codebook.toml").read_text()
    assert "# patient_id: looks like an identifier: named like one, and no value repeats\n" in text
    assert "# always: constant in the training rows\n" in text
    assert "# day: a date; a codebook has numbers and categories\n" in text
    reference = eh.fit(
        model(codebook), federation, eh.AFL(lr_lambda=0.2), engine="loop", **SETTINGS
    )
    for key, value in reference.params.items():
        assert torch.equal(result.params[key], value), key


@pytest.mark.parametrize("seed", range(5))
def test_sums_of_nodes_give_the_simulators_constants(seed: int) -> None:
    parts = tables(seed)
    own = [OwnColumns(COLUMNS, table, least=1) for table in parts]
    told = [read_told(json.dumps(one.told())) for one in own]
    means = means_of(told)
    squares = [read_squares(json.dumps(one.squares(means)), means) for one in own]
    assert_same(merged(COLUMNS, told, squares), pooled(parts))


def test_messages_have_sums_and_names_and_no_cell(tmp_path: Path) -> None:
    parts = tables()
    nodes = Nodes(tmp_path, parts, 'order = "server"')
    said: list[str] = []

    def watch(node: int, reply: Message) -> list[Message]:
        about = reply.content.config_records["about"]
        said.extend(str(about[name]) for name in ("columns", "squares") if name in about)
        return [reply]

    nodes.grid.spoil = watch
    nodes.run()
    assert len(said) == 6
    first = json.loads(max(said, key=len))
    assert [entry["name"] for entry in first["columns"]] == [
        name for name in parts[0].columns if name not in ("ill", "note")
    ]
    assert set().union(*first["columns"]) == {
        *("name", "kind", "missing", "count", "sum", "names", "many", "unique")
    }
    assert "text 1" not in "".join(said)
    assert "2024" not in "".join(said)


def test_a_rare_category_or_class_is_not_told() -> None:
    rare = pd.DataFrame(
        {
            "ward": ["A"] * 20 + ["B"] * 16 + ["Mrs Smith"] * 4,
            "lab": [1.5, 2.5, None, None] + [None] * 36,
            "test": [0] * 37 + [1] * 3,
            "ill": ["no"] * 20 + ["yes"] * 18 + ["rare"] * 2,
        }
    )
    wanted = Columns("ill", test=0.0)
    told = OwnColumns(wanted, rare, least=5).told()
    assert told["classes"] == ["no", "yes"]
    ward, lab, test = told["columns"]
    assert (ward["names"], ward["count"]) == (["A", "B"], 40)
    assert lab == {"name": "lab", "kind": "nothing", "missing": True}  # two values, and their sum
    assert (test["names"], test["many"]) == ([], True)  # a number to everyone
    assert OwnColumns(wanted, rare, least=1).told()["classes"] == ["no", "rare", "yes"]
    assert OwnColumns(wanted, rare, least=2).told()["columns"][1]["sum"] == 4.0


def test_rows_of_a_class_or_category_that_nobody_was_told_of() -> None:
    codebook = Codebook.parse(
        'label = "ill"\nclasses = ["no", "yes"]\ntest = 0\n[columns]\nward = { values = ["A", "B",'
        ' "C"] }'
    )
    late = pd.DataFrame({"ward": ["A", "new", "C"], "ill": ["no", "yes", "maybe"]})
    found = codebook.federation(late, strict=False)
    assert found.train.x.tolist() == [[1, 0, 0], [0, 0, 0]]
    assert found.train.y.tolist() == [0, 1]
    assert found.encoding is not None
    assert found.encoding.dropped == (("a value of 'ill' that is not a class of the codebook", 1),)


def test_a_node_says_once_how_many_rows_have_no_label(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Nodes(tmp_path, tables()[:1]).run(clients=1)
    said = [line for line in caplog.messages if "excluded" in line]
    assert said == ["excluded 2 rows with no value of 'ill'"]


def test_an_owner_can_keep_columns_to_herself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(tmp_path, tables(), "codebook = false")
    with pytest.raises(TimeoutError, match="only 0 of 3 nodes reported their columns within 0"):
        nodes.run(patience=0.01)
    assert (
        "node 1 does not contribute to the codebook: its owner's policy refuses it: it asks for sums of columns"
        in (caplog.text)
    )
    audit = (tmp_path / "state site 1" / "audit.jsonl").read_text().splitlines()
    assert (json.loads(audit[0])["kind"], json.loads(audit[0])["outcome"]) == ("columns", "refused")


def test_a_run_goes_on_with_its_codebook_and_late_nodes_get_it(tmp_path: Path) -> None:
    parts = tables()
    nodes = Nodes(tmp_path, parts)
    late = nodes.grid.contexts.pop(3)
    nodes.run(clients=2, rounds=2)
    before = (tmp_path / "run" / "codebook.toml").read_bytes()
    nodes.grid.contexts[3] = late
    asked = len(nodes.grid.sent)
    nodes.run(clients=2, rounds=2)
    kinds = [message.metadata.message_type for message in nodes.grid.sent[asked:]]
    assert "query.columns" not in kinds
    assert (tmp_path / "run" / "codebook.toml").read_bytes() == before
    roster = json.loads((tmp_path / "run" / "roster.json").read_text())
    assert [client["name"] for client in roster["clients"]] == list(SITES)
    # site 3 has wards that the first two do not
    assert nodes.codebook.columns[2].categories == ("A", "B", "C10")


def told_of(**changes: Any) -> str:
    entry = {
        "name": "age", "kind": "number", "missing": False, "count": 9, "sum": 3.5, "names": [],
        "many": True, "unique": False,
    }  # fmt: skip
    return json.dumps({"classes": ["no", "yes"], "columns": [entry | changes]})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (told_of(count=-4), "it sent an impossible count for column 'age'"),
        (told_of(count=1.5), "it sent an impossible count for column 'age'"),
        (told_of(count=10**12), "it sent an impossible count for column 'age'"),
        (told_of(sum=float("nan")), "it sent an impossible sum for column 'age'"),
        (told_of(sum=1e300), "it sent an impossible sum for column 'age'"),
        (told_of(sum="3"), "it sent an impossible sum for column 'age'"),
        (told_of(kind="secret"), "it sent columns that cannot be read"),
        (told_of(names=["a"] * 2), "it sent columns that cannot be read"),
        (told_of(names=["x" * 300]), "it sent columns that cannot be read"),
        (told_of(many=1), "it sent columns that cannot be read"),
        (told_of(name=None), "it sent columns that cannot be read"),
        ("[" * 10_000, "it sent columns that cannot be read"),
        ("[]", "it sent columns that cannot be read"),
        ('{"classes": [], "columns": {}}', "it sent columns that cannot be read"),
    ],
)
def test_answers_that_cannot_be_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_told(text)


def test_squares_are_of_the_columns_asked_for_and_not_negative() -> None:
    assert read_squares('{"age": 2}', {"age": 1.0}) == {"age": 2.0}
    for text in ('{"age": -1}', '{"age": NaN}', "{}", '{"age": 1, "dose": 1}', "3"):
        with pytest.raises(ValueError, match="it sent"):
            read_squares(text, {"age": 1.0})


def test_a_liar_has_no_say_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes(tmp_path, tables())

    def lie(node: int, reply: Message) -> list[Message]:
        about = reply.content.config_records["about"]
        if node == 3 and "squares" in about:
            about["squares"] = json.dumps({"age": -1.0, "dose": 1.0})
        return [reply]

    nodes.grid.spoil = lie
    with caplog.at_level(logging.WARNING, logger="evenhand"):
        nodes.run(clients=2)
    assert (
        "node 3 does not contribute to the codebook: it sent impossible sums of squares"
        in caplog.text
    )
    assert nodes.codebook.columns[2].categories == ("A", "B", "C10")


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ([1.0, 2.0, 3.0] * 5, ["x", "y", "x"] * 5, "numbers at some nodes, text at others"),
        ([None] * 15, [None] * 15, "no node has enough values"),
        ([f"t{i}" for i in range(15)], ["a"] * 15, "no category has enough rows"),
        (list(range(60)), [f"v{i}" for i in range(60)], "numbers at some nodes, text at others"),
    ],
)
def test_columns_that_do_not_fit_together_are_left_out(
    first: list[Any], second: list[Any], why: str
) -> None:
    parts = [
        pd.DataFrame(
            {"odd": values, "age": range(len(values)), "ill": (["no", "yes"] * 30)[: len(values)]}
        )
        for values in (first, second)
    ]
    least = 5 if why == "no category has enough rows" else 1
    if least == 5:
        parts[1]["odd"] = [f"u{i}" for i in range(15)]
    wanted = Columns("ill", test=0.0)
    own = [OwnColumns(wanted, part, least=least) for part in parts]
    told = [one.told() for one in own]
    means = means_of(told)
    assert dict(merged(wanted, told, [one.squares(means) for one in own]).left_out) == {"odd": why}


def test_columns_of_some_nodes_alone_are_left_out_and_one_class_is_too_few() -> None:
    both = pd.DataFrame({"age": range(10), "ill": ["no", "yes"] * 5})
    wanted = Columns("ill", test=0.0)
    told = [OwnColumns(wanted, part, 1).told() for part in (both, both.assign(more=range(10)))]
    squares = [{"age": 1.0}, {"age": 1.0}]
    assert dict(merged(wanted, told, squares).left_out) == {
        "more": "not in the table of every node"
    }
    for answer in told:
        answer["classes"] = ["no"]
    with pytest.raises(RunError, match="label 'ill' has 1 classes with enough rows at one node"):
        merged(wanted, told, squares)


def test_a_slip_in_drop_tells_nothing() -> None:
    wanted = Columns("ill", drop=("nte",))
    with pytest.raises(
        RunError, match="drop names 'nte', which is not a column of the node's table"
    ):
        OwnColumns(wanted, tables()[0], 1)


def test_two_sites_of_one_name_cannot_make_a_codebook(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, tables())
    nodes.grid.contexts[2].node_config["name"] = "site 1"
    with pytest.raises(RunError, match="two nodes have the name site 1"):
        nodes.run()


def test_columns_are_kept_in_a_file(tmp_path: Path) -> None:
    wanted = Columns("stage > 2", ("sex", "age > 60"), ('odd "name"',), 0.3, ("<0.5",))
    assert Columns.parse(wanted.to_toml()) == wanted
    path = tmp_path / "columns.toml"
    for text, message in {
        "labl = 'a'": "unknown entry 'labl'; did you mean 'label'?",
        "group = []": "label is missing or not a text",
        "label = 'a'\ndrop = 3": "drop must be a list of columns, got 3",
        "label = 'a'\ntest = 1": "test must be in [0, 1), got 1",
    }.items():
        path.write_text(text)
        with pytest.raises(SpecError) as refused:
            Columns.load(path)
        assert str(refused.value).startswith(f"columns.toml cannot be read as columns: {message}")


def test_an_app_without_columns_says_so(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, tables())
    message = Message(
        records.task_content(eh.messages.Task({}, {}), {"step": 1}),
        dst_node_id=1,
        message_type="query.columns",
    )
    plain = client_app(model, lambda config: {})
    reply = plain(message, nodes.grid.contexts[1])
    assert records.fault_in(reply.content) == (
        "client_app has no columns; give it those of server_app"
    )
    census = Message(
        records.task_content(eh.messages.Task({}, {}), {}),
        dst_node_id=1,
        message_type="query.census",
    )
    reply = nodes.grid.app(census, nodes.grid.contexts[1])
    assert "load_data failed" in records.fault_in(reply.content)
