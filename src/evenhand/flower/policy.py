"""What a node's owner lets a server ask: limits in a file of the node's own.

The file is named in the node's config (``policy="/etc/evenhand/policy.toml"``) and so comes with
the node, never with the app that a run ships. A task that asks for more is refused on the node,
with one line that names the rule; nothing is computed for it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from evenhand.algorithm import Algorithm
from evenhand.algorithms.naming import algorithm_table
from evenhand.data.federation import Federation
from evenhand.data.samples import PARTS
from evenhand.engines.work import Evaluate, Train, Work
from evenhand.errors import (
    EvenhandError,
    RunError,
    SpecError,
    first_line,
    require_choice,
    require_known,
    require_whole,
)
from evenhand.flower.sharing import SHARES
from evenhand.local import LocalSGD

ORDERS = ("node", "server")  # who decides the order in which samples are visited


class Refused(EvenhandError):
    """The server asks for what the owner's policy does not allow."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"its owner's policy refuses it: {reason} ({rule})")


@dataclass(frozen=True)
class Policy:
    """An owner's limits; the defaults hold where a file does not say otherwise.

    Args:
        share: what the server may see of this client by itself; None leaves it to the node's config
            and the app.
        min_batch: least samples in a local step, and least training samples of the node.
        min_steps, max_steps: local steps in one round; epochs are counted in steps.
        max_parameters: of a model.
        max_groups: groups of people in the whole federation.
        min_cell: a group with fewer samples here, in one part of the data, is left out of that
            part.
        rounds_per_day, rounds_in_total: tasks of each kind (training, questions, evaluations) that
            are answered; 0 sets no limit.
        train, survey, evaluate: parts of the data that training, a method's questions and
            evaluations may read.
        methods, losses: names of those allowed; none named, all are.
        codebook: whether sums of columns are told, for a codebook of all nodes together.
        order: "node": the node draws its batches in secret; "server": they are those of the
            simulator, to the bit, so that the server can know which samples are in each.
        audit: where requests are written down; empty for audit.jsonl in the node's state-dir.
    """

    share: str | None = None
    min_batch: int = 5
    min_steps: int = 1
    max_steps: int = 100_000
    max_parameters: int = 100_000_000
    max_groups: int = 50
    min_cell: int = 5
    rounds_per_day: int = 0
    rounds_in_total: int = 0
    train: tuple[str, ...] = ("train",)
    survey: tuple[str, ...] = ("train",)
    evaluate: tuple[str, ...] = PARTS
    methods: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    codebook: bool = True
    order: str = "node"
    audit: str = ""

    def __post_init__(self) -> None:
        for name in ("min_batch", "min_steps", "max_steps", "max_parameters", "min_cell"):
            require_whole(_key(name), getattr(self, name), 1)
        for name in ("max_groups", "rounds_per_day", "rounds_in_total"):
            require_whole(_key(name), getattr(self, name), 0)
        for name in ("train", "survey", "evaluate", "methods", "losses"):
            _require_texts(_key(name), getattr(self, name))
        for name in ("train", "survey", "evaluate"):
            for part in getattr(self, name):
                require_choice(f"part in {name}", part, PARTS)
        if self.share is not None:
            require_choice("share", self.share, tuple(SHARES))
        require_choice("order", self.order, ORDERS)
        if type(self.codebook) is not bool:
            raise ValueError(f"codebook must be true or false, got {self.codebook!r}")
        if not isinstance(self.audit, str):
            raise ValueError(f"audit must be the path of a file, got {self.audit!r}")

    @classmethod
    def parse(cls, text: str) -> Policy:
        """The policy in a TOML text.

        >>> Policy.parse("min-batch = 32").min_batch
        32
        """
        found, known = tomllib.loads(text), [_key(field.name) for field in fields(cls)]
        for name in found:
            require_known("key", name, known)
        values: dict[str, Any] = {
            name.replace("-", "_"): tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
        }
        return cls(**values)

    @classmethod
    def of_node(cls, config: Mapping[str, Any]) -> Policy:
        """The policy that a node's config names.

        Without one the limits are the same, and batches follow from the run's seed: nobody speaks
        for the owner, and a federation equals a simulation to the bit.
        """
        path = config.get("policy")
        if path is None:
            return cls(order="server")
        try:
            return cls.parse(Path(str(path)).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # also where it is no UTF-8, or no TOML
            shown = error.strerror if isinstance(error, OSError) else first_line(error)
            raise SpecError(f"the policy in its node config cannot be used: {shown}") from error

    def permits(self, work: Work, data: Federation, parameters: int, loss: str) -> None:
        """Raise :class:`Refused` where a task asks for more than the owner allows.

        Args:
            data: of the node, with the names of all groups in the federation.
            parameters: numbers in the model.
            loss: its name.
        """
        self._permits_part(work)
        if not int(data.sizes(work.part)[0]):
            raise RunError(f"{work.name} asks for {work.part} data, and the node has none")
        if parameters > self.max_parameters:
            raise Refused(
                f"max-parameters = {self.max_parameters}", f"the model has {parameters} parameters"
            )
        groups = max(len(data.group_names), work.groups)
        if groups > self.max_groups:
            raise Refused(f"max-groups = {self.max_groups}", f"the run has {groups} groups")
        if self.losses and loss not in self.losses:
            raise Refused(f"losses = {', '.join(self.losses)}", f"the loss is {loss[:40]!r}")
        for name in method_names(_algorithm(work)) if self.methods else ():
            if name not in self.methods:
                raise Refused(f"methods = {', '.join(self.methods)}", f"the method is {name!r}")
        if work.local is not None:
            self._permits_steps(work.local, int(data.sizes(work.part)[0]))

    def permits_samples(self, samples: int) -> None:
        """Raise :class:`Refused` where the node has too few samples to train with."""
        if samples < self.min_batch:
            raise Refused(
                f"min-batch = {self.min_batch}",
                "the node has fewer samples than a batch must have",
            )

    def _permits_part(self, work: Work) -> None:
        kind = {Train.name: "train", Evaluate.name: "evaluate"}.get(work.name, "survey")
        allowed: tuple[str, ...] = getattr(self, kind)
        if work.part not in allowed:
            raise Refused(
                f"{kind} = {', '.join(allowed) or 'nothing'}",
                f"{work.name} asks for the {work.part} data",
            )

    def _permits_steps(self, local: LocalSGD, samples: int) -> None:
        self.permits_samples(samples)
        batch = samples if local.batch_size is None else local.batch_size
        if batch < self.min_batch:
            raise Refused(f"min-batch = {self.min_batch}", f"it asks for batches of {batch}")
        per_epoch = -(-samples // batch)
        steps = local.steps or (local.epochs or 1) * per_epoch
        if steps < self.min_steps:
            raise Refused(f"min-steps = {self.min_steps}", f"it asks for {steps} local steps")
        if steps > self.max_steps:
            raise Refused(f"max-steps = {self.max_steps}", f"it asks for {steps} local steps")


def method_names(algorithm: Algorithm) -> list[str]:
    """Names of a method and of those inside it; a method of the owner's own has its class's name,
    and one that does nothing in particular has none."""
    if type(algorithm) is Algorithm:
        return []
    try:
        table: Any = algorithm_table(algorithm)
    except SpecError:
        return [type(algorithm).__name__]
    names = []
    while isinstance(table, Mapping):
        names.append(str(table["name"]))
        table = table.get("inner")
    return names


def _algorithm(work: Work) -> Algorithm:
    found = getattr(work, "algorithm", None)
    return found if isinstance(found, Algorithm) else Algorithm()


def _key(name: str) -> str:
    return name.replace("_", "-")


def _require_texts(name: str, values: object) -> None:
    if not isinstance(values, tuple) or not all(isinstance(value, str) for value in values):
        raise ValueError(f'{name} must be a list of names, such as ["train"], got {values!r}')
