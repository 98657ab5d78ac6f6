"""What a node's owner allows a server to ask: limits in a file on the node.

The node config names the file (``policy="/etc/evenhand/policy.toml"``), so it comes with the node
and never with the app that a run ships. The node refuses a task that asks for more with one line
that names the rule, and computes nothing.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand.data.parts import PARTS
from evenhand.errors import (
    RunError,
    SpecError,
    first_line,
    require_choice,
    require_known,
    require_number,
    require_whole,
)
from evenhand.flower.answering import Declined
from evenhand.flower.sharing import SHARES

if TYPE_CHECKING:
    from evenhand.algorithm import Algorithm
    from evenhand.data.federation import Federation
    from evenhand.engines.work import Work
    from evenhand.local import LocalSolver

# A node that only opens masks does without torch, so this module does, too.
ORDERS = ("node", "server")  # who decides the order of samples
# keys of a node config that evenhand knows; an app may read others
CONFIG = (
    "name", "policy", "share", "data", "state-dir", "keep-runs", "partition-id", "num-partitions",
    "identity-key", "trusted-keys", "least",
)  # fmt: skip
NO_POLICY = (
    "this node has no policy file, so a malicious server can reconstruct rows; name one with"
    ' policy="/path/to/policy.toml" in --node-config'
)


class Refused(Declined):
    """The server asks for something that the owner's policy forbids."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"its owner's policy refuses it: {reason} ({rule})")


@dataclass(frozen=True)
class Policy:
    """An owner's limits; the defaults apply to keys that a file does not set.

    Args:
        share: what the server may see about this client alone; None leaves it to the node config
            and the app.
        min_batch: fewest samples in a local step, and fewest training samples of the node.
        min_steps, max_steps: local steps in a round; epochs are counted in steps.
        max_parameters: of a model.
        max_groups: demographic groups in the whole federation.
        min_cell: a group with fewer samples in a split is excluded from that split.
        rounds_per_day, rounds_in_total: most tasks of each kind (training, questions, evaluations)
            to answer; 0 sets no limit.
        train, survey, evaluate: splits that training, a method's questions and evaluations may
            read.
        methods, losses: allowed names; empty allows all.
        codebook: whether to send sums of columns, for a codebook of all nodes.
        order: "node": the node draws its batches in secret. "server": they follow from the run's
            seed and equal the simulator's, so the server can know which samples are in each.
        min_noise: least noise of ``SampleDP`` in local steps. Above 0, the node answers no question
            and no evaluation about its training samples either.
        audit: the file that records requests; empty for audit.jsonl in the node's state-dir.
        least: fewest clients in a masked sum, also by their weights.
        identity_key: the private key with which the node signs its keys for masked sums; empty for
            a key that the node makes itself, which others can only recognise again.
        trusted_keys: the file of the public keys that may be in a masked sum with this node; empty
            to recognise the first key of each client again.
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
    min_noise: float = 0.0
    audit: str = ""
    least: int = 3
    identity_key: str = ""
    trusted_keys: str = ""

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
        require_number("min-noise", self.min_noise, "[0, inf)", "0 allows steps without noise")
        if self.share is not None:
            require_choice("share", self.share, tuple(SHARES))
        require_choice("order", self.order, ORDERS)
        if type(self.codebook) is not bool:
            raise ValueError(f"codebook must be true or false, got {self.codebook!r}")
        require_whole("least", self.least, 3)
        for name in ("audit", "identity_key", "trusted_keys"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(
                    f"{_key(name)} must be the path of a file, got {getattr(self, name)!r}"
                )

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
        """The policy that a node config names.

        Without a file the limits are the same, but batches follow from the run's seed, so a
        federation equals a simulation bit for bit.
        """
        path = config.get("policy")
        if path is None:
            for name, meant in misspelt(config).items():
                if meant == "policy":
                    raise SpecError(f"unknown key {name!r} in its node config; write 'policy'")
            return cls(order="server")
        try:
            return cls.parse(Path(str(path)).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # including text that is not UTF-8 or not TOML
            shown = error.strerror if isinstance(error, OSError) else first_line(error)
            raise SpecError(f"the policy in its node config cannot be used: {shown}") from error

    def permits(self, work: Work, data: Federation, parameters: int, loss: str) -> None:
        """Raise :class:`Refused` if a task asks for more than the owner allows.

        Args:
            data: the node's data, with the names of all groups in the federation.
            parameters: the size of the model.
            loss: its name.
        """
        self._permits_part(work)
        if not int(data.sizes(work.part)[0]):
            raise RunError(f"{work.name} asks for {work.part} data, but the node has none")
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
        self._permits_noise(work)
        if work.local is not None:
            self._permits_steps(work.local, int(data.sizes(work.part)[0]))

    def permits_samples(self, samples: int) -> None:
        """Raise :class:`Refused` if the node has too few training samples."""
        if samples < self.min_batch:
            raise Refused(
                f"min-batch = {self.min_batch}",
                "the node has fewer samples than a batch must have",
            )

    def _permits_part(self, work: Work) -> None:
        kind = work.name if work.name in ("train", "evaluate") else "survey"
        allowed: tuple[str, ...] = getattr(self, kind)
        if work.part not in allowed:
            raise Refused(
                f"{kind} = {', '.join(allowed) or 'nothing'}",
                f"{work.name} asks for the {work.part} data",
            )

    def _permits_noise(self, work: Work) -> None:
        if not self.min_noise or work.part != "train":
            return
        dp = None if work.local is None else work.local.dp
        if dp is None or dp.noise < self.min_noise:
            what = f"noise of {dp.noise:g}" if dp is not None else "no noise (SampleDP)"
            raise Refused(
                f"min-noise = {self.min_noise:g}", f"{work.name} of training samples has {what}"
            )

    def _permits_steps(self, local: LocalSolver, samples: int) -> None:
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


def misspelt(config: Mapping[str, Any]) -> dict[str, str]:
    """Keys of a node config that look like a known key that is missing, and that key.

    >>> misspelt({"polcy": "policy.toml", "name": "north", "ward": 3})
    {'polcy': 'policy'}
    """
    missing = [name for name in CONFIG if name not in config]
    found = {
        name: difflib.get_close_matches(name.lower().replace("_", "-"), missing, 1, 0.7)
        for name in config
        if name not in CONFIG
    }
    return {name: close[0] for name, close in found.items() if close}


def method_names(algorithm: Algorithm) -> list[str]:
    """Names of a method and of the methods inside it. The owner's own method has its class name;
    the plain base class has none."""
    from evenhand.algorithm import Algorithm
    from evenhand.algorithms.naming import algorithm_table

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
    from evenhand.algorithm import Algorithm

    found = getattr(work, "algorithm", None)
    return found if isinstance(found, Algorithm) else Algorithm()


def _key(name: str) -> str:
    return name.replace("_", "-")


def _require_texts(name: str, values: object) -> None:
    if not isinstance(values, tuple) or not all(isinstance(value, str) for value in values):
        raise ValueError(f'{name} must be a list of names, such as ["train"], got {values!r}')
