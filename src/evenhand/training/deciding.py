"""Predictions of a trained model, and thresholds found after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from evenhand.calls import OutputFunction
from evenhand.data.samples import Features
from evenhand.errors import require, require_choice, require_kind
from evenhand.metrics.counts import Counts
from evenhand.metrics.scores import Columns
from evenhand.metrics.tallies import decided
from evenhand.metrics.threshold_search import BY, find_thresholds, notion_of
from evenhand.metrics.thresholds import Thresholds, codes_of
from evenhand.targets import Target, predictions
from evenhand.training.predicting import (
    Floats,
    Ints,
    as_features,
    filled,
    numbers,
    outputs,
    probabilities,
)

if TYPE_CHECKING:
    from evenhand.data.tables.encoding import Encoding

T = TypeVar("T")


class Trained(Protocol):
    """What a result in memory and a result on disk share."""

    @property
    def params(self) -> dict[str, Tensor]: ...
    @property
    def personal(self) -> list[dict[str, Tensor]] | None: ...
    @property
    def score_columns(self) -> Columns: ...
    @property
    def tally(self) -> Mapping[str, Any]: ...
    @property
    def counts(self) -> Counts | None: ...
    @property
    def scored(self) -> Mapping[str, Any]: ...
    @property
    def target(self) -> Target | None: ...
    @property
    def judged_on(self) -> str: ...
    @property
    def decision(self) -> Thresholds | None: ...
    @property
    def network(self) -> nn.Module | None: ...
    @property
    def output(self) -> OutputFunction | None: ...
    @property
    def encoding(self) -> Encoding | None: ...


class Deciding:
    """A trained model that predicts; a classifier decides with thresholds or without."""

    def thresholds(
        self: Trained,
        notion: str = "equalised odds",
        bound: float = 0.0,
        *,
        by: str = "group",
        common: bool = False,
        least: int = 10,
    ) -> Thresholds:
        """Find thresholds that make rates alike over groups, and what they cost in accuracy.

        They are found on validation data if the federation has them, else on training data, and
        judged on test data. The model stays as it is; :meth:`using` applies them.

        Args:
            notion: what is to be alike: "equalised odds", "equal opportunity", "demographic
                parity", "false-positive parity" or "accuracy parity"; "accuracy" looks for the most
                accurate thresholds only.
            bound: how far rates may be apart; 0 makes them equal, which may need a randomised
                threshold.
            by: "group", or "client" to treat each client as a group.
            common: find the best single threshold for everyone, which needs no group to decide.
            least: groups with fewer samples for a rate keep the threshold 0.5.
        """
        require_choice("by", by, BY)
        found_on, found, judged = _histograms(self)
        names = _names(self, by)
        if not names and by == "group" and common is True and notion_of(notion) == "accuracy":
            names = ["everyone"]  # nothing is compared
        require(
            len(names) > 0,
            "thresholds by {} need {}",
            by,
            "groups, and the data have none; name their column with --group, or use by='client'"
            " (--by client)"
            if by == "group"
            else "clients' own histograms, and the server saw only sums; use by='group'",
        )
        axis = 0 if by == "group" else 1
        return find_thresholds(
            found.sum(axis),
            judged.sum(axis),
            names,
            notion,
            bound,
            by=by,
            common=common,
            least=least,
            found_on=found_on,
            judged_on=self.judged_on,
            positive="1" if self.counts is None else self.counts.labels[1],
        )

    def using(self: T, thresholds: Thresholds | None) -> T:
        """The same result with a model that decides by ``thresholds``; None goes back to 0.5."""
        if thresholds is not None:
            require_kind("thresholds", thresholds, Thresholds, "result.thresholds()")
        return cast(T, cast(Any, self)._with(thresholds))

    def _with(self, thresholds: Thresholds | None) -> Any:
        return replace(cast(Any, self), decision=thresholds)

    def module(
        self: Trained, client: str | int | None = None, *, module: nn.Module | None = None
    ) -> nn.Module:
        """The trained network, ready to use: a copy on the CPU, in evaluation mode.

        Args:
            client: name or number of the client whose own model is meant, for methods that give
                each client one; None for the shared model.
            module: the network, for a result that was read from a directory.
        """
        network = _network(self, module)
        if client is None:
            require(
                has_shared_model(self),
                "there is no shared model, only one for each client: give client= (--client)",
            )
            return filled(network, self.params)
        if self.personal is None:
            raise ValueError(
                "all clients share one model; leave out client, or use a method with personal"
                " models"
            )
        code = int(codes_of("client", [client], _names(self, "client"), 1)[0])
        return filled(network, self.personal[code])

    def predict(
        self: Trained,
        x: Any,
        *,
        group: ArrayLike | None = None,
        client: ArrayLike | None = None,
        module: nn.Module | None = None,
        seed: int | None = None,
    ) -> Ints | Floats:
        """(N,) the predicted class of each sample, by the result's thresholds if it uses any; for a
        regression the predicted number, in the unit of a table's label.

        Args:
            x: (N, ...) the features: an array, or a dict or tuple of arrays for several inputs.
            group: (N,) names or codes of the samples' groups, or one for all, for thresholds that
                differ by group.
            client: (N,) names or codes of their clients, or one for all, for thresholds that differ
                by client and for methods that give each client a model of its own.
            module: the network, for a result that was read from a directory.
            seed: of the random numbers of randomised thresholds; None draws new ones.
        """
        inputs = as_features(x)
        output = model_outputs(self, inputs, _owner(self, client, len(inputs)), module)
        target = target_of(self)
        if target.kind == "number":
            return numbers(output, self.encoding)
        if target.kind != "class":
            return target.predict(output).numpy()
        by_group = self.decision is not None and self.decision.by == "group"
        return decide(output, self.decision, group if by_group else client, seed)

    def predict_proba(
        self: Trained, x: Any, *, client: ArrayLike | None = None, module: nn.Module | None = None
    ) -> Floats:
        """(N, C) the probability of each class, whatever thresholds the result uses; of each level
        or label, (N, ..., C) of each position.

        See :meth:`predict` for the arguments.
        """
        require_chances(self)
        inputs = as_features(x)
        owner = _owner(self, client, len(inputs))
        return probabilities(model_outputs(self, inputs, owner, module), target_of(self))


def target_of(given: Trained) -> Target:
    """What the model predicts; runs of earlier versions say only whether it is a class."""
    if given.target is not None:
        return given.target
    return Target("class" if "correct" in given.tally else "number")


def has_shared_model(given: Trained) -> bool:
    """Whether there is a shared model: not if clients trained alone, or keep layers to
    themselves."""
    # the shared model was evaluated besides the clients' own
    return given.personal is None or any(name.startswith("shared_") for name in given.score_columns)


def require_chances(given: Trained) -> None:
    """Raise for a regression."""
    kind = target_of(given).kind
    require(kind != "number", "predict_proba is for classifiers; this run is a regression")


def model_outputs(
    given: Trained,
    x: Features,
    owner: Ints | None,
    module: nn.Module | None,
    output: OutputFunction | None = None,
) -> Tensor:
    """(N, ...) outputs for samples of clients ``owner`` (N,), each by its own model; -1 stands for
    the shared model, None for the only one."""
    owned = [(given.params, np.arange(len(x)))]
    if owner is not None:
        assert given.personal is not None
        owned = [
            (given.params if code < 0 else given.personal[code], np.flatnonzero(owner == code))
            for code in np.unique(owner).tolist() or [0]
        ]
    return outputs(_network(given, module), owned, x, output or given.output)


def _owner(given: Trained, client: ArrayLike | None, length: int) -> Ints | None:
    """(N,) codes of the clients whose own models are meant; None if all share one."""
    if given.personal is None:
        return None
    if client is None:
        raise ValueError("each client has its own model: give client=")
    return codes_of("client", client, _names(given, "client"), length)


def decide(
    output: Tensor, decision: Thresholds | None, of: ArrayLike | None, seed: int | None
) -> Ints:
    """(N,) the predicted class of each sample, by thresholds if there are any.

    ``of``: names or codes of the samples' groups or clients, for thresholds that differ by them.
    """
    if decision is None:
        return predictions(output).numpy()
    score = decided(output.double()).numpy()
    lost = int(np.isnan(score).sum())
    require(
        not lost,
        "the model gives no score (NaN) for {} of {} samples, so thresholds cannot decide;"
        " check x, or train again with a smaller learning rate",
        lost,
        len(score),
    )
    return decision.predict(score, of, seed)


def _require_classes(given: Trained, what: str) -> None:
    """Raise a ValueError unless one class is predicted for each sample."""
    kind = target_of(given).kind
    other = {"number": "is a regression", "ordinal": "predicts levels"}
    does = other.get(kind, "predicts several labels per sample")
    require(kind == "class", "{} for classifiers; this run {}", what, does)


def _network(given: Trained, module: nn.Module | None) -> nn.Module:
    """The network to put trained parameters into: the one given, or the one that was trained."""
    network = module if module is not None else given.network
    if network is None:
        raise ValueError("give module=, the network that was trained")
    return network


def _histograms(given: Trained) -> tuple[str, NDArray[np.int64], NDArray[np.int64]]:
    """What thresholds are found on, and the score histograms (n, A, 2, BINS) to find and judge
    them."""
    tally = given.tally
    _require_classes(given, "thresholds are")
    classes = tally["confusion"].shape[2] if "confusion" in tally else 0
    require(
        classes == 2,
        "thresholds are for two classes; this run has {}",
        classes or "a very large number",
    )
    require(
        bool(given.scored),
        "this run kept no score histograms to find thresholds on: it was made by an earlier"
        " version, or by a federation without validation data; train it again with validation data",
    )
    found_on, found = next(iter(given.scored.items()))
    judged = np.asarray(tally["scored"])
    require(
        bool(judged.any() or not np.any(tally["count"])),
        "the model gives no scores (NaN), so there is nothing to find thresholds on; train it again"
        " with a smaller learning rate",
    )
    return found_on, np.asarray(found), judged


def _names(given: Trained, by: str) -> Sequence[str]:
    """Names of groups or clients; () if there are none, or if histograms are sums over clients."""
    columns = given.score_columns
    names = [name for name, kind in zip(columns["name"], columns["by"], strict=True) if kind == by]
    summed = by == "client" and any(
        len(one) < len(names) for one in (*given.scored.values(), given.tally["count"])
    )
    return [] if summed else names
