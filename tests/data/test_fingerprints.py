"""The fingerprint of data: every edit changes it, and nothing else does."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import evenhand as eh
from evenhand.data.earlier import earlier_fingerprint, is_earlier
from evenhand.data.population import Extent, Form, Population

CLIENTS, EACH, FEATURES = 6, 5, 7
Part = dict[str, Any]


def table() -> eh.Federation:
    """Six clients in two teams, two groups, three one-hot columns among the seven."""
    draw = torch.Generator().manual_seed(0)
    count = CLIENTS * EACH
    x = torch.randn(count, FEATURES, generator=draw)
    x[:, :3] = torch.eye(3)[torch.randint(3, (count,), generator=draw)]
    x[0, 3] = 0.0
    offsets = torch.arange(0, count + 1, EACH)
    y, group = (torch.randint(2, (count,), generator=draw) for _ in range(2))
    names = tuple(f"site {client}" for client in range(CLIENTS))
    return eh.Federation(
        train=eh.Part(x, y, offsets, group),
        test=eh.Part(x.flip(0).clone(), y.flip(0), offsets, group.flip(0)),
        teams=torch.tensor([0, 0, 0, 1, 1, 1]),
        team_names=("north", "south"),
        group_names=("f", "m"),
        names=names,
        label_names=("no", "yes"),
    )


def edited(federation: eh.Federation, part: str, **changes: Tensor) -> eh.Federation:
    held = dataclasses.replace(getattr(federation, part), **changes)
    return dataclasses.replace(federation, **{part: held})


def exchanged(values: Tensor, one: int, two: int, dim: int = 0) -> Tensor:
    order = torch.arange(values.shape[dim])
    order[[one, two]] = order[[two, one]]
    return values.index_select(dim, order)


def edits(federation: eh.Federation) -> Iterator[tuple[str, eh.Federation]]:
    for part in ("train", "test"):
        held: Any = getattr(federation, part)
        x, y, group = held.x, held.y, held.group
        for one in range(FEATURES):
            for two in range(one):
                yield (
                    f"columns {one}, {two}",
                    edited(federation, part, x=exchanged(x, one, two, dim=1)),
                )
        for row in range(1, len(x)):
            if not torch.equal(x[row], x[row - 1]):
                yield f"rows {row}", edited(federation, part, x=exchanged(x, row, row - 1))
        for shift in (1, 2):  # the same zeros and ones of every sample, in other columns
            turned = torch.cat([x[:, :3].roll(shift, 1), x[:, 3:]], 1)
            yield f"one-hot by {shift}", edited(federation, part, x=turned)
        for row in range(0, len(x), 2):
            cells = x.clone()
            cells[row, 3], cells[row, 4] = x[row, 4], x[row, 3]
            yield f"cells of {row}", edited(federation, part, x=cells)
            opposite = x.clone()  # the sums over samples and over places stay
            opposite[row, 4] += 1
            opposite[row, 5] -= 1
            yield f"opposite cells of {row}", edited(federation, part, x=opposite)
            for name, codes in (("y", y), ("group", group)):
                other = codes.clone()
                other[row] = 1 - other[row]
                yield f"{name} of {row}", edited(federation, part, **{name: other})
        minus = torch.where(x == 0, -0.0, x)
        yield "sign of zero", edited(federation, part, x=minus)
        yield "one bit", edited(federation, part, x=torch.nextafter(x, torch.tensor(9.0)))
        yield "type", edited(federation, part, y=y.int())
        for client in range(1, CLIENTS):
            offsets = held.offsets.clone()
            offsets[client] += 1
            yield f"offset {client}", edited(federation, part, offsets=offsets)
        wide = x.reshape(len(x), FEATURES, 1)
        if part == "train":
            both = edited(dataclasses.replace(federation, test=None), part, x=wide)
            yield "shape", both
            yield "no test part", dataclasses.replace(federation, test=None)
            yield "scale", edited(federation, part, x=eh.View(x, None, torch.ones(()), x[0] * 0))
            yield "val", dataclasses.replace(federation, test=None, val=federation.test)
    names = federation.names or ()
    yield "a name", dataclasses.replace(federation, names=("other", *names[1:]))
    yield "names", dataclasses.replace(federation, names=names[::-1])
    yield "no names", dataclasses.replace(federation, names=None)
    yield "groups", dataclasses.replace(federation, group_names=("m", "f"))
    yield "teams' names", dataclasses.replace(federation, team_names=("south", "north"))
    yield "teams", dataclasses.replace(federation, teams=torch.tensor([0, 0, 1, 0, 1, 1]))
    yield "labels", dataclasses.replace(federation, label_names=("yes", "no"))


def test_every_edit_changes_the_fingerprint_of_a_federation() -> None:
    federation = table()
    found = {federation.fingerprint(): "as it was"}
    tried = 0
    for what, other in edits(federation):
        tried += 1
        assert found.setdefault(other.fingerprint(), what) == what, f"{what} is not seen"
    assert tried >= 208
    assert len(found) == tried + 1
    assert table().fingerprint() == federation.fingerprint()


def test_how_a_table_was_encoded_is_part_of_its_fingerprint() -> None:
    def read(**changes: Any) -> str:
        rows = {
            "site": list("aabbccdd"),
            "age": [30.0, 50, 40, 60, 20, 35, 70, 10],
            "blood": ["A", "B", "0", "B", "A", "0", "A", "B"],
            "cost": [1.0, 2, 3, 4, 5, 6, 7, 9],
            **changes,
        }
        frame = pd.DataFrame(rows)
        return eh.Federation.from_frame(frame, client="site", label="cost").fingerprint()

    assert read() == read()
    others = (
        {"age": [60.0, 100, 80, 120, 40, 70, 140, 20]},  # the same numbers once they are scaled
        {"blood": ["A", "C", "0", "C", "A", "0", "A", "C"]},
        {"cost": [2.0, 4, 6, 8, 10, 12, 14, 18]},
    )
    assert len({read(), *(read(**other) for other in others)}) == 4


def test_equal_data_have_equal_fingerprints_wherever_they_lie() -> None:
    federation = table()
    x = federation.train.x
    assert isinstance(x, Tensor)
    turned = x.t().contiguous().t()
    assert not turned.is_contiguous()
    wider = torch.cat([torch.ones(3, FEATURES), x])
    rows = torch.arange(3, 3 + len(x))
    expected = federation.fingerprint()
    for same in (turned, eh.View(x), eh.View(wider, rows)):
        assert edited(federation, "train", x=same).fingerprint() == expected  # type: ignore[arg-type]


def test_the_fingerprint_of_the_first_clients_is_that_of_the_data_before_others_joined() -> None:
    whole = table()
    few = whole.first(Extent(4, 2, 2))
    alone = dataclasses.replace(
        whole,
        train=whole.train.first(4),
        test=whole.test.first(4),  # type: ignore[union-attr]
        teams=torch.tensor([0, 0, 0, 1]),
        names=(whole.names or ())[:4],
    )
    assert few.fingerprint() == alone.fingerprint() != whole.fingerprint()


def test_every_change_of_what_a_server_knows_changes_the_fingerprint_of_a_population() -> None:
    counts = {"train": torch.tensor([[2, 3], [4, 5], [6, 1]]), "test": torch.ones(3, 2).long()}
    given: dict[str, Any] = {
        "counts": counts,
        "form": Form((4,), torch.float32, (), torch.int64),
        "teams": torch.tensor([0, 1, 0]),
        "team_names": ("x", "y"),
        "group_names": ("f", "m"),
        "names": ("a", "b", "c"),
        "label_names": ("no", "yes"),
    }
    changes = [
        {"counts": {**counts, "train": counts["train"].flip(1)}},
        {"counts": {**counts, "train": counts["train"].flip(0)}},
        # the sums, and the sums by place, of what earlier versions looked at
        {"counts": {**counts, "train": torch.tensor([[3, 2], [3, 6], [6, 1]])}},
        {"counts": {"train": counts["train"]}},
        {"counts": {"train": counts["train"], "val": counts["test"]}},
        {"form": Form((2, 2), torch.float32, (), torch.int64)},
        {"form": Form((4,), torch.float64, (), torch.int64)},
        {"form": Form((4,), torch.float32, (1,), torch.int64)},
        {"form": Form((4,), torch.float32, (), torch.float32)},
        {"teams": torch.tensor([1, 0, 0])},
        {"team_names": ("y", "x")},
        {"group_names": ("m", "f")},
        {"names": ("a", "c", "b")},
        {"names": None},
        {"label_names": ()},
    ]
    found = {Population(**given | change).fingerprint() for change in [{}, *changes]}
    assert len(found) == 1 + len(changes)
    assert Population(**given).fingerprint() == Population(**given).fingerprint()


PROGRAM = """
import sys, torch
import evenhand as eh
torch.set_num_threads(int(sys.argv[1]))
x = torch.randn(50_000, 5, generator=torch.Generator().manual_seed(1))
part = eh.Part(x, (x[:, 0] > 0).long(), torch.arange(0, 50_001, 500))
print(eh.Federation(part, names=tuple(map(str, range(100)))).fingerprint())
"""


def test_threads_and_hash_seeds_change_nothing(tmp_path: Path) -> None:
    found = set()
    for threads, seed in ((1, 0), (8, 1)):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-c", PROGRAM, str(threads)]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        found.add(done.stdout.strip())
    assert len(found) == 1
    assert next(iter(found)).startswith("sha256:")


def test_fingerprints_of_earlier_versions_are_told_by_their_form_and_still_known() -> None:
    federation = table()
    before = earlier_fingerprint(federation)
    assert is_earlier(before)
    assert not is_earlier(federation.fingerprint())
    # taken before fingerprints were of bytes
    assert before == "830e1ec5a97130d0ad59d155e83fcd2f690012a1732e1d9ed8c4d2372092a2e0"
