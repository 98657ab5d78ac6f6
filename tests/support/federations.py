"""Small federations and the list of methods that many tests share."""

from __future__ import annotations

import numpy as np
import torch

import evenhand as eh

# Every method, in the forms that differ in their messages or memories. A new method adds a line.
METHODS: dict[str, eh.Algorithm] = {
    "fedavg": eh.FedAvg(),
    "propfair": eh.PropFair(M=3.0),
    "propfair_huber": eh.PropFair(M=2.0, continuation="huber"),
    "qffl": eh.QFFL(q=1.5),
    "qffl_sgd": eh.QFFL(q=1.5, solver="fedsgd"),
    "term": eh.TERM(t=2.0),
    "term_team": eh.TERM(t=2.0, level="team"),
    "term_sample": eh.TERM(t=1.0, sample_t=0.5),
    "afl": eh.AFL(lr_lambda=0.1),
    "afl_average": eh.Averaged(eh.AFL(lr_lambda=0.1)),
    "afl_before": eh.AFL(lr_lambda=0.1, order="before"),
    "fafl": eh.FAFL(alpha=0.5, mu=0.1, lr_eta=0.05),
    "fafl_random": eh.FAFL(alpha={"random": 123, "low": 0.6, "some": 2, "1": 0.8}, mu=0.1),
    "fafl_local": eh.Averaged(
        eh.FAFL(
            alpha=0.5,
            mu=0.1,
            eta0="quantile",
            sigma="local",
            floor=0.2,
            short_first_round=True,
        )
    ),
    "fedminmax": eh.FedMinMax(lr_mu=0.1, floor=0.05),
    "gifair": eh.GIFAIR(strength=0.8),
    "gifair_per": eh.GIFAIR(strength=0.8, personal=True),
    "gifair_exact": eh.GIFAIR(strength=0.8, exact_losses=True),
    "fedmgda": eh.FedMGDA(epsilon=0.2, server_lr=0.1),
    "ditto": eh.Ditto(lam=0.5),
    "deltafl": eh.DeltaFL(tail=0.6),
    "drfa": eh.DRFA(lr_lambda=0.05, sample=3),
    "agnosticfedavg": eh.AgnosticFedAvg(lr_lambda=0.2, window=2),
    "fedfv": eh.FedFV(alpha=0.2, tau=2),
    "aaggff": eh.AAggFF(),
    "aaggff_ftrl": eh.AAggFF(solver="ftrl", cdf="exponential"),
    "adafed": eh.AdaFed(gamma=1.0, server_lr=0.1),
    "groupconstraint": eh.GroupConstraint(bound=0.01, smallest=0),
    "groupconstraint_local": eh.GroupConstraint(bound=0.0, scope="local", smallest=0),
    "groupconstraint_loss": eh.GroupConstraint(
        notion="group_loss", bound=0.3, inner=eh.FAFL(alpha=0.5, mu=0.1)
    ),
    "fedlf": eh.FedLF(),
    "fedlf_whole": eh.FedLF(layers=False, tau=1),
    "localonly": eh.LocalOnly(),
    "finetuned": eh.FineTuned(epochs=2, inner=eh.GIFAIR(strength=0.5)),
    "fedprox": eh.FedProx(mu=0.1, inner=eh.QFFL(q=0.5)),
    "fedavgm": eh.FedAvgM(lr=0.5, momentum=0.5, inner=eh.Averaged(eh.AFL())),
    "fedadam": eh.FedAdam(lr=0.05),
    "clipped": eh.Clipped(norm=0.1, inner=eh.Ditto(lam=0.5)),
    "lossguard": eh.LossGuard(cap=0.4, inner=eh.DRFA(lr_lambda=0.1)),
    "coordinatemedian": eh.CoordinateMedian(inner=eh.AFL(lr_lambda=0.1)),
    "trimmedmean": eh.TrimmedMean(trim=0.15, inner=eh.FAFL(alpha=0.5, mu=0.1, lr_eta=0.05)),
    "geometricmedian": eh.GeometricMedian(inner=eh.QFFL(q=1.0)),
    "fedfb": eh.FedFB(alpha=0.2),
    "fedfb_parity": eh.FedFB("demographic_parity", alpha=0.2, statistic="soft"),
    "fedfb_odds": eh.FedFB("equalised_odds", alpha=0.1, statistic="hard", normalised=True),
    "fedfb_client": eh.FedFB("client_parity", alpha=0.05, decay=0.0),
    "fairfed": eh.FairFed(beta=0.1),
    "fairfed_exponential": eh.FairFed(beta=0.5, notion="demographic_parity", rule="exponential"),
    "fairfed_sums": eh.FairFed(beta=0.1, sums_only=True),
    "mfairfl": eh.MFairFL(bound=0.01, smallest=0, alpha=0.2, tau=2),
    "fedmdfg": eh.FedMDFG(s=2),
    "fedmdfg_plain": eh.FedMDFG(theta=0.0, s=0, history=False),
    "eagle": eh.EAGLE(lam=2.0),
    "eagle_uniform": eh.EAGLE(lam=0.5, variance="uniform", reference="seen"),
    "fedheal": eh.FedHEAL(),
    "fedce": eh.FedCE(),
    "fedce_times": eh.FedCE(combination="times"),
    "fedgini": eh.FedGini(epsilon=0.2),
    "reweighed": eh.Reweighed(inner=eh.FairFed(beta=0.1, sums_only=True)),
    "reweighed_global": eh.Reweighed("global", inner=eh.FairFed(beta=0.1)),
    "fcfl": eh.FCFL(bound=0.05, smallest=1),
    "fcfl_pareto": eh.FCFL("equal_opportunity", minimax_rounds=1, smallest=1),
}


def with_output(method: eh.Algorithm, output: str) -> eh.Algorithm:
    """A method that hands out the "last" model, or the "average" of those after each round."""
    return eh.Averaged(method) if output == "average" else method


# unequal on purpose: from one sample to three hundred
SIZES = (1, 300, 7, 40, 33, 2, 120, 64, 15, 90)
# the same in few batches, for tests that train every client many times
FEWER = (1, 70, 7, 40, 33, 2, 64, 15, 34, 50)


def ragged(
    sizes: tuple[int, ...] = SIZES, teams: bool = True, dtype: type = np.float64, seed: int = 0
) -> eh.Federation:
    """Clients of very different sizes, each with its own shift, in two teams and three groups; a
    little test data."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, 5))

    def client(index: int, size: int) -> dict[str, object]:
        y = rng.integers(0, 3, size)
        x = centres[y] + rng.normal(size=(size, 5)) + 0.3 * index
        entry: dict[str, object] = {
            "x": x.astype(dtype),
            "y": y,
            "group": rng.choice(["a", "b", "c"], size),
        }
        return entry | ({"team": "even" if index % 2 == 0 else "odd"} if teams else {})

    train = [client(index, size) for index, size in enumerate(sizes)]
    test = [
        {key: value for key, value in client(index, 9).items() if key != "team"}
        for index in range(len(sizes))
    ]
    return eh.Federation.from_arrays(train, test=test)


def network(dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.nn.Module:
    """A small network with two layers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        ).to(dtype)


def large(dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    """A network of 72 MB for the same samples, which takes its time to be sent."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wide = 1 << 20
        return torch.nn.Sequential(
            torch.nn.Linear(5, wide), torch.nn.Tanh(), torch.nn.Linear(wide, 3)
        ).to(dtype)
