"""Write a method of your own in a few lines, run it on both engines, and check it as the built-in
methods are checked."""

from dataclasses import dataclass

import torch

import evenhand as eh


@dataclass(frozen=True)
class PowerLoss(eh.Algorithm):
    """Descend f^power / power on every client, so that high losses take longer steps."""

    power: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.power < float("inf"):
            raise ValueError(f"power must be at least 1 (FedAvg), got {self.power}")

    def objective(
        self, model: eh.Model, variables: eh.tree.Tree, batch: eh.Batch, task: eh.Task
    ) -> torch.Tensor:
        return model.loss(variables["model"], batch) ** self.power / self.power


fed = eh.datasets.digits(clients=10, seed=0)
torch.manual_seed(0)
module = torch.nn.Linear(64, 10)
for engine in ("loop", "vmap"):
    result = eh.fit(module, fed, PowerLoss(), rounds=10, cohort=eh.Uniform(5), engine=engine)
    print(engine, {name: round(value, 3) for name, value in result.summary.items()})

checks = eh.testing.check_algorithm(PowerLoss(), collect=True)
skipped = sum(check.skipped for check in checks)
failed = sum(not check.passed for check in checks)
print(f"{len(checks) - skipped - failed} checks passed, {skipped} skipped, {failed} failed")
