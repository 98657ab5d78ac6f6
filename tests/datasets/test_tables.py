"""The data sets that are tables: counts, groups, and what damaged files are told."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import evenhand as eh
from evenhand.datasets.loaders import acs_income as acs_module
from evenhand.datasets.loaders import adult as adult_module
from evenhand.datasets.loaders import compas as compas_module
from evenhand.datasets.loaders import heart_disease as heart_module
from evenhand.datasets.loaders.acs_income import acs_income
from evenhand.datasets.loaders.adult import adult
from evenhand.datasets.loaders.compas import compas
from evenhand.datasets.loaders.heart_disease import heart_disease
from evenhand.errors import DataError

ROOT = Path(os.environ["EVENHAND_DATA"]) if os.environ.get("EVENHAND_DATA") else None


def needs(dataset: str) -> pytest.MarkDecorator:
    absent = ROOT is None or not (ROOT / dataset).is_dir()
    return pytest.mark.skipif(absent, reason=f"the files of {dataset} are not in EVENHAND_DATA")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_OFFLINE", "1")


def counts(codes: torch.Tensor | None, names: tuple[str, ...]) -> dict[str, int]:
    assert codes is not None
    return dict(zip(names, torch.bincount(codes, minlength=len(names)).tolist(), strict=True))


def both(fed: eh.Federation, field: str) -> torch.Tensor:
    assert fed.test is not None
    return torch.cat([getattr(fed.train, field), getattr(fed.test, field)])


# Adult


@needs("adult")
def test_adult_has_the_published_counts() -> None:
    fed = adult()
    assert fed.test is not None
    assert fed.names == ("PhD", "no PhD")
    assert fed.train.sizes.tolist() == [413, 32148]
    assert fed.test.sizes.tolist() == [181, 16100]
    assert counts(fed.train.y, fed.label_names) == {"<=50K": 24720, ">50K": 7841}
    assert counts(fed.train.group, fed.group_names) == {"Female": 10771, "Male": 21790}
    race = adult(group="race")
    assert counts(race.train.group, race.group_names) == {
        "Amer-Indian-Eskimo": 311,
        "Asian-Pac-Islander": 1039,
        "Black": 3124,
        "Other": 271,
        "White": 27816,
    }
    rows = adult_module.read()
    incomplete = rows.isna().any(axis=1)
    assert (int(incomplete[~rows["held_out"]].sum()), int(incomplete[rows["held_out"]].sum())) == (
        2399,
        1221,
    )


@needs("adult")
def test_adult_features_are_all_but_the_sampling_weight_or_the_categories_alone() -> None:
    everything, text = adult().encoding, adult(features="categorical", group=["sex", "race"])
    assert everything is not None
    assert text.encoding is not None
    assert "fnlwgt" not in everything.features
    assert {"age", "capital-gain", "sex=Male"} <= set(everything.features)
    # 16 + 7 + 6 + 5 categories without missing values, sex in one column, and 8, 14 and 41 with
    # "missing"
    assert len(text.encoding.features) == 16 + 7 + 6 + 5 + 1 + 9 + 15 + 42
    assert len(text.group_names) == 10
    assert "Female & Black" in text.group_names
    assert "fnlwgt" in str(adult(drop=()).encoding)


@needs("adult")
def test_adult_can_have_other_clients() -> None:
    fed = adult(client="workclass")
    assert fed.clients == 8
    assert fed.encoding is not None
    assert fed.encoding.dropped == (("no value of workclass", 2799),)
    assert not any(feature.startswith("workclass") for feature in fed.encoding.features)
    assert adult("dirichlet", clients=5, seed=3).clients == 5
    with pytest.raises(ValueError, match="features must be"):
        adult(features="numbers")


ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male,"
    " 2174, 0, 40, United-States, <=50K"
)


def adult_file(second: str) -> bytes:
    return f"{ADULT_ROW}\n{second}\n".encode()


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            ADULT_ROW.rpartition(",")[0],
            "adult.data line 2 has 14 fields, but the table has 15 columns",
        ),
        (ADULT_ROW + ", 1", "adult.data line 2 has 16 fields, but the table has 15 columns"),
        (
            ADULT_ROW.replace("<=50K", "=50K"),
            "adult.data line 2: income is =50K; it must be one of <=50K, >50K",
        ),
        (ADULT_ROW.replace("39", "NaN"), "adult.data line 2: age is nan, not a number"),
        (ADULT_ROW.replace("39", "old"), "adult.data line 2: age is old, not a number"),
        (ADULT_ROW.replace("77516", "inf"), "adult.data line 2: fnlwgt is inf, not a number"),
    ],
)
def test_damaged_rows_of_adult_are_named(second: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        adult_module.table(adult_file(second), "adult.data")


def test_the_comment_and_the_dots_of_adults_test_file_are_understood() -> None:
    rows = adult_module.table(
        b"|1x3 Cross validator\n" + adult_file(ADULT_ROW + ".") + b"\n", "adult.test"
    )
    assert rows["income"].tolist() == ["<=50K", "<=50K"]
    assert rows["workclass"].tolist() == ["State-gov", "State-gov"]
    with pytest.raises(DataError, match=r"adult.test line 3: age is old"):
        adult_module.table(
            b"|1x3 Cross validator\n" + adult_file("old" + ADULT_ROW[2:] + "."), "adult.test"
        )


def test_another_version_of_adult_is_refused_by_its_checksum(tmp_path: Path) -> None:
    (tmp_path / "adult").mkdir()
    for name in ("adult.data", "adult.test"):
        (tmp_path / "adult" / name).write_bytes(adult_file(ADULT_ROW))
    with pytest.raises(DataError, match=r"adult.data is damaged or another version"):
        adult(root=tmp_path)


# Heart disease


@needs("heart_disease")
def test_heart_disease_has_the_published_counts() -> None:
    fed = heart_disease()
    assert fed.test is not None
    assert fed.names == ("cleveland", "hungarian", "switzerland", "va")
    assert (fed.train.sizes + fed.test.sizes).tolist() == [303, 294, 123, 200]
    assert fed.label_names == ("healthy", "disease")
    ill = [int(fed.train.client(k)[1].sum() + fed.test.client(k)[1].sum()) for k in range(4)]
    assert [
        count / size for count, size in zip(ill, (303, 294, 123, 200), strict=True)
    ] == pytest.approx([0.46, 0.36, 0.93, 0.75], abs=0.0051)
    assert counts(both(fed, "group"), fed.group_names) == {"female": 194, "male": 726}
    assert int(both(fed, "y").sum()) == 920 - 411


@needs("heart_disease")
def test_flambys_cleaning_leaves_740_rows() -> None:
    fed = heart_disease(cleaning="flamby")
    assert fed.test is not None
    assert (fed.train.sizes + fed.test.sizes).tolist() == [303, 261, 46, 130]
    assert fed.encoding is not None
    assert sum(column.missing for column in fed.encoding.columns) == 0
    assert not {"slope", "ca", "thal"} & {column.name for column in fed.encoding.columns}


@needs("heart_disease")
def test_a_cholesterol_of_zero_is_missing() -> None:
    fed = heart_disease(split={"test": 0.0})
    assert fed.encoding is not None
    missing = {column.name: column.missing for column in fed.encoding.columns}
    assert missing["chol"] == 30 + 172
    assert missing["trestbps"] == 59 + 1
    assert (missing["ca"], missing["thal"], missing["slope"], missing["fbs"]) == (611, 486, 309, 90)


@needs("heart_disease")
def test_the_four_files_of_uci_give_the_same_as_the_joined_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = heart_module.read()
    folder = tmp_path / "heart_disease"
    folder.mkdir()
    files = []
    for file, hospital in zip(heart_module.FILES, heart_module.CHECKSUMS, strict=True):
        content = (
            rows[rows["hospital"] == hospital][list(heart_module.COLUMNS)]
            .to_csv(index=False, header=False, na_rep="?")
            .encode()
        )
        (folder / file.name).write_bytes(content)
        files.append(
            type(file)(file.name, file.url, None, f"sha256:{hashlib.sha256(content).hexdigest()}")
        )
    # rewritten numbers: other bytes than UCI's
    monkeypatch.setattr(heart_module, "FILES", tuple(files))
    pd.testing.assert_frame_equal(heart_module.read(tmp_path), rows)
    (folder / "processed.va.data").write_bytes(b"1,2\n")
    with pytest.raises(DataError, match=r"processed.va.data is damaged or another version"):
        heart_disease(root=tmp_path)


HEART = "hospital," + ",".join(heart_module.COLUMNS)
HEART_ROW = "va,63,1,1,145,233,1,2,150,0,2.3,3,0,6,0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            f"{HEART}\n{HEART_ROW}\n{HEART_ROW},1\n",
            "heart_disease.csv line 3 has 16 fields, but the table has 15 columns",
        ),
        (
            f"{HEART}\n{HEART_ROW}\n{HEART_ROW[:-2]}\n",
            "heart_disease.csv line 3 has 14 fields, but the table has 15 columns",
        ),
        (
            f"{HEART}\n{HEART_ROW}\n{HEART_ROW[:-1]}7\n",
            "heart_disease.csv line 3: target is 7; it must be one of 0, 1, 2, 3, 4",
        ),
        (f"{HEART}\n{HEART_ROW}\n{HEART_ROW[:-1]}\n", "heart_disease.csv line 3: target is nan"),
        (
            f"{HEART}\n{HEART_ROW.replace('va', 'ulm')}\n",
            "heart_disease.csv line 2: hospital is ulm; it must be one of cleveland",
        ),
        (
            f"{HEART}\n{HEART_ROW.replace('145', 'high')}\n",
            "heart_disease.csv line 2: trestbps is high, not a number",
        ),
        (
            f"{HEART.replace('chol', 'cholesterol')}\n{HEART_ROW}\n",
            "heart_disease.csv has no column 'chol'",
        ),
        ("", "heart_disease.csv is empty"),
    ],
)
def test_damaged_rows_of_heart_disease_are_named(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "heart_disease").mkdir()
    (tmp_path / "heart_disease" / "heart_disease.csv").write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        heart_disease(root=tmp_path)
    assert len(str(caught.value).splitlines()) == 1


# COMPAS


@needs("compas")
def test_compas_has_the_published_counts() -> None:
    fed = compas()
    assert fed.clients == 10
    assert counts(both(fed, "group"), fed.group_names) == {
        "African-American": 3175,
        "Asian": 31,
        "Caucasian": 2103,
        "Hispanic": 509,
        "Native American": 11,
        "Other": 343,
    }
    whole = compas(filter=None, group="sex")
    assert counts(both(whole, "group"), whole.group_names) == {"Female": 1395, "Male": 5819}
    assert len(both(whole, "y")) == 7214
    assert float(both(whole, "y").double().mean()) == pytest.approx(0.451, abs=5e-4)
    assert whole.label_names == ("no new charge", "new charge")


@needs("compas")
def test_compas_features_do_not_give_the_answer_away() -> None:
    encoding = compas(drop=["race", "sex"], group=["race", "sex"]).encoding
    assert encoding is not None
    used = {column.name for column in encoding.columns}
    assert used == {
        "age",
        "juv_fel_count",
        "juv_misd_count",
        "juv_other_count",
        "priors_count",
        "c_charge_degree",
    }
    assert compas(group=None).clients == 10
    with pytest.raises(ValueError, match="filter must be"):
        compas(filter="some")


COMPAS = ",".join([*compas_module.FEATURES, *compas_module.FILTERED_BY, compas_module.LABEL])
COMPAS_ROW = "Male,69,Other,0,0,0,0,F,-1.0,0,Low,0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            f"{COMPAS}\n{COMPAS_ROW}\n{COMPAS_ROW},9\n",
            "line 3 has 13 fields, but the table has 12 columns",
        ),
        (f"{COMPAS}\n{COMPAS_ROW[:-1]}2\n", "line 2: two_year_recid is 2; it must be one of 0, 1"),
        (f"{COMPAS}\n{COMPAS_ROW.replace('69', '')}\n", "line 2: age is nan, not a number"),
        (
            f"{COMPAS.replace('race', 'origin')}\n{COMPAS_ROW}\n",
            "has no column 'race'; it must be ProPublica's two-year table",
        ),
    ],
)
def test_damaged_rows_of_compas_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "compas").mkdir()
    (tmp_path / "compas" / "compas_two_years.csv.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(DataError, match=message):
        compas(root=tmp_path)


@needs("compas")
def test_a_cut_file_of_compas_is_told(tmp_path: Path) -> None:
    assert ROOT is not None
    (tmp_path / "compas").mkdir()
    whole = (ROOT / "compas" / "compas_two_years.csv.gz").read_bytes()
    (tmp_path / "compas" / "compas_two_years.csv.gz").write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"compas_two_years.csv.gz is truncated"):
        compas(root=tmp_path)


def test_propublicas_file_with_its_repeated_columns_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = (
        COMPAS.replace("priors_count", "decile_score,priors_count") + ",decile_score,priors_count"
    )
    row = COMPAS_ROW.split(",")
    content = "\n".join([header, ",".join([*row[:6], "3", *row[6:], "3", "0"]), ""]).encode()
    file = compas_module.FILES[0]
    # not the published bytes
    monkeypatch.setattr(compas_module, "FILES", (type(file)(file.name, file.url),))
    (tmp_path / "compas").mkdir()
    (tmp_path / "compas" / file.name).write_bytes(content)
    rows = compas_module.read(tmp_path)
    assert rows.iloc[0].tolist() == ["Male", 69, "Other", 0, 0, 0, 0, "F", -1.0, 0, "Low", 0]


def test_propublicas_filter_keeps_the_rows_it_should() -> None:
    rows = pd.DataFrame(
        {
            "days_b_screening_arrest": [0, 30, 31, -30, -31, np.nan, 0, 0, 0],
            "is_recid": [0, 1, 0, 1, 0, 0, -1, 0, 0],
            "c_charge_degree": ["F", "M", "F", "F", "F", "F", "F", "O", "F"],
            "score_text": ["Low", "High", "Low", "Low", "Low", "Low", "Low", "Low", None],
        }
    )
    assert compas_module.propublica(rows).index.tolist() == [0, 1, 3]


# ACS income


@needs("acs_income")
def test_acs_income_has_the_published_counts() -> None:
    fed = acs_income()
    assert fed.test is not None
    sizes = fed.train.sizes + fed.test.sizes
    assert (fed.clients, int(sizes.sum()), int(sizes.min()), int(sizes.max())) == (
        35,
        171185,
        3064,
        5000,
    )
    assert counts(both(fed, "group"), fed.group_names) == {"female": 81952, "male": 89233}
    assert float(both(fed, "y").double().mean()) == pytest.approx(0.357, abs=5e-4)
    share = {
        name: float(torch.cat([fed.train.client(k)[1], fed.test.client(k)[1]]).double().mean())
        for k, name in enumerate(fed.names or ())
    }
    assert (min(share, key=share.__getitem__), round(min(share.values()), 2)) == ("SD", 0.27)
    assert (max(share, key=share.__getitem__), round(max(share.values()), 2)) == ("NJ", 0.50)


@needs("acs_income")
def test_acs_income_by_race_and_with_codes_as_numbers() -> None:
    fed = acs_income(group="RAC1P", codes="numbers", clients=3)
    assert fed.clients == 3
    assert fed.encoding is not None
    assert {column.name: column.kind for column in fed.encoding.columns}["OCCP"] == "number"
    rows = acs_module.read()
    assert rows["RAC1P"].value_counts().to_dict() == {
        1: 140479,
        2: 11731,
        5: 8966,
        3: 7174,
        4: 2835,
    }
    with pytest.raises(ValueError, match="codes must be"):
        acs_income(codes="all")


def test_occupations_and_places_of_birth_fall_into_families() -> None:
    families = acs_module._family(
        pd.Series([10, 440, 500, 4255, 4330, 9830]), acs_module.OCCUPATIONS
    )
    assert families.tolist() == [
        "managers",
        "managers",
        "business",
        "cleaning",
        "personal care",
        "military",
    ]
    origins = acs_module._family(pd.Series([1, 56, 72, 110, 303, 554]), acs_module.ORIGINS)
    assert origins.tolist() == [
        "United States",
        "United States",
        "US islands",
        "Europe",
        "Americas",
        "Oceania",
    ]


def acs_arrays() -> dict[str, Any]:
    arrays: dict[str, Any] = {name: np.ones(4, dtype=np.int64) for name in acs_module.COLUMNS}
    return {
        **arrays,
        "label": np.array([0, 1, 0, 1]),
        "state": np.array([0, 0, 1, 1]),
        "state_names": np.array(["AL", "NJ"]),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": np.array([0, 1, 2, 1])}, "row 3: label is 2; it must be 0 to 1"),
        ({"state": np.array([0, 0, 1, 5])}, "row 4: state is 5; it must be 0 to 1"),
        ({"AGEP": np.array([1.0, np.nan, 3.0, 4.0])}, "row 2: AGEP is nan; it must be 0 to 99"),
        ({"SEX": np.ones(3)}, "SEX has shape .3., but label has 4 entries"),
        ({"WKHP": None}, "is incomplete: WKHP"),
    ],
)
def test_damaged_arrays_of_acs_income_are_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    (tmp_path / "acs_income").mkdir()
    arrays = {
        name: values for name, values in {**acs_arrays(), **change}.items() if values is not None
    }
    path = tmp_path / "acs_income" / acs_module.FILES[0].name
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message) as caught:
        acs_income(root=tmp_path)
    assert str(caught.value).startswith(str(path))
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match="is damaged"):
        acs_income(root=tmp_path)


# files that are not there


@pytest.mark.parametrize(
    ("load", "what"),
    [
        (adult, r"adult.data is missing; download https://archive.ics.uci.edu"),
        (
            heart_disease,
            r"processed.cleveland.data is missing; download https://archive.ics.uci.edu",
        ),
        (
            compas,
            (
                r"compas-scores-two-years.csv is missing; download"
                r" https://raw.githubusercontent.com/propublica"
            ),
        ),
        (
            acs_income,
            r"acs_income_2018_35states.npz is missing and cannot be downloaded .* folktables",
        ),
    ],
)
def test_a_missing_file_says_what_to_fetch(tmp_path: Path, load: Any, what: str) -> None:
    with pytest.raises(DataError, match=what):
        load(root=tmp_path)


# the whole way


@needs("heart_disease")
def test_a_logistic_model_on_four_hospitals_beats_the_majority_in_both_sexes() -> None:
    fed = heart_disease()
    module = torch.nn.Linear(fed.train.x.shape[1], 2)
    result = eh.fit(
        module, fed, eh.FedAvg(), rounds=20, local=eh.LocalSGD(lr=0.05, epochs=1, batch_size=32)
    )
    scores = result.scores.set_index("name")
    assert scores.loc["female", "accuracy"] > 0.8
    assert scores.loc["male", "accuracy"] > 0.7
