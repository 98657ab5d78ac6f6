"""The files of a run directory: tables, models and counts of each method.

A run of several methods has a folder per method; ``fit(..., out=directory)`` writes the files of
its one method into the directory itself.

    runs/digits/
      spec.toml            the spec
      about.json           versions, seed, machine and data, as they were at the first start
      encoding.json        how a table's columns became numbers, if the data came as a table
      samples.safetensors  client, group, label and row of each test sample
      manifest.json        SHA-256 and size of these files, and of the tables
      fedavg/
        history.csv        a row per round
        scores.csv         a row per client, group and team
        validation.csv     the same on validation data, if there are any
        ending.json        why training stopped early, and which round's model this is
        over_clients.json  metrics over clients, if the server only saw sums
        tally.safetensors  counts and sums by client and group, from which scores are computed
        scored.safetensors score histograms to find thresholds on, with two classes
        thresholds.json    the thresholds of the model's predictions, if there are any
        values.safetensors of each test sample: right or wrong, loss, prediction, score
        predictions.csv    the same as a table, with names, on request
        weights.json       each client's effective weight at the end, for methods that have one
        weights.safetensors    the same at every evaluated round
        model.safetensors  the trained model
        personal.safetensors   each client's own model, for methods that have them
        adapter/           the trained adapter in PEFT's own form, for models of PEFT
        manifest.json      SHA-256 and size of these files; written last
        privacy.json       of a private run: epsilon, what it covers and what must hold
        checkpoint.safetensors for resuming
        secret.key         of a private run, mode 0600: its noise and cohorts, for resuming
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from evenhand import files
from evenhand.data.federation import Federation
from evenhand.data.population import Population
from evenhand.engines import processes
from evenhand.errors import RunError, first_line
from evenhand.metrics.scores import rows_of
from evenhand.privacy.secret import FILE as SECRET
from evenhand.reading import damaged, read_json, read_text
from evenhand.training import adapters
from evenhand.training.about import about_run, run_table
from evenhand.training.by_row import predictions_of, samples_of
from evenhand.training.checkpoints import CHECKPOINT, HISTORY
from evenhand.training.ending import about_ending
from evenhand.training.manifest import MANIFEST, Owner, seal
from evenhand.training.outcome import Outcome
from evenhand.training.predicting import filled
from evenhand.training.provenance import ABOUT as ABOUT
from evenhand.training.provenance import begun_at
from evenhand.training.settings import Settings

SPEC, ENCODING, SAMPLES = "spec.toml", "encoding.json", "samples.safetensors"
SCORES, VALIDATION, OVER_CLIENTS = "scores.csv", "validation.csv", "over_clients.json"
MODEL, PERSONAL = "model.safetensors", "personal.safetensors"
TALLY, VALUES = "tally.safetensors", "values.safetensors"
WEIGHTS, WEIGHT_HISTORY = "weights.json", "weights.safetensors"
ENDING, PRIVACY = "ending.json", "privacy.json"
SCORED, THRESHOLDS = "scored.safetensors", "thresholds.json"
PREDICTIONS = "predictions.csv"
RUN_FILES = (SPEC, ABOUT, ENCODING, SAMPLES)
METHOD_FILES = (
    HISTORY,
    MODEL,
    PERSONAL,
    SCORES,
    WEIGHTS,
    VALIDATION,
    TALLY,
    VALUES,
    WEIGHT_HISTORY,
    OVER_CLIENTS,
    SCORED,
    THRESHOLDS,
    PREDICTIONS,
    ENDING,
    PRIVACY,
    *adapters.FILES,
)


class Origin(NamedTuple):
    """What a run was made of, besides its method."""

    module: nn.Module
    federation: Population
    settings: Settings


@processes.on_first
def write_run(result: Outcome, origin: Origin, directory: Path) -> None:
    """Write a run of one method into a directory; refuse a directory with another run."""
    import tomli_w

    from evenhand.algorithms.naming import described, label_of  # loads every method

    module, federation, settings = origin
    method = described(result.algorithm)
    table = run_table(directory.resolve().name, module, settings, [method])
    path = directory / SPEC
    files.clear_partial(directory)
    if path.exists() and not _goes_on(_table(path), table):
        raise RunError(f"{directory} holds another run; use another directory")
    text = tomli_w.dumps(table)
    files.write_atomic(path, text.encode())
    about = about_run(
        text,
        federation,
        {label_of(method["name"]): result.algorithm},
        module,
        settings.weights,
        settings.seed,
        table["device"],
        normalisation=settings.normalisation,
    )
    if result.target is not None:
        about["predicts"] = result.target.to_json()
    if not isinstance(settings.loss, str):
        about["classifies"] = "correct" in result.tally
    files.write_json(directory / ABOUT, {**about, **begun_at(directory)})
    write_samples(federation, directory)
    kept = federation if settings.keep_predictions else None
    write_files(result, directory, kept, module)
    owner = Owner.of(about, label_of(method["name"]))
    seal(directory, (*RUN_FILES, *METHOD_FILES), owner)


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not valid TOML ({first_line(error)})") from error


def _goes_on(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether both tables describe one run, which may have been moved, or resumed with more rounds
    or other metrics."""
    then, now = ({**table, "metrics": {}} for table in (then, now))
    moved = {**then, "name": now["name"]}
    return moved == now or (
        then.get("rounds", 0) < now["rounds"] and {**moved, "rounds": now["rounds"]} == now
    )


def write_samples(federation: Population, directory: Path) -> None:
    """Write client, group, label and row of each test sample, and how a table was encoded."""
    if not isinstance(federation, Federation):  # the nodes have the samples
        return
    if federation.encoding is not None:
        files.write_json(directory / ENCODING, federation.encoding.to_json())
    files.write_tensors(directory / SAMPLES, samples_of(federation))


def forget_checkpoint(folder: Path) -> None:
    """Delete what a finished method was resumed from."""
    for name in (CHECKPOINT, SECRET):
        (folder / name).unlink(missing_ok=True)


@processes.on_first
def write_method(
    result: Outcome,
    folder: Path,
    keep_checkpoint: bool = False,
    predicted: Population | None = None,
    module: nn.Module | None = None,
) -> None:
    """Write a finished method; its manifest comes last, because it marks the method as finished.

    Args:
        predicted: the samples, to write the predictions by row as well.
        module: the network, whose adapter is written in PEFT's own form if it has one.
    """
    write_files(result, folder, predicted, module)
    seal(folder, METHOD_FILES, Owner.of(read_json(folder.parent / ABOUT), folder.name))
    if not keep_checkpoint:
        forget_checkpoint(folder)


def write_files(
    result: Outcome, folder: Path, predicted: Population | None, module: nn.Module | None
) -> None:
    """Write the files of a finished method, except the manifest."""
    (folder / MANIFEST).unlink(missing_ok=True)  # not finished while it is being written
    files.write_rows(folder / HISTORY, result.history_rows)
    files.write_tensors(folder / MODEL, dict(result.params))
    if result.personal is not None:
        files.write_tensors(
            folder / PERSONAL,
            {
                # constants, which all clients share, are in the other file
                str(client): {k: v for k, v in own.items() if v is not result.params.get(k)}
                for client, own in enumerate(result.personal)
            },
        )
    if module is not None and adapters.is_adapted(module):
        adapters.save_adapter(filled(module, result.params), folder / adapters.ADAPTER)
    if result.certificate is not None:
        value, gap = float(result.certificate.value), float(result.certificate.gap)
        files.write_json(
            folder / WEIGHTS, {"objective": value, "gap": gap, "clients": result.weight_rows}
        )
    if result.weight_history is not None:
        history = {
            "round": torch.tensor(result.weight_rounds),
            "weight": torch.from_numpy(result.weight_history).float(),
        }
        files.write_tensors(folder / WEIGHT_HISTORY, history)
    if ending := about_ending(result.stopped, result.restored):
        files.write_json(folder / ENDING, ending)
    else:  # that of an earlier result does not apply
        (folder / ENDING).unlink(missing_ok=True)
    if result.privacy is not None:
        files.write_json(folder / PRIVACY, result.privacy.to_json())
    if result.validation is not None:
        files.write_rows(folder / VALIDATION, rows_of(result.validation))
    files.write_tensors(
        folder / TALLY, {name: torch.from_numpy(sums) for name, sums in result.tally.items()}
    )
    if result.scored:
        kept = {on: torch.from_numpy(counts) for on, counts in result.scored.items()}
        files.write_tensors(folder / SCORED, kept)
    if result.decision is not None:
        files.write_atomic(folder / THRESHOLDS, result.decision.to_json().encode())
    else:  # those of an earlier model do not apply
        (folder / THRESHOLDS).unlink(missing_ok=True)
    if len(result.values):  # in a real federation, the nodes have the samples
        kept = {name: torch.from_numpy(values) for name, values in result.outcomes.items()}
        if "correct" in result.tally:
            kept["value"] = kept["value"].to(torch.uint8)
        files.write_tensors(folder / VALUES, kept)
    if isinstance(predicted, Federation):
        files.write_rows(folder / PREDICTIONS, rows_of(predictions_of(result, predicted)))
    if result.over_clients is not None:
        files.write_json(folder / OVER_CLIENTS, result.over_clients)
    files.write_rows(folder / SCORES, result.score_rows)
