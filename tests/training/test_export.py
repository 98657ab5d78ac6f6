"""Exported files: what they compute, what they say about themselves, and what cannot be exported."""

from __future__ import annotations

import copy
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.models import MODELS
from evenhand.training import exporting
from evenhand.training.exporting import ExportError, export

pytest.importorskip("onnx", reason="onnx is not installed")
runtime: Any = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
PATIENTS = Path(__file__).parent.parent.parent / "examples" / "patients.csv"


def outputs(path: Path, inputs: dict[str, Tensor], by_name: bool = False) -> Tensor:
    """What a file computes, read without evenhand; programs of torch take dicts by name."""
    if path.suffix == ".onnx":
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return torch.as_tensor(session.run(None, {k: v.numpy() for k, v in inputs.items()})[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.load(path).module()
    found: Tensor = module(**inputs) if by_name else module(*inputs.values())
    return found.detach()


def about(path: Path) -> dict[str, str]:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: dict[str, str] = session.get_modelmeta().custom_metadata_map
    return found


@pytest.fixture(scope="module")
def patients() -> eh.Federation:
    return eh.Federation.from_frame(
        eh.read_table(PATIENTS), client="hospital", label="complication", group="sex", seed=0
    )


@pytest.fixture(scope="module")
def personal(patients: eh.Federation) -> eh.Result:
    module = MODELS["mlp"]((len(patients.encoding.features),), 2, 0)
    return eh.fit(module, patients, eh.Ditto(lam=0.1), rounds=3)


@pytest.mark.parametrize("format", FILES)
def test_a_clients_own_model_is_exported_with_its_labels_and_features(
    personal: eh.Result, patients: eh.Federation, format: str, tmp_path: Path
) -> None:
    path = tmp_path / FILES[format]
    made = personal.export(path, client="Harbour")
    x = patients.test.x[:9]
    own, shared = personal.module("Harbour")(x), personal.module()(x)
    assert not torch.allclose(own, shared, atol=1e-3)
    (name,) = made.inputs
    torch.testing.assert_close(outputs(path, {name: x}), own.detach(), rtol=0, atol=made.tolerance)
    assert (made.path, made.format) == (path, format)
    assert Path(made) == path
    assert made.difference <= made.tolerance
    assert made.inputs == {name: ("batch", len(patients.encoding.features))}
    assert str(made).startswith(f"{path}: ")
    assert "differ from the network's by at most" in str(made)
    if format == "onnx":
        facts = about(path)
        labels, features = json.loads(facts["labels"]), json.loads(facts["features"])
    else:
        extra = {"evenhand.json": ""}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.load(path, extra_files=extra)
        facts = json.loads(extra["evenhand.json"])
        labels, features = facts["labels"], facts["features"]
    assert labels == ["no", "yes"]
    assert features == list(patients.encoding.features)
    assert facts["client"] == "Harbour"
    assert facts["algorithm"] == "Ditto(lam=0.1)"
    assert facts["evenhand"] == eh.__version__


NETWORKS = {
    "linear": (lambda: MODELS["linear"]((6,), 3, 0), lambda n: torch.randn(n, 6)),
    "cnn": (lambda: MODELS["cnn"]((1, 28, 28), 10, 0), lambda n: torch.rand(n, 1, 28, 28)),
    "char_lstm": (
        lambda: MODELS["char_lstm"]((5,), 20, 0, symbols=20, units=8, layers=1),
        lambda n: torch.randint(0, 20, (n, 5)),
    ),
    "word_lstm": (
        lambda: MODELS["word_lstm"]((5,), 20, 0, embedding=6, units=8, dense=(4,)),
        lambda n: torch.randint(0, 20, (n, 5)),
    ),
}


@pytest.mark.parametrize("format", FILES)
@pytest.mark.parametrize("name", NETWORKS)
def test_files_compute_what_networks_do_for_any_number_of_samples(
    name: str, format: str, tmp_path: Path
) -> None:
    make, draw = NETWORKS[name]
    torch.manual_seed(0)
    module, path = make().eval(), tmp_path / FILES[format]
    made = export(module, path, draw(2))
    assert made.difference < 1e-5
    (name_of_input,) = made.inputs
    for size in (1, 2, 8):
        x = draw(size)
        if name == "word_lstm":
            x[0, :3] = 0  # padding
        found = outputs(path, {name_of_input: x})
        torch.testing.assert_close(found, module(x).detach(), rtol=0, atol=made.tolerance)


def test_float64_is_kept(tmp_path: Path) -> None:
    module = nn.Linear(4, 2).double().eval()
    made = export(module, tmp_path / "m.onnx", torch.randn(3, 4))
    x = torch.randn(2, 4, dtype=torch.float64)
    found = outputs(tmp_path / "m.onnx", {"input": x})
    assert found.dtype == torch.float64
    assert made.tolerance < 1e-7
    torch.testing.assert_close(found, module(x).detach(), rtol=0, atol=1e-12)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(4, 2)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(a) + self.right(b), a


class Dict(Two):
    def forward(self, batch: dict[str, Any]) -> dict[str, Tensor]:  # type: ignore[override]
        return {"scores": self.left(batch["a"]["x"]) - self.right(batch["b"])}


@pytest.mark.parametrize("format", FILES)
def test_tuples_and_nested_dicts_become_named_inputs(format: str, tmp_path: Path) -> None:
    a, b = torch.randn(4, 3), torch.randn(4, 4)
    path = tmp_path / FILES[format]
    both = Two().eval()
    assert list(export(both, path, (a, b)).inputs) == ["a", "b"]
    torch.testing.assert_close(outputs(path, {"a": a, "b": b}), both(a, b)[0].detach())
    nested = Dict().eval()
    example = {"a": {"x": a}, "b": b}
    made = export(nested, path, example, output=lambda o: o["scores"])
    assert list(made.inputs) == ["a_x", "b"]
    torch.testing.assert_close(
        outputs(path, {"a_x": a, "b": b}, by_name=True),
        nested(example)["scores"].detach(),
        rtol=0,
        atol=1e-5,
    )


class Bessel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.special.bessel_j0(x))


class Double(Bessel):
    """onnxruntime has no convolution in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 1, 3, padding=1)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x[:, None])[:, 0])


class Branching(Bessel):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.last(x)
        return -self.last(x)


class Counting(Bessel):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(x) / float(len(x))


class Remembering(Bessel):
    """Its outputs differ from call to call, so no file can reproduce them."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.last(x) + self.calls


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        (Bessel(), "m.onnx", 'ONNX has no operator for prims.bessel_j0; .* use format="torch"'),
        (
            Double(),
            "m.onnx",
            r"onnxruntime cannot run this network: Could not .* train it in float32",
        ),
        (Branching(), "m.pt2", r"data-dependent .* at `if x.sum\(\) > 0:` in forward"),
        (Counting(), "m.pt2", r"depends on the number of samples, .* write x.shape\[0\]"),
        (Remembering(), "m.pt2", "differ from the network's by .*, more than .*; nothing was kept"),
        (Remembering(), "m.onnx", 'nothing was kept; try format="torch"'),
    ],
    ids=["missing operator", "missing type", "branch", "number of samples", "torch", "onnx"],
)
def test_what_cannot_be_exported_is_said_in_one_line_and_leaves_the_old_file(
    module: nn.Module, name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("old")
    with pytest.raises(ExportError, match=message) as caught:
        export(module.eval(), tmp_path / name, torch.randn(3, 4))
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "old"


def test_bad_arguments_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.Linear(4, 2).eval(), torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"must end in .pt2 .* or .onnx, got 'm.bin'"):
        export(module, tmp_path / "m.bin", x)
    with pytest.raises(ValueError, match='format must be "torch" or "onnx", got'):
        export(module, tmp_path / "m.bin", x, format="tflite")
    with pytest.raises(TypeError, match="example must be a tensor"):
        export(module, tmp_path / "m.pt2", "text")
    with pytest.raises(ValueError, match="the same number of samples"):
        export(module, tmp_path / "m.pt2", (x, x[:2]))
    with pytest.raises(ValueError, match="the same number of samples"):
        export(module, tmp_path / "m.pt2", x[:0])
    (tmp_path / "file").touch()
    with pytest.raises(eh.RunError, match="cannot write"):
        export(module, tmp_path / "file" / "m.pt2", x)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install onnx .*evenhand\[onnx\]"):
        export(module, tmp_path / "m.onnx", x)
    assert export(module, tmp_path / "m.bin", x, format="torch").format == "torch"


def test_the_exporters_noise_stays_inside(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in FILES.values():
        export(nn.Linear(4, 2).eval(), tmp_path / name, torch.randn(3, 4))
    assert capfd.readouterr() == ("", "")
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_zeros_that_stand_in_for_samples_do_not_hide_differences(tmp_path: Path) -> None:
    """A server of a real federation has no samples, and traces with zeros."""
    module = nn.Linear(4, 2).eval()
    batch = exporting.Readout(module, exporting.Call(module), torch.zeros(2, 4)).batch(5)
    assert batch[0].shape == (5, 4)
    assert (batch[0] != 0).all()


def test_transformers_and_adapters_are_exported_and_peft_reads_what_was_saved(
    tmp_path: Path,
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=30, num_labels=3, intermediate_size=8, **sizes)
    )
    with warnings.catch_warnings():  # peft asks transformers in a way that is going to change
        warnings.simplefilter("ignore", FutureWarning)
        config = peft.LoraConfig(
            r=2, target_modules=["query"], modules_to_save=["classifier"], init_lora_weights=False
        )
        adapted = peft.get_peft_model(copy.deepcopy(bert), config)
    rng = np.random.default_rng(0)

    def client(count: int) -> dict[str, Any]:
        mask = (np.arange(6) < rng.integers(2, 7, count)[:, None]).astype(np.int64)
        ids = rng.integers(3, 30, (count, 6)) * mask
        inputs = {"input_ids": ids, "attention_mask": mask}
        return {"x": inputs, "y": rng.integers(0, 3, count)}

    fed = eh.Federation.from_arrays([client(8), client(6)], [client(4), client(4)])
    x = fed.test.x[:]
    plain = eh.fit(bert, fed, eh.FedAvg(), rounds=1)
    made = plain.export(tmp_path / "bert.onnx")
    assert made.inputs == {"input_ids": ("batch", 6), "attention_mask": ("batch", 6)}
    expected = plain.module()(**x).logits.detach()
    torch.testing.assert_close(
        outputs(tmp_path / "bert.onnx", x), expected, rtol=0, atol=made.tolerance
    )

    local = eh.LocalAdamW(lr=0.05, batch_size=4)
    result = eh.fit(adapted, fed, eh.Ditto(), rounds=2, local=local, out=tmp_path / "run")
    for client_or_all in (None, 1):
        trained = result.module(client_or_all)
        expected = trained(**x).logits.detach()
        path = tmp_path / "lora.pt2"
        result.export(path, client=client_or_all)
        torch.testing.assert_close(outputs(path, x, by_name=True), expected, rtol=0, atol=1e-5)

        folder = result.save_adapter(tmp_path / "adapter", client=client_or_all)
        assert {path.name for path in folder.iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
        }
        base = copy.deepcopy(bert)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            read = peft.PeftModel.from_pretrained(base, folder).eval()
        torch.testing.assert_close(read(**x).logits.detach(), expected, rtol=0, atol=1e-6)
    # the run directory has the shared one, and seals it
    written = (tmp_path / "run" / "adapter" / "adapter_model.safetensors").read_bytes()
    result.save_adapter(tmp_path / "shared")
    assert written == (tmp_path / "shared" / "adapter_model.safetensors").read_bytes()
    assert eh.verify(tmp_path / "run").whole
    (tmp_path / "run" / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    assert not eh.verify(tmp_path / "run").whole
    with pytest.raises(ValueError, match="BertForSequenceClassification has no adapter"):
        plain.save_adapter(tmp_path / "none")
