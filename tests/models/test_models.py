"""Networks: their sizes, their start, their errors, and that both engines train them alike."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.engines import choose
from evenhand.engines.auto import _try_stacking
from evenhand.models import CNN, LSTM, MLP, MODELS, CharLSTM, Linear, ResNet18, TextLSTM, WordLSTM
from evenhand.models.cnn import VARIANTS
from evenhand.models.lstm import _in_one_piece, _Recurrence
from evenhand.studies.specs.spec import Spec

SIZES = (7, 3, 12)  # samples of three clients


def federation(
    shape: tuple[int, ...], classes: int, tokens: int | None = None, sizes: tuple[int, ...] = SIZES
) -> eh.Federation:
    generator = torch.Generator().manual_seed(1)
    count = sum(sizes)
    x = (
        torch.randn(count, *shape, generator=generator)
        if tokens is None
        else torch.randint(tokens, (count, *shape), generator=generator)
    )
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    return eh.Federation(eh.Part(x, torch.randint(classes, (count,), generator=generator), offsets))


def vectors(words: int = 12, dimensions: int = 6) -> Tensor:
    return torch.randn(words, dimensions, generator=torch.Generator().manual_seed(2))


# name: module, sample shape, classes, tokens
SMALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int | None]] = {
    "linear": (lambda: MODELS["linear"]((5,), 3, 0), (5,), 3, None),
    "mlp": (lambda: MODELS["mlp"]((5,), 3, 0, hidden=[8, 6]), (5,), 3, None),
    **{
        f"cnn {variant}": (
            lambda variant=variant, side=side: MODELS["cnn"](
                (1, side, side), 4, 0, variant=variant, channels=[4, 6], hidden=[16], dropout=0
            ),
            (1, side, side),
            4,
            None,
        )
        # two unpadded convolutions and poolings leave nothing of 8 x 8
        for variant, side in ((name, 16 if name == "propfair" else 8) for name in VARIANTS)
    },
    "char_lstm": (lambda: MODELS["char_lstm"]((6,), 11, 0, symbols=11, units=10), (6,), 11, 11),
    "text_lstm": (
        lambda: MODELS["text_lstm"]((5,), 2, 0, vectors=vectors(), units=7, dense=4),
        (5,),
        2,
        12,
    ),
    "char_lstm, one layer": (
        lambda: MODELS["char_lstm"]((6,), 11, 0, symbols=11, units=10, layers=1),
        (6,),
        11,
        11,
    ),
    "text_lstm, one dense layer": (
        lambda: MODELS["text_lstm"]((5,), 2, 0, vectors=vectors(), units=7, dense=0),
        (5,),
        2,
        12,
    ),
    "word_lstm": (
        lambda: MODELS["word_lstm"]((6,), 11, 0, embedding=5, units=9, dense=[4]),
        (6,),
        11,
        11,
    ),
    "resnet18 cifar": (lambda: MODELS["resnet18"]((3, 8, 8), 3, 0), (3, 8, 8), 3, None),
    "resnet18 imagenet": (
        lambda: MODELS["resnet18"]((1, 16, 16), 3, 0, stem="imagenet"),
        (1, 16, 16),
        3,
        None,
    ),
}


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


# ---- both engines


PRECISION = {torch.float64: 1e-9, torch.float32: 1e-4}
# once each: they take seconds
DEEP = {"resnet18 cifar": torch.float64, "resnet18 imagenet": torch.float32}


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n in SMALL for d in PRECISION if DEEP.get(n, d) is d]
)
def test_engines_agree(name: str, dtype: torch.dtype) -> None:
    build, shape, classes, tokens = SMALL[name]
    fed = federation(shape, classes, tokens, (2, 1) if name in DEEP else SIZES)
    local = eh.LocalSGD(lr=0.1, epochs=1, batch_size=2 if name in DEEP else 4)
    rounds = 1 if name in DEEP else 3
    method = eh.FedAvg() if name in DEEP else eh.AFL()
    loop, vmap = (
        eh.fit(build().to(dtype), fed, method, rounds=rounds, local=local, engine=engine)
        for engine in ("loop", "vmap")
    )
    start = build().to(dtype).state_dict()
    for key, value in loop.params.items():
        torch.testing.assert_close(vmap.params[key], value, rtol=0, atol=PRECISION[dtype])
    # they did train
    assert max(float((value - start[key]).abs().max()) for key, value in loop.params.items()) > 1e-3
    for one, other in zip(loop.score_rows, vmap.score_rows, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=PRECISION[dtype])


@pytest.mark.parametrize("name", ["cnn pfl", "char_lstm", "text_lstm", "word_lstm"])
@pytest.mark.parametrize(
    "engines",
    [(eh.Loop(1), eh.Loop(3)), (eh.Vmap(1), eh.Vmap(2), eh.Vmap(5))],
    ids=["threads", "chunks"],
)
def test_threads_and_chunks_change_no_bit(name: str, engines: tuple[eh.Engine, ...]) -> None:
    build, shape, classes, tokens = SMALL[name]
    fed = federation(shape, classes, tokens, (7, 3, 12, 9, 5))
    local = eh.LocalSGD(lr=0.3, epochs=1, batch_size=3)
    first, *others = (
        eh.fit(build(), fed, eh.AFL(), rounds=2, local=local, engine=engine).params
        for engine in engines
    )
    for other in others:
        assert all(torch.equal(value, other[key]) for key, value in first.items())


def test_auto_measures_recurrent_layers_on_a_cpu_once() -> None:
    build, shape, classes, tokens = SMALL["char_lstm"]
    fed = federation(shape, classes, tokens)
    assert choose("auto", eh.Model(build()), fed) == choose("auto", eh.Model(build()), fed)
    _try_stacking(eh.Model(build()), fed)  # both can do it
    # cannot be stacked
    assert isinstance(choose("auto", eh.Model(TorchLSTM()), federation((5,), 3)), eh.Loop)


class TorchLSTM(nn.Module):
    """torch's own layer, which cannot be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.lstm(x.unsqueeze(-1))[0][:, -1])
        return scores


class Deciding(nn.Module):
    """Looks at a number, which cannot be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y.exp() if self.layer.weight.sum() > 1e6 else y


def test_torchs_own_lstm_runs_in_the_loop_without_a_word_since_that_is_the_faster_engine() -> None:
    fed = federation((5,), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert eh.fit(TorchLSTM(), fed, eh.FedAvg(), rounds=2).history_rows[-1]["answered"] == 3


def test_a_module_that_cannot_be_stacked_is_trained_in_the_loop_with_one_warning() -> None:
    fed = federation((5,), 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = eh.fit(Deciding(), fed, eh.FedAvg(), rounds=3, eval_every=1)
    assert ["cannot be stacked over clients" in str(warning.message) for warning in caught] == [
        True
    ]
    assert "\n" not in str(caught[0].message)
    looped = eh.fit(Deciding(), fed, eh.FedAvg(), rounds=3, engine="loop")
    assert looped.params.keys() == result.params.keys()


# ---- the LSTM


def unrolled(lstm: LSTM, x: Tensor) -> Tensor:
    """The states by the way that stacked clients take."""
    return torch.func.vmap(lstm)(x[None])[0]


@pytest.mark.parametrize("way", [LSTM.__call__, unrolled], ids=["kernel", "unrolled"])
def test_lstm_is_torchs_with_the_same_weights(way: Callable[[LSTM, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    ours, torchs = LSTM(5, 7, 2).double(), nn.LSTM(5, 7, 2, batch_first=True).double()
    torchs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 9, 5, dtype=torch.float64)
    torch.testing.assert_close(way(ours, x), torchs(x)[0], rtol=0, atol=1e-14)
    expected = torch.autograd.grad(torchs(x)[0].square().sum(), list(torchs.parameters()))
    got = torch.func.grad(
        lambda weights: torch.func.functional_call(ours, weights, (x,)).square().sum()
    )(dict(ours.named_parameters()))
    for one, other in zip(got.values(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_lstm_starts_as_torchs_does() -> None:
    torch.manual_seed(3)
    ours = LSTM(5, 7, 2)
    torch.manual_seed(3)
    torchs = nn.LSTM(5, 7, 2)
    assert list(ours.state_dict()) == list(torchs.state_dict())
    assert all(
        torch.equal(one, other)
        for one, other in zip(ours.parameters(), torchs.parameters(), strict=True)
    )


def test_one_step_of_an_lstm_by_hand() -> None:
    lstm = LSTM(1, 1)
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(torch.tensor([[0.5], [9.0], [-1.0], [2.0]]))
        lstm.bias_ih_l0.copy_(torch.tensor([0.1, 0.0, 0.2, 0.0]))
        lstm.bias_hh_l0.zero_()
    cell = 1 / (1 + math.exp(-1.1)) * math.tanh(-1.8)  # i g at x = 2; nothing to forget
    expected = 1 / (1 + math.exp(-4.0)) * math.tanh(cell)
    for way in (LSTM.__call__, unrolled):
        assert way(lstm, torch.tensor([[[2.0]]])).item() == pytest.approx(expected, rel=1e-6)


def test_first_and_second_derivatives_of_the_recurrence_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    inputs = [
        torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((3, 2, 8), (8, 2))
    ]
    assert torch.autograd.gradcheck(_Recurrence.apply, inputs)
    assert torch.autograd.gradgradcheck(_Recurrence.apply, inputs)


def test_weights_for_cudnn_are_the_same_values_in_one_buffer() -> None:
    weights = list(LSTM(2, 3, 2).parameters())
    packed = _in_one_piece(weights)
    assert all(torch.equal(one, other) for one, other in zip(weights, packed, strict=True))
    order = sorted(range(8), key=lambda k: packed[k].data_ptr())
    assert order == [0, 1, 4, 5, 2, 3, 6, 7]  # matrices of both layers, then biases


def test_an_lstm_in_evaluation_mode_has_gradients() -> None:
    lstm = LSTM(2, 3).eval()
    (slope,) = torch.autograd.grad(lstm(torch.ones(1, 4, 2)).sum(), [lstm.weight_hh_l0])
    assert slope.abs().sum().item() > 0


# ---- sizes


@pytest.mark.parametrize(
    ("module", "count"),
    [
        (lambda: Linear(784, 3), 784 * 3 + 3),
        (lambda: Linear(100, 1), 101),
        (lambda: MLP(784, 10, (200,)), 785 * 200 + 201 * 10),
        (lambda: CNN(), 26 * 32 + (25 * 32 + 1) * 64 + (49 * 64 + 1) * 128 + 129 * 62),
        (
            lambda: CNN(**VARIANTS["ditto"]),
            26 * 16 + (25 * 16 + 1) * 32 + (49 * 32 + 1) * 128 + 129 * 62,
        ),
        (lambda: CNN(**VARIANTS["leaf"]), 6_603_710),  # as LEAF's code gives it
        (
            lambda: CNN((3, 32, 32), 10, **VARIANTS["pfl"]),
            28 * 32 + (9 * 32 + 1) * 64 + (14 * 14 * 64 + 1) * 128 + 129 * 10,
        ),
        (lambda: LSTM(8, 256), 4 * 256 * (8 + 256 + 2)),
        (lambda: CharLSTM(), 80 * 8 + 1024 * (266 + 514) + 257 * 80),
        (
            lambda: CNN((3, 32, 32), 10, **VARIANTS["propfair"]),
            76 * 64 + (25 * 64 + 1) * 64 + (64 * 25 + 1) * 384 + 385 * 192 + 193 * 10,
        ),
        (lambda: CharLSTM(layers=1), 80 * 8 + 1024 * 266 + 257 * 80),
        # Reddi et al. have 4 050 748, with one bias in the LSTM
        (lambda: WordLSTM(), 4_050_748 + 4 * 670),
        (lambda: WordLSTM(dense=()), 10_004 * 96 + 2680 * 768 + 671 * 10_004),
        (lambda: TextLSTM(torch.zeros(3, 300), dense=0), 400 * (402 + 202) + 101 * 2),
        (lambda: TextLSTM(torch.zeros(3, 300)), 400 * (402 + 202) + 101 * 30 + 31 * 2),
        # torchvision's resnet18: affine parameters as many as BatchNorm's
        (lambda: ResNet18(outputs=1000, stem="imagenet"), 11_689_512),
        (lambda: ResNet18(stem="imagenet"), 11_689_512 - 513 * 990),
        (lambda: ResNet18(), 11_689_512 - 513 * 990 - 64 * 3 * (49 - 9)),
    ],
)
def test_parameters_are_counted(module: Callable[[], nn.Module], count: int) -> None:
    with torch.device("meta"):
        assert parameters(module()) == count


def test_ditto_and_pfl_drop_out_and_zero_turns_it_off() -> None:
    def chances(module: nn.Module) -> list[float]:
        return [layer.p for layer in module.modules() if isinstance(layer, nn.Dropout)]

    for variant in ("ditto", "pfl"):
        assert chances(MODELS["cnn"]((1, 8, 8), 4, 0, variant=variant)) == [0.25, 0.5]
        assert chances(MODELS["cnn"]((1, 8, 8), 4, 0, variant=variant, dropout=0)) == []
    assert chances(MODELS["cnn"]((1, 8, 8), 4, 0, dropout=[0.0, 0.3])) == [0.3]


def test_stems_keep_or_quarter_the_image() -> None:
    assert ResNet18((3, 16, 16)).stem(torch.zeros(1, 3, 16, 16)).shape == (1, 64, 16, 16)
    assert ResNet18((3, 16, 16), stem="imagenet").stem(torch.zeros(1, 3, 16, 16)).shape == (
        1,
        64,
        4,
        4,
    )
    assert ResNet18((3, 16, 16)).blocks(torch.zeros(1, 64, 16, 16)).shape == (1, 512, 2, 2)


def test_images_without_channels_have_one() -> None:
    x = torch.randn(2, 8, 8)
    for name in ("cnn", "resnet18"):
        flat, deep = (MODELS[name](shape, 3, 0).eval() for shape in ((8, 8), (1, 8, 8)))
        torch.testing.assert_close(flat(x), deep(x[:, None]))


# ---- the start


def old_mlp(shape: tuple[int, ...], outputs: int, seed: int, hidden: list[int]) -> list[Tensor]:
    """The parameters that published figures started from: layers drawn one after the other from the
    seed."""
    torch.manual_seed(seed)
    widths = [math.prod(shape), *hidden, outputs]
    return [
        parameter
        for k in range(len(widths) - 1)
        for parameter in nn.Linear(widths[k], widths[k + 1]).parameters()
    ]


def test_mlp_starts_where_it_always_did() -> None:
    for name, options, hidden in (("mlp", {"hidden": [32]}, [32]), ("linear", {}, [])):
        module = MODELS[name]((64,), 10, 0, **options)
        expected = old_mlp((64,), 10, 0, hidden)
        assert all(
            torch.equal(one, other)
            for one, other in zip(module.parameters(), expected, strict=True)
        )
    assert list(MODELS["mlp"]((64,), 10, 0).state_dict()) == [
        "1.weight",
        "1.bias",
        "3.weight",
        "3.bias",
    ]


@pytest.mark.parametrize("name", SMALL)
def test_the_start_depends_on_the_seed_alone_and_leaves_torchs_generator(name: str) -> None:
    build = SMALL[name][0]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build().state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert all(torch.equal(value, one[key]) for key, value in build().state_dict().items())


def test_other_seeds_start_elsewhere() -> None:
    for name, shape in (
        ("linear", (3,)),
        ("cnn", (1, 8, 8)),
        ("char_lstm", (4,)),
        ("resnet18", (1, 8, 8)),
    ):
        one, other = (next(MODELS[name](shape, 2, seed).parameters()) for seed in (0, 1))
        assert not torch.equal(one, other)


def test_linear_can_start_as_glorot_or_at_zero() -> None:
    weight, bias = MODELS["linear"]((784,), 3, 0, init="glorot").parameters()
    limit = math.sqrt(6 / (784 + 3))
    assert 0.99 * limit < weight.abs().max().item() <= limit
    assert weight.var().item() == pytest.approx(limit**2 / 3, rel=0.05)
    assert not bias.any()
    assert not any(
        bool(parameter.any())
        for parameter in MODELS["linear"]((784,), 1, 0, init="zero").parameters()
    )


def test_resnets_convolutions_start_with_he_variance() -> None:
    weight = ResNet18().blocks[6].first.weight  # 512 outputs, 3x3
    assert weight.var().item() == pytest.approx(2 / (512 * 9), rel=0.02)


# ---- word vectors


def test_word_vectors_are_shared_not_copied_not_trained_and_not_saved() -> None:
    words = vectors()
    module = MODELS["text_lstm"]((5,), 2, 0, vectors=words, units=3, dense=2)
    model = eh.Model(module)
    for copy in (module, model._module, model._own(), model.training()._own()):
        assert copy.words.vectors.data_ptr() == words.data_ptr()
    assert not [key for key in model.state_dict(model.init()) if "words" in key]
    assert not [name for name in model.init() if "words" in name]
    module.double()
    assert words.dtype == torch.float32


def test_glove_is_read_from_the_data_root_that_the_data_came_from(tmp_path: Path) -> None:
    (tmp_path / "glove").mkdir()
    rows = [
        f"{word} " + " ".join([str(k)] * 50) for k, word in enumerate(("the", "of", "and"), start=1)
    ]
    (tmp_path / "glove" / "glove.6B.50d.txt").write_text("\n".join(rows) + "\n")
    data = {"name": "airline_sentiment", "root": str(tmp_path), "dimensions": 50, "most": 2}
    module = Spec(data=data, model={"name": "text_lstm", "units": 3}).build_model(
        federation((4,), 2, tokens=4)
    )
    assert isinstance(module, TextLSTM)
    # padding, unknown (the mean), then the words
    assert module.words.vectors[:, 0].tolist() == [0.0, 1.5, 1.0, 2.0]


def test_padding_adds_what_its_vector_says() -> None:
    module = TextLSTM(torch.tensor([[0.0, 0.0], [1.0, -1.0]]), units=3)
    x = torch.tensor([[1, 0]])
    state = module.lstm(torch.tensor([[[1.0, -1.0], [0.0, 0.0]]]))[:, -1]
    torch.testing.assert_close(module(x), module.last(module.dense(state)))


def test_words_are_predicted_from_what_comes_after_the_padding() -> None:
    torch.manual_seed(0)
    module = WordLSTM(9, 4, 5, 2, (3,)).double()
    x = torch.tensor([[0, 0, 7, 3], [7, 1, 0, 4], [0, 0, 0, 7], [0, 0, 0, 0]])
    scores = module(x)
    for row, tokens in enumerate(([7, 3], [7, 1, 0, 4], [7])):  # a 0 later on is a word
        state = module.lstm(module.embedding(torch.tensor([tokens])))[:, -1]
        torch.testing.assert_close(scores[row], module.dense[1](module.dense[0](state))[0])
    assert scores.isfinite().all()
    stacked = torch.func.vmap(module)(x[:, None])[:, 0]
    torch.testing.assert_close(stacked, scores)


# ---- errors and specs


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        (
            "cnn",
            (64,),
            {},
            (
                r"needs images of shape \(channels, height, width\), got samples of shape \[64\];"
                r' reshape x, or use the model "mlp"'
            ),
        ),
        ("cnn", (32, 32, 3), {}, r"needs channels first.*x\.permute\(0, 3, 1, 2\)"),
        ("resnet18", (64,), {}, "ResNet18 needs images"),
        ("cnn", (1, 3, 3), {}, r"images of \[1, 3, 3\] are too small"),
        (
            "cnn",
            (1, 8, 8),
            {"variant": "lenet"},
            "variant must be one of femnist, ditto, leaf, pfl, propfair, got 'lenet'",
        ),
        ("cnn", (1, 8, 8), {"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ("cnn", (1, 8, 8), {"kernel": 4}, "kernel must be odd if padded, got 4"),
        ("cnn", (1, 8, 8), {"hidden": [0]}, "must be a whole number >= 1, got 0"),
        (
            "char_lstm",
            (8, 2),
            {},
            r"needs samples that are sequences of characters.*got shape \[8, 2\]",
        ),
        (
            "char_lstm",
            (8,),
            {"symbols": 2},
            "symbols must be at least 3, the number of labels, got 2",
        ),
        ("text_lstm", (1, 8, 8), {}, "needs samples that are sequences of words"),
        ("word_lstm", (1, 8, 8), {}, "word_lstm needs samples that are sequences of words"),
        ("word_lstm", (8,), {"dense": 96}, "dense must be a list of widths, got 96"),
        ("word_lstm", (8,), {"dense": [0]}, "every entry of dense must be a whole number >= 1"),
        (
            "text_lstm",
            (8,),
            {"vectors": "word2vec"},
            "vectors must be \"glove\" or a tensor.*got 'word2vec'",
        ),
        (
            "text_lstm",
            (8,),
            {"vectors": torch.zeros(3)},
            r"vectors must be a tensor \(words, dimensions\), got shape \[3\]",
        ),
        (
            "resnet18",
            (1, 8, 8),
            {"stem": "tiny"},
            'stem must be "cifar" or "imagenet", got \'tiny\'',
        ),
        (
            "resnet18",
            (1, 8, 8),
            {"groups": 3},
            "groups must divide the 64 channels of the first stage, got 3",
        ),
        ("mlp", (8,), {"hidden": [0]}, r"hidden must be a list of widths >= 1, got \[0\]"),
        ("mlp", (8,), {"hidden": [4], "init": "zero"}, "if there are hidden layers"),
        ("linear", (8,), {"init": "he"}, 'init must be "torch", "glorot" or "zero"'),
    ],
)
def test_what_does_not_fit_gives_one_line_with_the_way_out(
    name: str, shape: tuple[int, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        MODELS[name](shape, 3, 0, **options)
    assert "\n" not in str(caught.value)


def test_a_spec_names_a_model_and_its_options() -> None:
    digits = eh.datasets.digits(clients=4, seed=0, flat=False)
    module = Spec(
        model={"name": "cnn", "variant": "ditto", "channels": [2, 3], "dropout": 0},
        data={"name": "digits"},
    ).build_model(digits)
    assert isinstance(module, CNN)
    assert module[-1].out_features == 10
    with pytest.raises(
        eh.SpecError, match="unknown keyword of model cnn: 'varient'; did you mean 'variant'"
    ):
        Spec(model={"name": "cnn", "varient": "ditto"}).build_model(digits)
    with pytest.raises(eh.SpecError, match=r'model cnn: CNN needs images .* use the model "mlp"'):
        Spec(model={"name": "cnn"}).build_model(eh.datasets.digits(clients=4, seed=0))


def test_labels_minus_one_and_one_get_a_single_output() -> None:
    fed = federation((5,), 2)
    signs = eh.Federation(eh.Part(fed.train.x, fed.train.y * 2 - 1, fed.train.offsets))
    assert Spec(model={"name": "linear", "init": "zero"}).build_model(signs)[-1].out_features == 1
    assert Spec(model={"name": "linear", "outputs": 1}).build_model(fed)[-1].out_features == 1


@pytest.mark.parametrize(
    ("y", "loss", "outputs"),
    [
        ([0, 1, 1], "cross_entropy", 2),
        ([0, 1, 1], "bce", 1),
        ([0, 1, 1], "focal", 2),
        ([0, 1, 2], "ordinal", 2),
        ([[0, 1, 0], [1, 1, 0], [0, 0, 0]], "bce", 3),
        ([[0.5, 1.0], [1.0, 2.0], [0.0, 0.0]], "mse", 2),
        ([0.5, 1.0, 2.0], "huber", 1),
    ],
)
def test_the_outputs_of_a_named_model_follow_from_labels_and_loss(
    y: Any, loss: str, outputs: int
) -> None:
    fed = eh.Federation.from_arrays([{"x": torch.randn(3, 4), "y": torch.tensor(y)}])
    module = Spec(model={"name": "linear"}, loss=loss).build_model(fed)
    assert module[-1].out_features == outputs
    eh.fit(module, fed, eh.FedAvg(), loss=loss, rounds=1)


def test_rounding_to_few_bits_is_not_taken_for_samples_that_see_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = eh.Model._call

    def rounded(self: eh.Model, *given: object) -> Tensor:
        """As bf16 may: how a value is rounded depends on how many there are."""
        output = exact(self, *given)
        return output * (1 + 0.01 * len(output)) if self.precision == "bf16" else output

    monkeypatch.setattr(eh.Model, "_call", rounded)
    part = eh.Part(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]), torch.tensor([0, 2, 4]))
    model = eh.Model(nn.Linear(3, 2)).with_precision("bf16")
    model.check(eh.Federation(part))
    assert model.target is not None
