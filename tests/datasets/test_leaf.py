"""LEAF's JSON format, and the small data sets of numbers: Vehicle, Landmine, FEMNIST as LEAF makes
it."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from evenhand.data.leaf import read_leaf
from evenhand.data.text import ALPHABET
from evenhand.data.views import View
from evenhand.datasets.loaders.femnist import femnist
from evenhand.datasets.loaders.femnist import read as read_femnist
from evenhand.datasets.loaders.landmine import landmine
from evenhand.datasets.loaders.landmine import parse as parse_landmine
from evenhand.datasets.loaders.landmine import read as read_landmine
from evenhand.datasets.loaders.leaf import leaf
from evenhand.datasets.loaders.leaf_shakespeare import leaf_shakespeare
from evenhand.datasets.loaders.vehicle import read as read_vehicle
from evenhand.datasets.loaders.vehicle import standardised, vehicle
from evenhand.errors import DataError

Users = dict[str, tuple[list[Any], list[Any]]]
VEHICLE_SIZES = [
    59,
    8,
    20,
    156,
    17,
    13,
    43,
    25,
    71,
    388,
    21,
    13,
    534,
    84,
    147,
    36,
    7,
    13,
    15,
    130,
    20,
    30,
    10,
]


def real(dataset: str, name: str) -> Path:
    path = Path(os.environ.get("EVENHAND_DATA", "nowhere")) / dataset / name
    if not path.is_file():
        pytest.skip(f"{dataset}/{name} is not in $EVENHAND_DATA")
    return path.parent.parent


def table(users: Users, **more: Any) -> dict[str, Any]:
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": data,
        **more,
    }


def write(path: Path, content: dict[str, Any] | str) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def complaint(kind: type[Exception], function: Callable[[], Any]) -> str:
    """The error's text, which is one line."""
    with pytest.raises(kind) as caught:
        function()
    assert "\n" not in str(caught.value)
    return str(caught.value)


ANN: Users = {"ann": ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0, 1, 0])}
BOB: Users = {"bob": ([[7.0, 8.0]], [1])}


# layouts


@pytest.mark.parametrize("base", ["", "data"])
@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_train_and_test_folders_make_the_official_split(
    tmp_path: Path, base: str, ending: str
) -> None:
    write(tmp_path / base / "train" / f"b{ending}", table(BOB))
    write(tmp_path / base / "train" / f"a{ending}", table(ANN))
    write(tmp_path / base / "test" / f"t{ending}", table({"bob": ([[9.0, 10.0]], [0])}))
    pool = read_leaf(tmp_path)
    assert pool.client_names == ("ann", "bob")
    assert pool.held_out is not None
    assert pool.held_out.tolist() == [False] * 4 + [True]
    assert pool.client is not None
    assert pool.client.tolist() == [0, 0, 0, 1, 1]

    federation = leaf(tmp_path)  # the files' own split
    assert federation.train.sizes.tolist() == [3, 1]
    assert federation.test is not None
    assert federation.test.sizes.tolist() == [0, 1]  # ann has no test data, which is allowed
    assert federation.train.x[:].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert federation.test.x[:].tolist() == [[9, 10]]
    assert federation.test.y.tolist() == [0]


@pytest.mark.parametrize(
    "place",
    [
        "all_data/all_data.json",
        "data/all_data/all_data.json",
        "data/rem_user_data/x.json",
        "any.json.gz",
    ],
)
def test_data_before_the_split_have_no_official_one(tmp_path: Path, place: str) -> None:
    path = write(tmp_path / place, table(ANN | BOB))
    for given in (tmp_path, path):
        pool = read_leaf(given)
        assert pool.held_out is None
        assert pool.x[:].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
        assert pool.y.tolist() == [0, 1, 0, 1]


def test_the_last_step_of_the_scripts_is_read(tmp_path: Path) -> None:
    write(tmp_path / "data" / "all_data" / "all.json", table(ANN | BOB))
    write(tmp_path / "data" / "rem_user_data" / "all_keep_2.json", table(ANN))
    assert read_leaf(tmp_path).client_names == ("ann",)


def test_a_split_by_shares_takes_the_place_of_the_official_one(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.json", table(ANN))
    write(tmp_path / "test" / "a.json", table({"ann": ([[9.0, 10.0]], [0])}))
    federation = leaf(tmp_path, split={"test": 0.5, "stratify": False})
    assert federation.test is not None
    assert (len(federation.train.x), len(federation.test.x)) == (2, 2)


# users


def test_least_leaves_out_users_and_teams_that_lost_everyone(tmp_path: Path) -> None:
    path = write(
        tmp_path / "all.json",
        table(ANN | BOB | {"cy": ([[0.0, 0.0]] * 2, [1, 1])}, hierarchies=["x", "y", "z"]),
    )
    pool = read_leaf(path, least=2)
    assert (pool.client_names, pool.team_names) == (("ann", "cy"), ("x", "z"))
    assert pool.client is not None
    assert pool.team is not None
    assert (pool.client.tolist(), pool.team.tolist()) == ([0, 0, 0, 1, 1], [0, 1])
    assert "no client has 9 samples (the largest has 3)" in complaint(
        ValueError, lambda: read_leaf(path, least=9)
    )


def test_hierarchies_become_teams(tmp_path: Path) -> None:
    path = write(
        tmp_path / "all.json",
        table(ANN | BOB | {"cy": ([[0.0, 0.0]], [1])}, hierarchies=["north", "south", "north"]),
    )
    federation = leaf(path)
    assert federation.team_names == ("north", "south")
    assert federation.teams is not None
    assert federation.teams.tolist() == [0, 1, 0]


def test_entries_that_leafs_split_leaves_of_dropped_users_do_no_harm(tmp_path: Path) -> None:
    content = table(
        {"ann": ANN["ann"], "gone": ([], []), "bob": BOB["bob"]}, hierarchies=["x", "wrong", "y"]
    )
    # hierarchies keep the entry of the one who is gone
    content["users"], content["num_samples"] = ["ann", "bob"], [3, 1]
    pool = read_leaf(write(tmp_path / "all.json", content))
    assert pool.client_names == ("ann", "bob")
    assert pool.team_names == ("x", "y")


def test_users_with_test_data_only_are_refused_or_dropped(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.json", table(ANN))
    path = write(tmp_path / "test" / "a.json", table({"ann": ([[0.0, 0.0]], [1])} | BOB))
    text = complaint(DataError, lambda: read_leaf(tmp_path))
    assert f"{path}, user 'bob'" in text
    assert "-t sample" in text
    pool = read_leaf(tmp_path, strangers="drop")
    assert pool.client_names == ("ann",)
    assert len(pool) == 4


def test_a_user_in_two_files_is_refused(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.json", table(ANN)), write(tmp_path / "b.json", table(ANN))
    assert f"{second}, user 'ann': this user is also in {first}" in complaint(
        DataError, lambda: read_leaf(tmp_path)
    )


# labels


@pytest.mark.parametrize(
    ("labels", "codes", "names"),
    [
        ([2, 0, 1], [2, 0, 1], ()),
        ([[1], [-1], [1]], [1, 0, 1], ("-1", "1")),
        ([1.0, 0.0, 1.0], [1, 0, 1], ()),
        (["cat", "ant", "cat"], [1, 0, 1], ("ant", "cat")),
        ([0.5, 1.0, -2.0], [0.5, 1.0, -2.0], ()),
    ],
)
def test_labels_become_classes_or_targets(
    tmp_path: Path, labels: list[Any], codes: list[float], names: tuple[str, ...]
) -> None:
    pool = read_leaf(write(tmp_path / "a.json", table({"ann": (ANN["ann"][0], labels)})))
    assert pool.y.tolist() == codes
    assert pool.y.dtype == (torch.float32 if 0.5 in labels else torch.int64)
    assert pool.label_names == names


# what is wrong, with file, user and row


def broken(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    content = json.loads(json.dumps(table(ANN | BOB)))
    change(content)
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"users": [', "is not JSON: Expecting value"),
        ("[1]", "must hold an object with users"),
        (broken(lambda t: t.pop("users")), "has no 'users'"),
        (broken(lambda t: t.pop("user_data")), "has no 'user_data'"),
        (broken(lambda t: t.update(num_samples=3)), "has no 'num_samples', or it is not a list"),
        (broken(lambda t: t["num_samples"].append(3)), "has 2 users and 3 num_samples"),
        (
            broken(lambda t: t["num_samples"].__setitem__(1, 5)),
            "user 'bob': num_samples is 5, but there are 1 samples",
        ),
        (broken(lambda t: t["user_data"].pop("bob")), "user 'bob': user_data has no lists x and y"),
        (
            broken(lambda t: t["user_data"]["bob"].pop("y")),
            "user 'bob': user_data has no lists x and y",
        ),
        (
            broken(lambda t: t["user_data"].update(eve=t["user_data"]["bob"])),
            "user 'eve': has samples but is not listed",
        ),
        (broken(lambda t: t["user_data"]["ann"]["y"].pop()), "user 'ann': 3 x but 2 y"),
        (
            broken(lambda t: t["user_data"]["ann"]["x"][1].append(0.0)),
            "user 'ann', row 1: x has shape [3], but row 0 has shape [2]",
        ),
        (
            broken(lambda t: t["user_data"]["ann"]["x"][2].__setitem__(0, float("nan"))),
            "user 'ann', row 2: x has a value that is not fin",
        ),
        (
            broken(lambda t: t["user_data"]["ann"]["x"][2].__setitem__(0, 1e300)),
            "user 'ann', row 2: x has a value that is not finite",
        ),
        (
            broken(lambda t: t["user_data"]["ann"]["x"][1].__setitem__(0, None)),
            "user 'ann', row 1: x must be numbers",
        ),
        (
            broken(lambda t: t["user_data"]["bob"].update(x=[[]])),
            "user 'bob', row 0: x must be numbers",
        ),
        (
            broken(lambda t: t["user_data"]["ann"]["x"][1].__setitem__(0, "1")),
            "user 'ann', row 1: x must be numbers",
        ),
        (
            broken(lambda t: t["user_data"]["bob"].update(x=[[1.0]])),
            "user 'bob', row 0: samples of shape [1], but user 'ann' has [2]",
        ),
        (
            broken(lambda t: t["user_data"]["ann"]["y"].__setitem__(1, None)),
            "user 'ann', row 1: y must be a number or a text, got None",
        ),
        (
            broken(lambda t: t["user_data"]["ann"]["y"].__setitem__(1, float("inf"))),
            "user 'ann', row 1: y is not finite",
        ),
        (
            broken(lambda t: t["user_data"]["bob"]["y"].__setitem__(0, "no")),
            "user 'bob', row 0: y is 'no', but the first label is 0",
        ),
        (broken(lambda t: t.update(hierarchies=["x"])), "hierarchies that do not match"),
        (
            broken(
                lambda t: t.update(num_samples=[3, 0]) or t["user_data"]["bob"].update(x=[], y=[])
            ),
            "user 'bob': no samples",
        ),
    ],
)
def test_damage_is_named_with_file_user_and_row(
    tmp_path: Path, content: dict[str, Any] | str, message: str
) -> None:
    path = write(tmp_path / "all.json", content)
    text = complaint(DataError, lambda: read_leaf(path, "numbers"))
    assert str(path) in text
    assert message in text


def test_a_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "all.json.gz", table(ANN | BOB))
    path.write_bytes(path.read_bytes()[:-20])
    assert str(path) in complaint(DataError, lambda: read_leaf(path))
    path.write_bytes(b"nonsense")
    assert str(path) in complaint(DataError, lambda: read_leaf(path))


def test_folders_without_data_are_refused(tmp_path: Path) -> None:
    assert "has no LEAF data" in complaint(DataError, lambda: read_leaf(tmp_path))
    assert "does not exist" in complaint(DataError, lambda: read_leaf(tmp_path / "nothing"))
    write(tmp_path / "train" / "a.json", table({}))
    assert "no user has training samples" in complaint(DataError, lambda: read_leaf(tmp_path))


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", table(ANN))
    assert "kind must be" in complaint(ValueError, lambda: read_leaf(path, "pictures"))
    assert "strangers must be" in complaint(ValueError, lambda: read_leaf(path, strangers="keep"))
    assert "least must be a whole number" in complaint(ValueError, lambda: read_leaf(path, least=0))


# FEMNIST


def picture(seed: int) -> list[float]:
    return (np.random.default_rng(seed).integers(0, 256, 784) / 255).tolist()


def test_femnist_is_read_as_bytes(tmp_path: Path) -> None:
    users: Users = {
        "f0001_41": ([picture(1), picture(2)], [0, 61]),
        "f0002_17": ([picture(3), picture(4)], [10, 36]),
    }
    write(
        tmp_path / "femnist" / "data" / "train" / "all_data_0_niid_0_keep_0_train_9.json",
        table(users),
    )
    write(
        tmp_path / "femnist" / "data" / "test" / "all_data_0_niid_0_keep_0_test_9.json",
        table({"f0002_17": ([picture(5)], [35])}),
    )
    federation = femnist(root=tmp_path)
    assert federation.names == ("f0001_41", "f0002_17")
    assert isinstance(federation.train.x, View)
    assert federation.train.x.source.dtype == torch.uint8
    assert federation.train.x.shape == (4, 1, 28, 28)
    torch.testing.assert_close(
        federation.train.x[:].flatten(1), torch.tensor([picture(seed) for seed in (1, 2, 3, 4)])
    )
    assert [federation.label_names[label] for label in federation.train.y] == ["0", "z", "A", "a"]
    assert federation.test is not None
    assert federation.label_names[int(federation.test.y[0])] == "Z"
    assert len(federation.label_names) == 62


def test_pixels_between_shades_stay_numbers(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.json", table({"ann": ([picture(0)], [0]), "bob": ([[0.1234] * 784], [1])})
    )
    pool = read_leaf(path, "images")
    assert isinstance(pool.x, torch.Tensor)
    torch.testing.assert_close(pool.x.flatten(1), torch.tensor([picture(0), [0.1234] * 784]))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            [picture(0), [*picture(1)[:-1], 1.5]],
            [0, 1],
            "user 'ann', row 1: a pixel is not in [0, 1]",
        ),
        (
            [picture(0)[:-1]],
            [0],
            "user 'ann', row 0: samples of shape [783] are not the pixels of a square image",
        ),
        (
            [picture(0), picture(1)],
            [3, 62],
            "user 'ann', row 1: unknown label 62; the classes are 0 to 61",
        ),
        ([picture(0)], ["a"], "user 'ann', row 0: unknown label 'a'"),
    ],
)
def test_wrong_femnist_is_named(tmp_path: Path, x: list[Any], y: list[Any], message: str) -> None:
    write(tmp_path / "femnist" / "train" / "a.json", table({"ann": (x, y)}))
    assert message in complaint(DataError, lambda: read_femnist(tmp_path))


@pytest.mark.parametrize(
    ("name", "function"), [("femnist", femnist), ("leaf_shakespeare", leaf_shakespeare)]
)
def test_missing_leaf_data_say_how_to_make_them(
    tmp_path: Path, name: str, function: Callable[..., Any]
) -> None:
    text = complaint(DataError, lambda: function(root=tmp_path))
    assert str(tmp_path / name) in text
    assert "./preprocess.sh -s niid" in text
    assert f"data/{name.removeprefix('leaf_')}" in text


# Shakespeare as LEAF makes it


def test_leafs_shakespeare_is_read_as_letters(tmp_path: Path) -> None:
    text = "Now is the winter of our discontent made glorious summer by this sun of York; and all"
    windows: Users = {
        "RICHARD": ([text[i : i + 80] for i in range(5)], [text[i + 80] for i in range(5)])
    }
    write(
        tmp_path / "leaf_shakespeare" / "train" / "all.json",
        table(windows, hierarchies=["RICHARD_III"]),
    )
    federation = leaf_shakespeare(root=tmp_path, split={"test": 0.0})
    assert federation.train.x.shape == (5, 80)
    assert "".join(ALPHABET[code] for code in federation.train.x[:][2].tolist()) == text[2:82]
    assert [federation.label_names[label] for label in federation.train.y] == [
        "d",
        "space",
        "a",
        "l",
        "l",
    ]
    assert federation.team_names == ("RICHARD_III",)
    assert read_leaf(tmp_path / "leaf_shakespeare").x.dtype == torch.uint8  # "auto" sees characters


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            ["a" * 80, "b" * 79 + "é"],
            ["c", "d"],
            "user 'A', row 1: character 'é' (number 79) is not in LEAF's alphabet",
        ),
        (["a" * 80, "b" * 79], ["c", "d"], "user 'A', row 1: x must be a text of 80 characters"),
        (["a" * 80, "b" * 80], ["c", "dd"], "user 'A', row 1: y must be one character, got 'dd'"),
        (
            ["a" * 80, "b" * 80],
            ["c", "{"],
            "user 'A', row 1: character '{' (number 0) is not in LEAF's alphabet",
        ),
        (["a" * 80, 7], ["c", "d"], "user 'A', row 1: x must be a text of 80 characters, got 7"),
    ],
)
def test_unknown_characters_are_named(
    tmp_path: Path, x: list[Any], y: list[Any], message: str
) -> None:
    path = write(tmp_path / "a.json", table({"A": (x, y)}))
    text = complaint(DataError, lambda: read_leaf(path, "characters"))
    assert f"{path}, " in text
    assert message in text


# Vehicle


def test_vehicle_has_the_published_counts() -> None:
    root = real("vehicle", "vehicle_ditto_train.json.gz")
    pool = read_vehicle(root)
    assert pool.client is not None
    assert torch.bincount(pool.client).tolist() == VEHICLE_SIZES
    assert (sum(VEHICLE_SIZES), pool.x.shape) == (1860, (1860, 100))
    assert pool.client_names == tuple(f"f_{number:05}" for number in range(23))
    assert pool.label_names == ("-1", "1")
    share = torch.bincount(pool.client, weights=pool.y.double()) / torch.tensor(VEHICLE_SIZES)
    assert round(float(pool.y.double().mean()), 2) == 0.55
    assert (round(float(share.min()), 2), round(float(share.max()), 2)) == (0.23, 0.80)
    values = pool.x[:]
    assert (round(float(values.min()), 1), round(float(values.max()), 1)) == (-7.4, 23.7)
    assert len(values.unique(dim=0)) == 1860


def cells(values: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    made = np.empty((len(values), 1), dtype=object)
    for row, value in enumerate(values):
        made[row, 0] = value
    return made


def test_vehicle_is_read_whole_where_its_matlab_file_is_there(tmp_path: Path) -> None:
    """Cells X and Y, one entry for each sensor; features are standardised sensor by sensor."""
    (tmp_path / "vehicle").mkdir()
    path, rng = tmp_path / "vehicle" / "vehicle.mat", np.random.default_rng(0)
    x = [rng.normal(5 * sensor, 1 + sensor, (size, 3)) for sensor, size in enumerate((4, 6, 2))]
    x[1][:, 2] = 7  # constant
    y = [rng.choice([-1.0, 1.0], (len(one), 1)) for one in x]
    savemat(path, {"X": cells(x), "Y": cells(y)})
    pool = read_vehicle(tmp_path)
    assert pool.client is not None
    assert torch.bincount(pool.client).tolist() == [4, 6, 2]
    assert pool.y.tolist() == [int(label > 0) for label in np.concatenate(y).ravel()]
    by_hand = (x[0] - x[0].mean(0)) / x[0].std(0)
    torch.testing.assert_close(pool.x[:4], torch.from_numpy(by_hand).float())
    assert pool.x[4:10, 2].tolist() == [0.0] * 6
    assert read_vehicle(tmp_path, least=4).client_names == ("f_00000", "f_00001")
    federation = vehicle(root=tmp_path, least=4, split={"test": 0.5}, standardise="train")
    assert federation.clients == 2

    savemat(path, {"X": cells(x), "Y": cells([*y[:2], y[2][:1]])})
    with pytest.raises(DataError, match=r"vehicle\.mat, sensor 2: X has shape \(2, 3\)"):
        read_vehicle(tmp_path)
    savemat(path, {"X": cells(x)})
    with pytest.raises(DataError, match="'Y' is missing"):
        read_vehicle(tmp_path)
    path.write_bytes(b"no MATLAB file")
    with pytest.raises(DataError, match=r"vehicle\.mat is not the file of MOCHA's code"):
        read_vehicle(tmp_path)


def test_vehicle_leaves_out_small_sensors() -> None:
    root = real("vehicle", "vehicle_ditto_train.json.gz")
    federation = vehicle(root=root, least=15)
    assert federation.clients == sum(size >= 15 for size in VEHICLE_SIZES)
    assert federation.test is not None
    assert (federation.train.sizes + federation.test.sizes).tolist() == [
        size for size in VEHICLE_SIZES if size >= 15
    ]


def test_vehicle_standardised_by_training_samples() -> None:
    root = real("vehicle", "vehicle_ditto_train.json.gz")
    given, federation = (
        vehicle(root=root, standardise=way, split={"val": 0.1, "test": 0.2})
        for way in ("given", "train")
    )
    for client in (3, 9, 12):
        x, _, _ = federation.train.client(client)
        torch.testing.assert_close(x.mean(0), torch.zeros(100), atol=1e-5, rtol=0)
        torch.testing.assert_close(x.std(0, correction=0), torch.ones(100), atol=1e-4, rtol=0)
        before, _, _ = given.train.client(client)
        for part in ("val", "test"):
            (old, y, _) = getattr(given, part).client(client)
            (new, same, _) = getattr(federation, part).client(client)
            assert torch.equal(y, same)
            torch.testing.assert_close(
                new, (old - before.mean(0)) / before.std(0, correction=0), atol=1e-4, rtol=1e-4
            )


def test_standardising_forgets_earlier_scales_and_keeps_constants_finite(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 4))
    x[:, 3] = 0.1
    scaled = x * [2.0, 0.5, 3.0, 1.0] + [1.0, -4.0, 0.0, 0.0]
    federations = []
    for name, values in (("raw", x), ("scaled", scaled)):
        path = write(tmp_path / f"{name}.json", table({"ann": (values.tolist(), [0, 1] * 15)}))
        federations.append(standardised(leaf(path, split={"test": 0.3})))
    raw, again = federations
    torch.testing.assert_close(raw.train.x[:], again.train.x[:], atol=1e-5, rtol=1e-5)
    assert raw.test is not None
    assert again.test is not None
    torch.testing.assert_close(raw.test.x[:], again.test.x[:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(raw.test.x[:][:, 3], torch.zeros(len(raw.test.x)), atol=1e-6, rtol=0)


def test_missing_vehicle_says_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_OFFLINE", "1")
    text = complaint(DataError, lambda: read_vehicle(tmp_path))
    assert str(tmp_path / "vehicle" / "vehicle_ditto_train.json") in text
    assert "litian96/ditto" in text


def test_vehicle_that_was_changed_is_refused(tmp_path: Path) -> None:
    good = (
        real("vehicle", "vehicle_ditto_train.json.gz") / "vehicle" / "vehicle_ditto_train.json.gz"
    )
    bad = tmp_path / "vehicle" / good.name
    bad.parent.mkdir()
    content = gzip.decompress(good.read_bytes())
    for damaged in (
        good.read_bytes()[:100_000],
        gzip.compress(content.replace(b"[-1]", b"[-2]", 1), 1),
    ):
        bad.write_bytes(damaged)
        assert str(bad) in complaint(DataError, lambda: read_vehicle(tmp_path))
    assert "standardise must be" in complaint(
        ValueError, lambda: vehicle(root=tmp_path, standardise="all")
    )


# Landmine


def test_landmine_has_the_published_counts() -> None:
    pool = read_landmine(real("landmine", "landmine_mocha_small.npz"))
    assert pool.client is not None
    sizes = torch.bincount(pool.client)
    assert (len(sizes), int(sizes.min()), int(sizes.max()), pool.x.shape) == (29, 44, 69, (1464, 9))
    assert round(float(pool.y.double().mean()), 2) == 0.06
    federation = landmine(root=real("landmine", "landmine_mocha_small.npz"), split={"test": 0.25})
    assert federation.clients == 29


def arrays(**changed: Any) -> bytes:
    plain = {
        "X": np.ones((4, 9), np.float32),
        "y": np.array([1, -1, 1, -1]),
        "task": np.array([0, 0, 1, 1], np.uint8),
    }
    buffer = io.BytesIO()
    np.savez(
        buffer, **{key: value for key, value in (plain | changed).items() if value is not None}
    )
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"nonsense", "is damaged"),
        (arrays()[:200], "is damaged"),
        (arrays(task=None), "is damaged"),
        (
            arrays(X=np.where(np.arange(36).reshape(4, 9) == 20, np.nan, 1.0)),
            ", row 2: X is not finite",
        ),
        (arrays(y=np.array([1, -1, 1, 0])), ", row 3: y is neither -1 nor 1"),
        (arrays(task=np.array([0, 0, 2, 2])), "task 1 has no samples"),
        (arrays(y=np.array([1, -1, 1])), "they must have the same number of rows"),
    ],
)
def test_damaged_landmine_is_named(content: bytes, message: str) -> None:
    text = complaint(DataError, lambda: parse_landmine(Path("land.npz"), content))
    assert text.startswith("land.npz")
    assert message in text


def test_landmine_that_was_changed_is_refused(tmp_path: Path) -> None:
    good = real("landmine", "landmine_mocha_small.npz") / "landmine" / "landmine_mocha_small.npz"
    (tmp_path / "landmine").mkdir()
    bad = shutil.copy(good, tmp_path / "landmine")
    content = bytearray(good.read_bytes())
    content[1000] ^= 1
    Path(bad).write_bytes(content)
    assert str(bad) in complaint(DataError, lambda: read_landmine(tmp_path))
