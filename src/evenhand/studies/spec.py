"""What to run, as plain values: a dataclass and its TOML file."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand.algorithms import ALGORITHMS, Averaged
from evenhand.algorithms.naming import RESERVED as RESERVED_KEYS
from evenhand.algorithms.naming import algorithm_table as algorithm_table
from evenhand.algorithms.naming import imported, label_of
from evenhand.errors import SpecError, unknown

if TYPE_CHECKING:
    from torch import nn

    from evenhand.algorithm import Algorithm
    from evenhand.cohort import Cohort
    from evenhand.data.federation import Federation
    from evenhand.local import LocalSGD
    from evenhand.studies.selection import Selection

Table = dict[str, Any]

KINDS: dict[str, type] = {
    **dict.fromkeys(("name", "loss", "engine", "device", "precision", "weights", "evaluate"), str),
    **dict.fromkeys(("rounds", "seed", "eval_every", "checkpoint_every"), int),
    **dict.fromkeys(("data", "model", "local", "cohort", "select"), dict),
    **dict.fromkeys(("methods", "seeds"), list),
    **dict.fromkeys(("resplit", "track_weights"), bool),
    "validation": float,
}
OWN_METHOD = re.compile(r"\s*([^\W\d]\w*(?:\.\w+)*:[^\W\d]\w*)\s*(?::(.*))?")
FILE_NAME = re.compile(r"[\w][\w.=+ -]*")
RESERVED = ("spec.toml", "about.json", "encoding.json", "samples.safetensors")
SETTINGS = (  # plain fields of evenhand.Settings
    "loss",
    "rounds",
    "seed",
    "engine",
    "weights",
    "eval_every",
    "checkpoint_every",
    "track_weights",
    "precision",
    "evaluate",
)
# gains and losses are counted against them; training alone is there to compare with, not to choose
REFERENCES = ("fedavg", "localonly")
NODES = "nodes"  # the name of data that stay with the nodes of a real federation
KIND_NAMES = {
    dict: "a table",
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}
# methods with a setting that Averaged(inner) has taken the place of, and its values
WITH_OUTPUT, OUTPUTS = ("afl", "fafl", "fedminmax"), ("last", "average")
LISTS = {"methods": "a list of tables", "seeds": "a list of whole numbers"}


@dataclass(frozen=True)
class Method:
    """One method of a run: its name, a label that is unique in the run, hyper-parameters, and
    changes to the local solver."""

    name: str
    label: str
    parameters: Table = field(default_factory=dict)
    local: Table = field(default_factory=dict)
    # the configured method itself, where it was given in Python
    given: Algorithm | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_table(cls, entry: Mapping[str, Any]) -> Method:
        """The method of a [[methods]] entry."""
        local = entry.get("local", {})
        if not isinstance(local, dict):
            raise SpecError(
                f"local of {entry['name']} must be a table such as {{ lr = 0.1 }}, got {local!r}"
            )
        name = entry["name"]
        rest = {key: value for key, value in entry.items() if key not in RESERVED_KEYS}
        return cls(name, str(entry.get("label", label_of(name))), rest, dict(local))

    def algorithm(self) -> Algorithm:
        """The configured method; raises a SpecError for an unknown name or keyword and for a bad
        value."""
        if self.given is not None:
            return self.given
        return build_algorithm({"name": self.name, **self.parameters}, own=True)

    def table(self) -> Table:
        """The [[methods]] entry of a spec."""
        label = {"label": self.label} if self.label != label_of(self.name) else {}
        return {
            "name": self.name,
            **label,
            **self.parameters,
            **({"local": self.local} if self.local else {}),
        }


@dataclass(frozen=True)
class Spec:
    """A run: one federation, one model, several methods. With ``seeds`` a comparison: such a run
    for each of them.

    A comparison with ``select`` is a sweep: its methods are points to choose from by validation
    data.
    """

    name: str = "run"
    rounds: int = 100
    seed: int = 0
    seeds: tuple[int, ...] = ()
    resplit: bool = False  # whether each of the seeds deals the data anew
    loss: str = "cross_entropy"
    engine: str = "auto"
    device: str = "auto"
    precision: str = "fp32"  # of products: "fp32", "tf32" or "bf16"
    weights: str = "data"
    eval_every: int | None = None
    checkpoint_every: int | None = None
    # share of each client's training samples to validate with, where the data have no validation
    # part
    validation: float = 0.0
    track_weights: bool = True  # whether each client's effective weight is kept at every evaluation
    evaluate: str = "after training"  # or "with training", see evenhand.Settings
    data: Table = field(default_factory=lambda: {"name": "digits"})
    model: Table = field(default_factory=lambda: {"name": "mlp"})
    local: Table = field(default_factory=lambda: {"lr": 0.1, "epochs": 1, "batch_size": 32})
    cohort: Table = field(default_factory=lambda: {"name": "full"})
    select: Table = field(default_factory=dict)  # the arguments of Selection
    methods: tuple[Method, ...] = ()

    @classmethod
    def default(cls) -> Spec:
        """What runs without arguments."""
        return cls.from_toml(
            (resources.files("evenhand.studies") / "default.toml").read_text(), "the default spec"
        )

    @classmethod
    def for_data(cls, name: str) -> Spec:
        """A run that leaves to be settled what depends on the data."""
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
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(
                f"cannot read {path}:"
                f" {error.strerror if isinstance(error, OSError) else 'it is not text'}"
            ) from error
        return cls.from_toml(text, str(path))

    @classmethod
    def from_toml(cls, text: str, source: str) -> Spec:
        """Parse TOML text; ``source`` is named in errors."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SpecError(f"{source} is not valid TOML: {error}") from error
        return cls.from_table(table, source)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], source: str) -> Spec:
        """A spec from the values of its TOML file; ``source`` is named in errors."""
        table = dict(table)
        for key, value in table.items():
            check_name(f"key in {source}:", key, KINDS)
            if not _is_a(value, KINDS[key]):
                raise SpecError(
                    f"{source}: {key} must be {LISTS.get(key) or KIND_NAMES[KINDS[key]]}, got"
                    f" {value!r}"
                )
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
        """The same run with what it leaves open ("auto") chosen to suit these data: loss, model,
        batch size, methods."""
        loss, model, local, methods = self.loss, self.model, self.local, self.methods
        if loss == "auto":
            loss = "mse" if federation.train.y.is_floating_point() else "cross_entropy"
        if model.get("name") == "auto":
            model = {"name": suitable_model(federation)}
        if local.get("batch_size") == "auto":
            # one pass is steps enough; larger batches make it shorter
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
        """The same run with these methods in front, unless they are there already: gains and losses
        are counted against them."""
        present = {method.name for method in self.methods}
        added = (Method(name, name) for name in names if name not in present)
        return dataclasses.replace(self, methods=(*added, *self.methods))

    def for_seed(self, seed: int) -> Spec:
        """The run of one seed of a comparison. Clients and their samples are those of the first
        seed, unless it deals them anew."""
        data = dict(self.data)
        if self.seeds and not self.resplit:
            data.setdefault("seed", self.seeds[0])
            if isinstance(data.get("shift"), dict):
                data["shift"] = {"seed": self.seeds[0], **data["shift"]}
        return dataclasses.replace(self, seed=seed, seeds=(), resplit=False, select={}, data=data)

    def runs_before(self, seed: int, method: Method, finished: int | None = None) -> int:
        """How many runs of a comparison come before that of a method with a seed, unless it is
        known how many are ``finished``."""
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
            "validation": 0,
            "track_weights": True,
            "evaluate": "after training",
            "select": {},
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
        if not all(_is_a(seed, int) and seed >= 0 for seed in self.seeds) or len(
            set(self.seeds)
        ) < len(self.seeds):
            raise SpecError(f"seeds must be different whole numbers >= 0, got {list(self.seeds)}")
        if self.resplit and "seed" in self.data:
            raise SpecError(
                "resplit deals the data anew with each seed; leave out seed ="
                f" {self.data['seed']!r} of the data"
            )
        if not 0 <= self.validation < 1:
            raise SpecError(
                f"validation must be in [0, 1), got {self.validation!r}; it is a share of each"
                " client's training samples"
            )
        if self.select:
            self.build_selection()
        labels = [method.label for method in self.methods]
        for label in labels:
            if labels.count(label) > 1:
                raise SpecError(
                    f"labels must differ; {label!r} is used {labels.count(label)} times"
                )
        for label in (
            method.label for method in self.methods if method.label != label_of(method.name)
        ):
            if not FILE_NAME.fullmatch(label) or label in RESERVED:
                raise SpecError(
                    f"label must be a plain file name other than {', '.join(RESERVED)}, got"
                    f" {label!r}"
                )

    def build_data(self) -> Federation:
        """The federation."""
        from evenhand.datasets import DATASETS, FORMATS, loader

        check_name("data set", self.data.get("name", ""), (*DATASETS, *FORMATS))
        arguments = {
            "seed": self.data_seed,
            **{key: value for key, value in self.data.items() if key not in ("name", "shift")},
        }
        what = Path(str(self.data.get("path", ""))).name if self.data["name"] in FORMATS else ""
        federation: Federation = _build(
            what or f"data set {self.data['name']}", loader(self.data["name"]), arguments
        )
        if "shift" in self.data:
            from evenhand.data.shifts import shifted

            federation = _build(
                "shift", partial(shifted, federation), {"seed": self.seed, **self.data["shift"]}
            )
        return federation.with_validation(self.validation, self.data_seed)

    @property
    def data_seed(self) -> int:
        """The seed that clients, their samples and their parts depend on."""
        seed: int = self.data.get("seed", self.seed)
        return seed

    def build_selection(self) -> Selection:
        """How a sweep chooses."""
        from evenhand.studies.selection import Selection

        selection: Selection = _build("select", Selection, self.select)
        return selection

    def build_model(self, federation: Federation) -> nn.Module:
        """The module, its initial parameters drawn with the run's seed."""
        from evenhand.models import MODELS

        check_name("model", self.model.get("name", ""), MODELS)
        factory = MODELS[self.model["name"]]
        arguments = {key: value for key, value in self.model.items() if key != "name"}
        y = federation.train.y
        # a number to predict, or labels -1 and 1
        scores = y.is_floating_point() or int(y.min()) < 0
        outputs = 1 if scores else max(len(federation.label_names), int(y.max()) + 1)
        known: Table = {
            "shape": tuple(federation.train.x.shape[1:]),
            "outputs": outputs,
            "seed": self.seed,
        }
        # word vectors must be those that the data set took its codes from
        vectors = [
            key
            for key in ("root", "dimensions", "most")
            if key in self.data and key in inspect.signature(factory).parameters
        ]
        known |= {key: self.data[key] for key in vectors}
        module: nn.Module = _build(f"model {self.model['name']}", factory, {**known, **arguments})
        return module

    def settings(self, without: Collection[str] = ()) -> Table:
        """How all methods are trained: the fields of :class:`evenhand.Settings`, but for the local
        solver and those that are not wanted."""
        build: dict[str, Callable[[], Any]] = {
            **{name: partial(getattr, self, name) for name in SETTINGS},
            "cohort": self.build_cohort,
            "device": self.build_device,
        }
        return {name: made() for name, made in build.items() if name not in without}

    def build_device(self) -> str:
        """Where to compute."""
        import torch

        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    def build_local(self, method: Method) -> LocalSGD:
        """The local solver of one method."""
        from evenhand.local import LocalSGD

        settings = {
            key: value for key, value in {**self.local, **method.local}.items() if value != "auto"
        }
        local: LocalSGD = _build("local solver", LocalSGD, settings)
        return local

    def build_cohort(self) -> Cohort:
        """Who takes part."""
        from evenhand.cohort import Full, Proportional, Uniform

        kinds: dict[str, type[Cohort]] = {
            "full": Full,
            "uniform": Uniform,
            "proportional": Proportional,
        }
        check_name("cohort", self.cohort.get("name", ""), kinds)
        arguments = {key: value for key, value in self.cohort.items() if key != "name"}
        cohort: Cohort = _build("cohort", kinds[self.cohort["name"]], arguments)
        return cohort


def plain_name(name: str) -> str:
    """A name for a run that can be a file's."""
    return re.sub(r"[^\w.=+ -]+", "-", name).lstrip(".=+ -") or "run"


def suitable_model(federation: Federation) -> str:
    """The name of a model to begin with: by the kind of samples, and for tables by how many there
    are to learn from."""
    x = federation.train.x
    if not x.is_floating_point():
        return "char_lstm" if x.dtype.itemsize == 1 else "text_lstm"
    return "linear" if len(x.shape) == 2 and len(x) < 5000 else "mlp"


def suitable_methods(federation: Federation) -> dict[str, Table]:
    """Methods to begin with: the two references, then one of each kind of fairness that these data
    know."""
    methods: dict[str, Table] = {
        "fedavg": {},
        "localonly": {},
        "qffl": {"q": 1.0},
        "afl": {"lr_lambda": 0.1},
    }
    if federation.groups:
        methods["fedminmax"] = {"lr_mu": 0.05}
    if federation.teams is not None:
        methods["gifair"] = {"strength": 0.9}
    return methods | {"ditto": {"lam": 0.1}}


def build_algorithm(table: Any, own: bool = False) -> Algorithm:
    """A method from a table with its name and hyper-parameters; ``inner``, a name or such a table,
    is the method it changes.

    ``own``: also import a user's own method, ``mypackage:MyMethod``. A table that came in a message
    must never do that.
    """
    parameters = (
        {"name": table}
        if isinstance(table, str)
        else dict(table)
        if isinstance(table, Mapping)
        else {}
    )
    name = parameters.pop("name", None)
    if name is None:
        way_out = (
            'inner=qffl,inner.q=2 on the command line, inner = { name = "qffl", q = 2 } in a spec'
        )
        raise SpecError(f"inner needs the name of a method: {way_out}; got {table!r}")
    if own and isinstance(name, str) and ":" in name:
        kind = imported(name)
    else:
        check_name("algorithm", name, ALGORITHMS)
        kind = ALGORITHMS[name]
    if "inner" in parameters:
        check_name(f"keyword of algorithm {name}:", "inner", inspect.signature(kind).parameters)
        parameters["inner"] = build_algorithm(parameters["inner"], own)
    output = parameters.pop("output", "last") if name in WITH_OUTPUT else "last"
    if output not in OUTPUTS:
        raise SpecError(f'algorithm {name}: output must be "last" or "average", got {output!r}')
    algorithm: Algorithm = _build(f"algorithm {name}", kind, parameters)
    return Averaged(algorithm) if output == "average" else algorithm


def parse_method(text: str) -> Table:
    """A method from a command line: NAME or NAME:key=value,key=value.

    local.lr=0.1 changes the local solver, inner=NAME and inner.key=value the method that a wrapper
    changes. A user's own method has the name MODULE:CLASS.

    >>> parse_method("fafl:alpha=0.3,local.lr=0.05")
    {'name': 'fafl', 'alpha': 0.3, 'local': {'lr': 0.05}}
    >>> parse_method("fedprox:mu=0.1,inner=qffl,inner.q=2")
    {'name': 'fedprox', 'mu': 0.1, 'inner': {'name': 'qffl', 'q': 2}}
    >>> parse_method("mypackage:MyMethod:rate=0.3")
    {'name': 'mypackage:MyMethod', 'rate': 0.3}
    """
    name, _, rest = text.partition(":")
    if (own := OWN_METHOD.fullmatch(text)) and name.strip() not in ALGORITHMS:
        name, rest = own.groups(default="")
    entry: Table = {"name": name.strip()}
    for path, parsed in _pairs(rest, text):
        put(entry, path, parsed, text)
    return entry


def put(entry: Table, path: str, value: Any, text: str) -> None:
    """Set a hyper-parameter of a method's table: q, local.lr, inner.q; ``text`` is named in
    errors."""
    *tables, key = path.split(".")
    if key == "inner":
        tables, key = [*tables, "inner"], "name"
    elif key in ("name", "local"):
        raise SpecError(f"unknown keyword {key!r} in {text!r}")
    target = entry
    for step in tables:
        if step not in ("local", "inner"):
            raise SpecError(
                f"unknown keyword {path!r} in {text!r}; only local. and inner. have parts"
            )
        target = target.setdefault(step, {})
    if key in target:
        raise SpecError(f"{path!r} is given twice in {text!r}")
    target[key] = value


def parse_table(text: str) -> Table:
    """A data set, partition or model from a command line: NAME or NAME:key=value,key=value; or
    key=value,key=value alone.

    >>> parse_table("dirichlet:clients=10,alpha=0.5")
    {'name': 'dirichlet', 'clients': 10, 'alpha': 0.5}
    >>> parse_table("val=0.1,test=0.2")
    {'val': 0.1, 'test': 0.2}
    """
    name, colon, rest = text.partition(":")
    if not colon and "=" in name:
        return dict(_pairs(text, text))
    return {"name": name.strip(), **dict(_pairs(rest, text))}


def _pairs(pairs: str, text: str) -> list[tuple[str, Any]]:
    """Keys and values of key=value,key=value; a value that is no TOML is text. ``text`` is named in
    errors."""
    found = []
    for pair in split_commas(pairs):
        key, equals, value = pair.partition("=")
        if not equals:
            raise SpecError(f"cannot read {pair!r} in {text!r}; write NAME:key=value,key=value")
        found.append((key.strip(), parse_value(value)))
    return found


def parse_value(text: str) -> Any:
    """A value from a command line: TOML where it is that, else text."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def split_commas(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "[{(") - (character in ")}]")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [part for part in (*parts, current) if part.strip()]


def check_name(what: str, name: Any, known: Collection[str]) -> None:
    """Raise a SpecError unless ``name`` is among ``known``; it names the nearest one."""
    if not isinstance(name, str) or name not in known:
        raise SpecError(unknown(what, name, known))


def _is_a(value: Any, kind: type) -> bool:
    """Whether a value of a TOML file is of this kind: true is no number, 1 is one with or without a
    point."""
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _build(what: str, factory: Any, arguments: Table) -> Any:
    """Call ``factory``; unknown keywords and bad values become a SpecError that names them."""
    _known = inspect.signature(factory).parameters
    for key in arguments:
        check_name(f"keyword of {what}:", key, _known)
    missing = [name for name, p in _known.items() if p.default is p.empty and name not in arguments]
    if missing:
        raise SpecError(f"{what} needs {missing[0]}")
    try:
        return factory(**arguments)
    except (ValueError, TypeError) as error:
        raise SpecError(f"{what}: {error}") from error
