"""A method of your own in a few lines: it runs on every engine and in every report."""

from dataclasses import dataclass

import torch

import evenhand as eh
from evenhand import tree


@dataclass(frozen=True)
class FedProx(eh.Algorithm):
    """Keep local work near the received model: f(w) + mu/2 |w - received|^2 (Li et al., MLSys 2020)."""

    mu: float = 0.1

    def objective(self, model: eh.Model, variables: tree.Tree, batch: eh.Batch, task: eh.Task) -> torch.Tensor:
        drift = tree.sub(variables["model"], task.shared["model"])
        return model.loss(variables["model"], batch) + self.mu / 2 * tree.sqnorm(drift)


fed = eh.datasets.digits(clients=10, seed=0)
torch.manual_seed(0)
module = torch.nn.Linear(64, 10)
for engine in ("loop", "vmap"):
    result = eh.fit(module, fed, FedProx(mu=0.5), rounds=10, cohort=eh.Uniform(5), engine=engine)
    print(engine, {name: round(value, 3) for name, value in result.summary.items()})
