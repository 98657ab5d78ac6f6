"""The other programs: a plain PyTorch loop, pfl, and Flower's simulation.

All train by federated averaging, and are written as their users would. pfl and Flower are installed
by benchmarks/requirements-peers.txt; what is not installed is left out of the tables.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.machine import seconds, synchronise
from evenhand import Federation

INSTALL = "pip install -r benchmarks/requirements-peers.txt"


class Turns:
    """A peer's times. On a CPU it has a turn with all threads and one with a single thread, and the
    better of the two counts: small operations are slower on several threads, and far slower where
    others use the machine."""

    def __init__(self, round: Callable[[], list[float]], device: torch.device) -> None:
        self.round = round
        threads = torch.get_num_threads()
        self.times: dict[int, list[float]] = {
            count: [] for count in ({threads, 1} if device.type == "cpu" else {threads})
        }

    def take(self) -> None:
        """One turn with each number of threads."""
        before = torch.get_num_threads()
        for threads, times in self.times.items():
            torch.set_num_threads(threads)
            times.extend(self.round())
        torch.set_num_threads(before)

    @property
    def median(self) -> float | None:
        """Seconds a round; None where it had no turn."""
        return min(
            (statistics.median(times) for times in self.times.values() if times), default=None
        )


def have(package: str) -> bool:
    """Whether a peer is installed; says so where it is not."""
    found = find_spec(package) is not None
    if not found:
        print(f"{package} is not installed ({INSTALL})", file=sys.stderr)
    return found


class PlainLoop:
    """For every client a copy of the model and an optimiser, batches that lie on the device, then
    the mean of the models."""

    def __init__(self, module: nn.Module, lr: float, device: torch.device) -> None:
        self.module, self.lr, self.device = copy.deepcopy(module).to(device).train(), lr, device

    def round(self, clients: Sequence[list[tuple[Tensor, Tensor]]]) -> float:
        """Seconds of a round; ``clients`` has every client's batches."""
        return seconds(lambda: self._round(clients), self.device)

    def _round(self, clients: Sequence[list[tuple[Tensor, Tensor]]]) -> None:
        total = {key: torch.zeros_like(value) for key, value in self.module.state_dict().items()}
        for batches in clients:
            local = copy.deepcopy(self.module)
            optimiser = torch.optim.SGD(local.parameters(), lr=self.lr)
            for x, y in batches:
                optimiser.zero_grad()
                F.cross_entropy(local(x.to(self.device)), y.to(self.device)).backward()
                optimiser.step()
            for key, value in local.state_dict().items():
                total[key] += value / len(clients)
        self.module.load_state_dict(total)


class Loaded:
    """The batches of a client from a shuffling DataLoader, as a plain loop on a CPU has them."""

    def __init__(self, federation: Federation, batch: int) -> None:
        part = federation.train
        self.sets = [TensorDataset(*part.client(i)[:2]) for i in range(federation.clients)]
        self.batch = batch

    def __call__(self, client: int) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.sets[client], batch_size=self.batch, shuffle=True)


class Pfl:
    """pfl's simulated backend with its own PyTorch model and user sampling, set up as its image
    classification benchmark.

    Its users' data are tensors on the device. The central evaluation takes all test data at once,
    every ``evaluate_every`` rounds; users are not evaluated before and after their training (its
    benchmark does that every tenth round, evenhand never).
    """

    def __init__(
        self,
        module: nn.Module,
        federation: Federation,
        *,
        cohort: int,
        lr: float,
        batch: int,
        device: torch.device,
        evaluate_every: int = 0,
    ) -> None:
        os.environ["PFL_PYTORCH_DEVICE"] = str(device)  # read whenever pfl makes a tensor
        logging.getLogger("pfl").setLevel(logging.ERROR)
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByUser
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

        self.device, self.cohort, self.evaluate_every = device, cohort, evaluate_every
        np.random.seed(0)
        module = copy.deepcopy(module).to(device)
        module.loss = types.MethodType(_pfl_loss, module)
        module.metrics = types.MethodType(_pfl_metrics, module)
        x, y = federation.train.x[:].to(device), federation.train.y.to(device)
        offsets = federation.train.offsets.tolist()
        users = {i: (x[a:b], y[a:b]) for i, (a, b) in enumerate(itertools.pairwise(offsets))}
        data = FederatedDataset.from_slices(users, get_user_sampler("random", range(len(users))))
        self.backend = SimulatedBackend(
            training_data=data, val_data=data, postprocessors=[WeightByUser()]
        )
        central = torch.optim.SGD(module.parameters(), 1.0)
        self.model = PyTorchModel(
            model=module, local_optimizer_create=torch.optim.SGD, central_optimizer=central
        )
        self.train = NNTrainHyperParams(
            local_learning_rate=lr, local_num_epochs=1, local_batch_size=batch
        )
        self.evaluation = NNEvalHyperParams(local_batch_size=10_000)
        test = federation.test
        self.central = (
            None
            if not evaluate_every or test is None
            else Dataset(raw_data=[test.x[:].to(device), test.y.to(device)])
        )

    def rounds(self, count: int) -> list[float]:
        """Seconds of each of ``count`` rounds, after one that is not counted."""
        from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
        from pfl.callback.base import TrainingProcessCallback
        from pfl.callback.central_evaluation import CentralEvaluationCallback
        from pfl.metrics import Metrics

        stamps: list[float] = []
        device = self.device

        class Stamp(TrainingProcessCallback):  # type: ignore[type-arg, misc]
            def after_central_iteration(
                self, metrics: Any, model: Any, *, central_iteration: int
            ) -> tuple[bool, Any]:
                synchronise(device)
                stamps.append(time.perf_counter())
                return False, Metrics()

        callbacks: list[Any] = [Stamp()]
        if self.central is not None:
            callbacks.insert(
                0,
                CentralEvaluationCallback(
                    self.central, model_eval_params=self.evaluation, frequency=self.evaluate_every
                ),
            )
        settings = {
            "central_num_iterations": count + 1,
            "evaluation_frequency": 10**9,
            "train_cohort_size": self.cohort,
        }
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(**settings, val_cohort_size=0),
            backend=self.backend,
            model=self.model,
            model_train_params=self.train,
            model_eval_params=self.evaluation,
            callbacks=callbacks,
            send_metrics_to_platform=False,
        )
        return [after - before for before, after in itertools.pairwise(stamps)]


def _pfl_loss(self: nn.Module, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
    self.train(not eval)
    return F.cross_entropy(self(x), y)


@torch.no_grad()
def _pfl_metrics(self: nn.Module, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
    from pfl.metrics import Weighted

    self.train(not eval)
    scores = self(x)
    loss, right = F.cross_entropy(scores, y, reduction="sum"), (scores.argmax(1) == y).sum()
    return {"loss": Weighted(loss.item(), len(y)), "accuracy": Weighted(right.item(), len(y))}


def flower_rounds(clients: int, cohort: int, rounds: int) -> list[float]:
    """Seconds of each round of Flower's simulation of logistic regression, in a process of its own:
    see :mod:`benchmarks.speed.flower`."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed.flower",
        str(clients),
        str(cohort),
        str(rounds),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    times: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return times
