"""On a GPU: float32 results near those of the CPU loop, and results that come back on the CPU."""

from __future__ import annotations

import pytest
import torch

import evenhand as eh
from evenhand import tree
from evenhand.models import CNN, CharLSTM
from tests.support.federations import METHODS, network, ragged

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_twenty_rounds_end_near_the_cpu_loop(method: str, engine: str) -> None:
    local = eh.LocalSGD(lr=0.05, epochs=1, batch_size=32, momentum=0.5)
    settings = {"rounds": 20, "local": local, "cohort": eh.Uniform(6), "eval_every": 20}
    reference = eh.fit(network(torch.float32), ragged(), METHODS[method], engine="loop", **settings)
    result = eh.fit(
        network(torch.float32), ragged(), METHODS[method], engine=engine, device="cuda", **settings
    )
    both = [
        tree.flatten(
            {
                "params": r.params,
                "state": r.state,
                "own": {str(i): p for i, p in enumerate(r.personal or [])},
            }
        )
        for r in (reference, result)
    ]
    for key, value in both[0].items():
        assert both[1][key].device.type == "cpu"
        torch.testing.assert_close(both[1][key], value, rtol=1e-4, atol=1e-4)


def images(clients: int = 6) -> eh.Federation:
    generator = torch.Generator().manual_seed(0)
    return eh.Federation.from_arrays(
        [
            {
                "x": torch.randn(10 + 4 * i, 1, 12, 12, generator=generator),
                "y": torch.randint(0, 3, (10 + 4 * i,), generator=generator),
            }
            for i in range(clients)
        ]
    )


def texts(clients: int = 5) -> eh.Federation:
    generator = torch.Generator().manual_seed(0)
    return eh.Federation.from_arrays(
        [
            {
                "x": torch.randint(0, 20, (8 + i, 9), generator=generator),
                "y": torch.randint(0, 20, (8 + i,), generator=generator),
            }
            for i in range(clients)
        ]
    )


class Litter:
    """Fills memory that was freed too early with what is no number."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def __call__(self, *_: object) -> None:
        self.kept += [
            torch.full((size,), torch.nan, device="cuda")
            for size in (1, 6, 60, 150, 600)
            for _ in range(20)
        ]


MODELS = {
    "cnn": (lambda: CNN((1, 12, 12), 3, channels=(4, 8), kernel=3, hidden=(16,)), images),
    "lstm": (lambda: CharLSTM(20, 4, 16, 2), texts),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 1e-4), ("tf32", 2e-2), ("bf16", 1e-1)]
)
def test_images_and_texts_end_near_the_cpu_loop(
    kind: str, compile: bool, precision: str, tolerance: float
) -> None:
    build, federation = MODELS[kind]
    torch.manual_seed(0)
    module = build()
    settings = {
        "rounds": 20,
        "local": eh.LocalSGD(lr=0.05, epochs=1, batch_size=4),
        "cohort": eh.Uniform(4),
        "eval_every": 3,
    }
    reference = eh.fit(module, federation(), eh.FedAvg(), engine="loop", **settings)
    settings |= {"device": "cuda", "precision": precision, "progress": Litter()}
    result = eh.fit(module, federation(), eh.FedAvg(), engine=eh.Vmap(compile=compile), **settings)
    moved = max(
        float((reference.params[key] - value).abs().max())
        for key, value in module.state_dict().items()
    )
    assert moved > 3 * 1e-3
    for key, value in reference.params.items():
        torch.testing.assert_close(
            result.params[key],
            value,
            rtol=0,
            atol=tolerance * max(1.0, float(value.abs().max())),
            msg=key,
        )


def test_several_runs_together_equal_separate_ones() -> None:
    runs = [eh.Run(eh.QFFL(q=q), seed=seed) for q in (0.0, 0.5, 2.0) for seed in (0, 1)]
    settings = {"rounds": 12, "cohort": eh.Uniform(5), "device": "cuda", "eval_every": 4}
    together = eh.fit_many(network(torch.float32), ragged(), runs, **settings)
    for run, found in zip(runs, together, strict=True):
        alone = eh.fit(network(torch.float32), ragged(), run.algorithm, seed=run.seed, **settings)
        for key, value in alone.params.items():
            torch.testing.assert_close(found.params[key], value, rtol=1e-4, atol=1e-5)
        assert [row["answered"] for row in found.history_rows] == [
            row["answered"] for row in alone.history_rows
        ]


def breaks_at_99(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    error = (output.squeeze(-1) - target) ** 2
    return error + torch.where(target == 99, torch.inf, 0.0) * error


@pytest.mark.parametrize("engine", ["vmap", "loop"])
@pytest.mark.parametrize("k", [3, 1])  # with one client a round, rounds are void
@pytest.mark.parametrize(
    "method",
    [eh.FedAvg(), eh.FedAvgM(), eh.PropFair(), eh.QFFL(q=1.0), eh.Ditto(lam=0.1)],
    ids=repr,
)
def test_who_diverges_is_left_out_though_nobody_waits_to_know_it(
    method: eh.Algorithm, k: int, engine: str
) -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(1, 1).double()
    targets = {"calm": 1.0, "wild": 99.0, "low": -4.0, "high": 3.0}
    fed = eh.Federation.from_arrays(
        [
            {"x": torch.ones(4, 1), "y": torch.full((4,), t), "name": name}
            for name, t in targets.items()
        ]
    )
    calls: list[tuple[int, str]] = []

    def fit(**settings: object) -> eh.Result:
        local = eh.LocalSGD(lr=0.01, steps=2)
        return eh.fit(
            module,
            fed,
            method,
            loss=breaks_at_99,
            rounds=12,
            local=local,
            cohort=eh.Uniform(k),
            eval_every=6,
            **settings,
        )

    reference = fit(engine="loop")
    result = fit(
        engine=engine,
        device="cuda",
        progress=lambda done, row: calls.append((done, row["left_out"])),
    )
    missing = [(row["answered"], row["left_out"], row["void"]) for row in reference.history_rows]
    assert [
        (row["answered"], row["left_out"], row["void"]) for row in result.history_rows
    ] == missing
    assert any(left_out for _, left_out, _ in missing)
    assert any(void for _, _, void in missing) == (k == 1)
    assert calls == [(t + 1, left_out) for t, (_, left_out, _) in enumerate(missing)]
    for name, value in reference.params.items():
        torch.testing.assert_close(result.params[name], value, rtol=1e-9, atol=1e-9)
