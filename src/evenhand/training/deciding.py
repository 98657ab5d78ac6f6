"""Decisions of a trained classifier: its predictions, and thresholds found after training."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from evenhand.errors import require, require_choice, require_kind
from evenhand.metrics.counts import Counts
from evenhand.metrics.scores import Columns
from evenhand.metrics.tallies import BLOCK, decided
from evenhand.metrics.threshold_search import BY, find_thresholds, notion_of
from evenhand.metrics.thresholds import Thresholds, codes_of
from evenhand.targets import Target, predictions

Ints = NDArray[np.int64]
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


class Deciding:
    """A trained model that decides, with thresholds or without."""

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
    ) -> Ints:
        """(N,) the predicted class of each sample, by the result's thresholds if it uses any.

        Args:
            x: (N, ...) the features.
            group: (N,) names or codes of the samples' groups, for thresholds that differ by group.
            client: (N,) names or codes of their clients, for thresholds that differ by client and
                for methods that give each client a model of its own.
            module: the network, for a result that was read from a directory.
            seed: of the random numbers of randomised thresholds; None draws new ones.
        """
        _require_classifier(self, "predict is")
        network = _network(self, module)
        inputs = torch.as_tensor(x)
        whole = [(self.params, torch.arange(len(inputs)))]
        if self.personal is not None:
            if client is None:
                raise ValueError("each client has its own model: give client=")
            owner = codes_of("client", client, _names(self, "client"), len(inputs))
            whole = [
                (self.personal[code], torch.from_numpy(np.flatnonzero(owner == code)))
                for code in np.unique(owner).tolist() or [0]
            ]
        output = _outputs(network, whole, inputs)
        if self.decision is None:
            return predictions(output).numpy()
        of = group if self.decision.by == "group" else client
        score = decided(output.double()).numpy()
        lost = int(np.isnan(score).sum())
        require(
            not lost,
            "the model gives no score (NaN) for {} of {} samples, so thresholds cannot decide;"
            " check x, or train again with a smaller learning rate",
            lost,
            len(score),
        )
        return self.decision.predict(score, of, seed)


def _require_classifier(given: Trained, what: str) -> None:
    """Raise a ValueError unless one class is predicted for each sample."""
    # runs of earlier versions do not say what they predict
    before = "class" if "correct" in given.tally else "number"
    kind = before if given.target is None else given.target.kind
    other = {"number": "is a regression", "ordinal": "predicts levels"}
    does = other.get(kind, "predicts several labels per sample")
    require(kind == "class", "{} for classifiers; this run {}", what, does)


def _network(given: Trained, module: nn.Module | None) -> nn.Module:
    """The network to put trained parameters into: the one given, or the one that was trained."""
    network = module if module is not None else given.network
    if network is None:
        raise ValueError("give module=, the network that was trained")
    return network


def filled(network: nn.Module, params: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the network with trained parameters, on the CPU and in evaluation mode."""
    twin = copy.deepcopy(network).cpu().eval()
    # a model of peft is known by its adapters; its base model is in the network
    twin.load_state_dict(dict(params), strict=not hasattr(network, "peft_config"))
    return twin


def _histograms(given: Trained) -> tuple[str, NDArray[np.int64], NDArray[np.int64]]:
    """What thresholds are found on, and the score histograms (n, A, 2, BINS) to find and judge
    them."""
    tally = given.tally
    _require_classifier(given, "thresholds are")
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


def _outputs(
    network: nn.Module, owned: Sequence[tuple[Mapping[str, Tensor], Tensor]], x: Tensor
) -> Tensor:
    """(N, ...) outputs for samples of which each model owns some, on the CPU."""
    dtype = next(network.parameters()).dtype
    inputs = x.detach().cpu().to(dtype) if x.is_floating_point() else x.cpu()
    parts, rows = [], []
    with torch.no_grad():
        for params, places in owned:
            twin = filled(network, params)
            for some in torch.split(places, BLOCK):
                parts.append(twin(inputs[some]))
                rows.append(some)
    order = torch.cat(rows).argsort()
    return torch.cat(parts)[order]
