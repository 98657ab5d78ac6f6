"""The catalogue of data sets: what each is, where it comes from, and which files it needs."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

from evenhand.data.storage.file import File
from evenhand.datasets.entry import EMBEDDED, GENERATED, Entry, Need
from evenhand.errors import DataError


def _own(
    name: str,
    module: str = "",
    constant: str = "FILES",
    instead: str = "",
    also: tuple[str, ...] = (),
    megabytes: float = 0,
    pattern: str = "",
) -> Callable[[], tuple[Need, ...]]:
    """Return the files that a data set's module declares in ``constant``, and possible
    replacements.

    Replacements are declared in ``instead``, or named by a ``pattern``.
    """

    def needs() -> tuple[Need, ...]:
        home = importlib.import_module(f"evenhand.datasets.loaders.{module or name}")
        other = getattr(home, instead) if instead else ()
        others = () if not other else ((other,),) if isinstance(other, File) else (other,)
        names = getattr(home, pattern) if pattern else ""
        return (Need(name, getattr(home, constant), also, others, names, megabytes),)

    return needs


def _mnist_writers() -> tuple[Need, ...]:
    images = _own("mnist_writers", "mnist", also=("mnist",), megabytes=12)
    writers = _own("mnist_writers", "mnist", "TABLES", instead="ARCHIVE", megabytes=1)
    return *images(), *writers()


def _glove() -> Need:
    from evenhand.data.text import CUT, glove_file

    return Need("glove", (glove_file(100),), instead=((CUT,),), megabytes=862)


def _leaf(name: str, settings: str) -> Need:
    origin = name.removeprefix("leaf_")
    scripts = (
        f"get github.com/TalwalkarLab/leaf and run ./preprocess.sh {settings} in its data/{origin}"
    )
    hint = f"{scripts}, then put train/ and test/ into the folder {name}"
    return Need(name, (File("train/data.json", hint=hint),), pattern="**/*.json*")


_ENTRIES = (
    Entry(
        "digits",
        "digits, 8 x 8; some clients' images are rotated",
        "20 (2 to 60)",
        "1,797",
        "UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998), CC BY 4.0;"
        " comes with scikit-learn",
        EMBEDDED,
    ),
    Entry(
        "synthetic",
        "a different linear rule on each client",
        "30",
        "about 14,000",
        "Li et al., 2020 (FedProx)",
        GENERATED,
    ),
    Entry(
        "synthetic_minimax",
        "two groups that want different predictors",
        "40",
        "1,600",
        "Papadaki et al., 2022 (FedMinMax)",
        GENERATED,
    ),
    Entry(
        "population",
        "very many clients with few samples each",
        "1,000,000",
        "3,000,000",
        "made for evenhand, to test scaling",
        GENERATED,
    ),
    Entry(
        "fashion_mnist",
        "images of ten kinds of clothes, 28 x 28",
        "by partition",
        "60,000 + 10,000",
        "Xiao, Rasul and Vollgraf, 2017 (Zalando); MIT licence",
        needs=_own("fashion_mnist", also=("/usr/share/dataset-fashion-mnist",), megabytes=31),
    ),
    Entry(
        "mnist",
        "handwritten digits, 28 x 28",
        "by partition",
        "60,000 + 10,000",
        "LeCun, Cortes and Burges, 1998; CC BY-SA 3.0",
        needs=_own("mnist", also=("mnist_writers",), megabytes=12),
    ),
    Entry(
        "mnist_writers",
        "MNIST by writer; teams: staff, students",
        "539 writers",
        "60,000 + 10,000",
        "MNIST; writers from QMNIST (Yadav and Bottou, 2019), BSD licence",
        needs=_mnist_writers,
    ),
    Entry(
        "emnist",
        "digits and letters, 62 classes, 28 x 28",
        "by partition",
        "697,932 + 116,323",
        "Cohen et al., 2017, from NIST Special Database 19 (US government)",
        needs=_own("emnist", instead="SUBSET", also=("emnist/gzip",), megabytes=562),
    ),
    Entry(
        "cifar10",
        "colour images of ten kinds of things, 32 x 32",
        "by partition",
        "50,000 + 10,000",
        "Krizhevsky, 2009; no licence stated",
        needs=_own("cifar10", "cifar", "CIFAR10_FILES", megabytes=170),
    ),
    Entry(
        "cifar100",
        "colour images of 100 kinds of things, 32 x 32",
        "by partition",
        "50,000 + 10,000",
        "Krizhevsky, 2009; no licence stated",
        needs=_own("cifar100", "cifar", "CIFAR100_FILES", megabytes=169),
    ),
    Entry(
        "cinic10",
        "CIFAR-10 enlarged from ImageNet, 32 x 32",
        "by partition",
        "90,000 + 90,000 + 90,000",
        "Darlow et al., 2018, from CIFAR-10 and ImageNet; CC BY 4.0",
        needs=_own("cinic10", pattern="UNPACKED", megabytes=688),
    ),
    Entry(
        "vehicle",
        "kinds of vehicles from sensors along a road",
        "23 sensors",
        "1,860 (43,695 with vehicle.mat)",
        "Duarte and Hu, 2004; a training split of Ditto's code, MIT licence",
        needs=_own("vehicle", instead="WHOLE", megabytes=4),
    ),
    Entry(
        "landmine",
        "29 small tasks with 9 features",
        "29 tasks",
        "1,464",
        "the toy file of MOCHA's code (Smith et al., 2017); Apache licence 2.0",
        needs=_own("landmine"),
    ),
    Entry(
        "shakespeare",
        "next character of a play; teams: sex of the role",
        "1,153 roles",
        "4,215,098",
        "the Moby text, public domain; sex of roles from ShakeDraCor",
        needs=_own("shakespeare"),
    ),
    Entry(
        "leaf_shakespeare",
        "next character of a play, in LEAF's format",
        "about 1,129 roles",
        "about 4,226,158",
        "LEAF (Caldas et al., 2018); public domain",
        needs=lambda: (_leaf("leaf_shakespeare", "-s niid --sf 1.0 -k 0 -t sample"),),
    ),
    Entry(
        "femnist",
        "digits and letters by writer, in LEAF's format",
        "about 3,550 writers",
        "about 805,000",
        "LEAF (Caldas et al., 2018), from NIST Special Database 19 (US government)",
        needs=lambda: (_leaf("femnist", "-s niid --sf 1.0 -k 0 -t sample"),),
    ),
    Entry(
        "sent140",
        "tweets, negative or positive, in LEAF's format",
        "by account",
        "by LEAF's settings",
        "Go, Bhayani and Huang, 2009; word vectors: GloVe (Pennington et al., 2014), PDDL 1.0",
        needs=lambda: (_leaf("sent140", "-s niid --sf 0.4 -k 30 -t sample"), _glove()),
    ),
    Entry(
        "stackoverflow",
        "next word of a question or answer, by user",
        "20 of 342,477 users",
        "by user",
        "TensorFlow Federated, from Stack Overflow's data dump; CC BY-SA 3.0",
        needs=_own("stackoverflow"),
    ),
    Entry(
        "airline_sentiment",
        "tweets to airlines: negative, neutral or positive",
        "6 airlines",
        "14,640",
        "CrowdFlower, 2015; CC BY-NC-SA 4.0; word vectors: GloVe (Pennington et al., 2014),"
        " PDDL 1.0",
        needs=lambda: (*_own("airline_sentiment", instead="KAGGLE")(), _glove()),
    ),
    Entry(
        "adult",
        "income above 50,000 dollars; groups: sex, race",
        "2 (PhD or not)",
        "32,561 + 16,281",
        "UCI Adult (Becker and Kohavi, 1996); CC BY 4.0",
        needs=_own("adult", megabytes=6),
    ),
    Entry(
        "acs_income",
        "income above 50,000 dollars; groups: sex, race",
        "35 states",
        "171,185",
        "American Community Survey (US Census Bureau), task of Ding et al., 2021",
        needs=_own("acs_income"),
    ),
    Entry(
        "compas",
        "new charges within two years; groups: race, sex",
        "by partition",
        "6,172",
        "ProPublica, 2016; no licence stated",
        needs=_own("compas", instead="SHORT", megabytes=2.5),
    ),
    Entry(
        "heart_disease",
        "heart disease; groups: sex",
        "4 hospitals",
        "920",
        "UCI Heart Disease (Janosi et al., 1989); CC BY 4.0",
        needs=_own("heart_disease", instead="JOINED", megabytes=0.1),
    ),
)

CATALOGUE: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})


def entry(name: str) -> Entry:
    """Return a data set by its name, or raise a DataError that suggests the closest one."""
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f"did you mean {near[0]}?" if near else "evenhand data list shows all"
        raise DataError(f"there is no data set {name!r}; {hint}")
    return CATALOGUE[name]
