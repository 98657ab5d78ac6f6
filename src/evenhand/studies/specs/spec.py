"""The spec of a run: a dataclass and its TOML file."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand.algorithms.naming import Table, label_of
from evenhand.errors import SpecError
from evenhand.studies.specs import building
from evenhand.studies.specs.building import built
from evenhand.studies.specs.folding import check_folds
from evenhand.studies.specs.keys import check_kinds, is_a
from evenhand.studies.specs.labels import FILE_NAME, check_labels
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.selection import Selection
from evenhand.studies.specs.suited import suitable_methods, suitable_model
from evenhand.training.settings import Settings
from evenhand.training.stopping import EarlyStopping

if TYPE_CHECKING:
    from torch import nn

    from evenhand.data.federation import Federation
    from evenhand.local import LocalSolver
    from evenhand.training.callbacks import Callback

# what a spec says in its own way, or cannot say: functions belong to Python
NOT_PLAIN = {"local", "cohort", "device", "metrics", "output"}
SETTINGS = {field.name for field in dataclasses.fields(Settings)} - NOT_PLAIN
# gains and losses are measured against these; local-only training is never the chosen method
REFERENCES = ("fedavg", "localonly")
NODES = "nodes"  # the name of data that stay with the nodes of a real federation


@dataclass(frozen=True)
class Spec:
    """A run: one federation, one model, several methods. With ``seeds``, a comparison: one such run
    per seed.

    A comparison with ``select`` is a sweep: its methods are points to choose from on validation
    data.
    """

    name: str = "run"
    rounds: int = 100
    seed: int = 0
    seeds: tuple[int, ...] = ()
    resplit: bool = False  # whether each seed partitions and splits the data differently
    folds: int = 0  # of a cross-validation: each seed tests on another fold
    loss: str = "cross_entropy"
    engine: str = "auto"
    device: str = "auto"
    precision: str = "fp32"  # of products: "fp32", "tf32" or "bf16"
    normalisation: str | None = None  # of BatchNorm: "frozen" or "local", see evenhand.Settings
    weights: str = "data"
    eval_every: int | None = None
    checkpoint_every: int | None = None
    # share of each client's training samples to set aside if the data have no validation split
    validation: float = 0.0
    track_weights: bool = True  # whether to record effective weights at every evaluation
    evaluate: str = "after training"  # or "with training", see evenhand.Settings
    keep_predictions: bool = (
        False  # whether each method gets predictions.csv, a row per test sample
    )
    data: Table = field(default_factory=lambda: {"name": "digits"})
    model: Table = field(default_factory=lambda: {"name": "mlp"})
    local: Table = field(default_factory=lambda: {"lr": 0.1, "epochs": 1, "batch_size": 32})
    cohort: Table = field(default_factory=lambda: {"name": "full"})
    # what else to evaluate: "mypackage:function" by name
    metrics: Table = field(default_factory=dict)
    select: Table = field(default_factory=dict)  # the arguments of Selection
    # the arguments of Tuning; {} to compare methods with their given settings
    tune: Table = field(default_factory=dict)
    # the arguments of EarlyStopping; {} to train all rounds
    early_stopping: Table = field(default_factory=dict)
    methods: tuple[Method, ...] = ()

    @classmethod
    def default(cls) -> Spec:
        """The spec that runs without arguments."""
        return cls.from_toml(
            (resources.files("evenhand.studies") / "default.toml").read_text(encoding="utf-8"),
            "the default spec",
        )

    @classmethod
    def for_data(cls, name: str) -> Spec:
        """A spec with "auto" for everything that depends on the data."""
        local = {"lr": 0.1, "epochs": 1, "batch_size": "auto"}
        return cls(
            name=plain_name(name),
            loss="auto",
            model={"name": "auto"},
            local=local,
            methods=(Method("auto", "auto"),),
        )

    @classmethod
    def load(cls, path: Path) -> Spec:
        """Read a spec file."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(
                f"cannot read {path}:"
                f" {error.strerror if isinstance(error, OSError) else 'it is not text'}"
            ) from error
        return cls.from_toml(text, str(path))

    @classmethod
    def from_toml(cls, text: str, source: str) -> Spec:
        """Parse TOML text; errors name ``source``."""
        try:
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # too many digits, or brackets
            raise SpecError(f"{source} is not valid TOML: {error}") from error
        return cls.from_table(table, source)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], source: str) -> Spec:
        """A spec from the values of its TOML file; errors name ``source``."""
        table = dict(table)
        check_kinds(table, source)
        if "seeds" in table:
            table["seeds"] = tuple(table["seeds"])
        methods = table.pop("methods", [])
        for entry in methods:
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                raise SpecError(
                    f'{source}: every [[methods]] entry needs a name, such as name = "qffl"'
                )
        return cls(**table).with_methods(methods)

    def with_methods(self, entries: Iterable[Mapping[str, Any]]) -> Spec:
        """The same run with other methods, each a table with "name", hyper-parameters and
        optionally "label" and "local"."""
        methods: list[Method] = []
        taken: set[str] = set()
        for method in map(Method.from_table, entries):
            label, count = method.label, 1
            while label in taken:
                count += 1
                label = f"{label_of(method.name)}-{count}"
            taken.add(label)
            methods.append(dataclasses.replace(method, label=label))
        return dataclasses.replace(self, methods=tuple(methods))

    def settled(self, federation: Federation) -> Spec:
        """The same spec with every "auto" replaced to suit these data: loss, model, batch size,
        methods."""
        loss, model, local, methods = self.loss, self.model, self.local, self.methods
        if loss == "auto":
            loss = "mse" if federation.train.y.is_floating_point() else "cross_entropy"
        if model.get("name") == "auto":
            model = {"name": suitable_model(federation)}
        if local.get("batch_size") == "auto":
            # an epoch has enough steps even with larger batches, which are faster
            large = len(federation.train.x) > 2000 * federation.clients
            local = {**local, "batch_size": 512 if large else 32}
        if any(method.name == "auto" for method in methods):
            chosen = [
                {"name": name, **settings}
                for name, settings in suitable_methods(federation).items()
            ]
            methods = Spec().with_methods(chosen).methods
        return dataclasses.replace(self, loss=loss, model=model, local=local, methods=methods)

    def with_reference(self, *names: str) -> Spec:
        """The same spec with these reference methods in front, unless they are there already."""
        present = {method.name for method in self.methods}
        added = (Method(name, name) for name in names if name not in present)
        return dataclasses.replace(self, methods=(*added, *self.methods))

    @property
    def deals_anew(self) -> bool:
        """Whether data differ between seeds."""
        return self.resplit or self.folds > 0

    def for_seed(self, seed: int) -> Spec:
        """The run of one seed of a comparison. It has the clients and samples of the first seed,
        unless the comparison resplits the data or has folds."""
        data = dict(self.data)
        if self.folds:
            if seed not in self.seeds:
                raise SpecError(
                    f"seed {seed} is not among the seeds of the folds, {list(self.seeds)}"
                )
            fold = [self.seeds.index(seed) + 1, self.folds]
            data["split"] = {**data.get("split", {}), "fold": fold}
        if self.seeds and not self.resplit:
            data.setdefault("seed", self.seeds[0])
            if isinstance(data.get("shift"), dict):
                data["shift"] = {"seed": self.seeds[0], **data["shift"]}
        return dataclasses.replace(
            self, seed=seed, seeds=(), resplit=False, folds=0, select={}, tune={}, data=data
        )

    def runs_before(self, seed: int, method: Method, finished: int | None = None) -> int:
        """How many runs of a comparison come before this one; ``finished``, if given."""
        if finished is not None:
            return finished
        labels = [known.label for known in self.methods]
        seeds = self.seeds or (self.seed,)
        return seeds.index(seed) * len(labels) + labels.index(method.label)

    def to_toml(self) -> str:
        """TOML text that parses to an equal spec."""
        import tomli_w

        table = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "methods"
        }
        unset = {
            "seeds": (),
            "resplit": False,
            "folds": 0,
            "validation": 0,
            "track_weights": True,
            "evaluate": "after training",
            "metrics": {},
            "keep_predictions": False,
            "select": {},
            "tune": {},
            "early_stopping": {},
        }
        table = {
            key: value
            for key, value in table.items()
            if value is not None and not (key in unset and value == unset[key])
        }
        table["methods"] = [method.table() for method in self.methods]
        return tomli_w.dumps(table)

    def __post_init__(self) -> None:
        if not FILE_NAME.fullmatch(self.name):
            raise SpecError(f"name must be a plain file name, got {self.name!r}")
        if not all(is_a(seed, int) and seed >= 0 for seed in self.seeds) or len(
            set(self.seeds)
        ) < len(self.seeds):
            raise SpecError(f"seeds must be different whole numbers >= 0, got {list(self.seeds)}")
        if self.resplit and "seed" in self.data:
            raise SpecError(
                "resplit splits the data differently with each seed; leave out seed ="
                f" {self.data['seed']!r} of the data"
            )
        split = self.data.get("split", {})
        check_folds(self.folds, self.seeds, self.resplit, self.select, split)
        if not 0 <= self.validation < 1:
            raise SpecError(
                f"validation must be in [0, 1), got {self.validation!r}; it is a share of each"
                " client's training samples"
            )
        if self.select:
            self.build_selection()
        self.build_callbacks()
        if self.tune and (self.deals_anew or self.select):
            raise SpecError(
                "tune needs one split for all seeds, so that no test sample is tuned on; leave out"
                " tune, or folds, resplit and select"
            )
        check_labels(self.methods)

    def build_data(self) -> Federation:
        """The federation."""
        federation = building.build_data(self.data, self.seed, self.data_seed)
        return federation.with_validation(self.validation, self.data_seed)

    @property
    def data_seed(self) -> int:
        """The seed of the partition and the splits."""
        seed: int = self.data.get("seed", self.seed)
        return seed

    def build_selection(self) -> Selection:
        """How a sweep chooses."""
        selection: Selection = built("select", Selection, self.select)
        return selection

    def build_callbacks(self) -> list[Callback]:
        """The callbacks that the spec asks for."""
        table = self.early_stopping
        return [built("early_stopping", EarlyStopping, table)] if table else []

    def build_model(self, federation: Federation) -> nn.Module:
        """The module, its initial parameters drawn with the run's seed."""
        return building.build_model(self.model, federation, self.seed, self.data, self.loss)

    def build_local(self, method: Method) -> LocalSolver:
        """The local solver of one method."""
        return building.build_local(self.local, method.local)

    def settings(self, without: Collection[str] = ()) -> Table:
        """The fields of :class:`evenhand.Settings` that all methods share, except the local solver
        and those in ``without``."""
        build: dict[str, Callable[[], Any]] = {
            **{name: partial(getattr, self, name) for name in SETTINGS},
            "cohort": partial(building.build_cohort, self.cohort),
            "device": partial(building.build_device, self.device),
            "metrics": partial(building.build_metrics, self.metrics),
        }
        return {name: made() for name, made in build.items() if name not in without}


def plain_name(name: str) -> str:
    """A name that can serve as a file name."""
    return re.sub(r"[^\w.=+ -]+", "-", name).lstrip(".=+ -") or "run"
