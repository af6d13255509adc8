"""How far gradients reach, compared with Jacobians by autograd; and a toy recurrence whose Jacobians are known."""

import json
import math
import re
from typing import Any, Literal

import pytest
import torch

from headway.core.errors import UserError
from headway.look import gradient_flow as module
from headway.look import state_flow
from headway.look.flow_page import FlowOfArm, FlowPage
from headway.look.gradient_flow import GradientFlow, SideFlow, gradient_flow, loss_lengths, stream_norms
from headway.look.gradient_rows import GradientRows, in_segments
from headway.look.state_flow import Norms, _spectral_norm, hidden_states
from headway.models.language_model import LanguageModelSpec
from headway.nn.context import Context
from headway.nn.masks import Causal
from headway.nn.mixer import Mixer, MixerSpec
from headway.nn.replicated import parameter

T = 6


class ToySpec(MixerSpec):
    """h' = tanh(W h + x)"""

    kind: Literal["toy-recurrence"] = "toy-recurrence"

    def build(self, replicas, width, out_gain, needs):
        return Toy(replicas, width)

    def flops_per_token(self, width, segment):
        return 2 * width * width


class Toy(Mixer):
    called = "toy"

    def __init__(self, replicas: int, width: int):
        super().__init__()
        self.weight = parameter(replicas, width, width, std=0.5)

    def forward(self, x, context, state=None):
        h = torch.zeros_like(x[:, :, 0]) if state is None else state["hidden"]
        found = []
        for t in range(x.shape[2]):
            h = torch.tanh(h @ self.weight.mT + x[:, :, t])
            found.append(h)
        return torch.stack(found, 2), {"hidden": h}

    def step_bound(self):
        return torch.linalg.matrix_norm(self.weight, ord=2)


@pytest.fixture(scope="module")
def attention():
    return LanguageModelSpec(layers=2, width=8, context=16, mixer={"heads": 2}).build(11).eval()  # pyright: ignore


@pytest.fixture(scope="module")
def recurrence():
    return LanguageModelSpec(layers=2, width=8, context=16, mixer=ToySpec(), positions="none").build(11).eval()  # pyright: ignore


@pytest.fixture(scope="module")
def text():
    return torch.randint(11, (200,), generator=torch.Generator().manual_seed(0))


def rows(text, count: int) -> GradientRows:
    """This many rows, from the beginning of a text on."""
    return in_segments(text, T, count)


def flow(model, text, **more) -> GradientFlow:
    return gradient_flow(model, in_segments(text, T, 5), **more)


@pytest.mark.parametrize("name", ["attention", "recurrence"])
def test_norms_equal_those_of_autograds_jacobian(name, request, text):
    model = request.getfixturevalue(name)
    read = rows(text, 1)
    row = read.rows[0].ids
    x = model.embedded(model.positions.embed(model.embedding(row), torch.arange(T))).detach()
    top: list[torch.Tensor] = []

    def last(x):
        hooks = [
            model.embedded.register_forward_hook(lambda *_: x),
            model.layers[-1].stream.register_forward_hook(lambda module, given, out: top.append(out)),
        ]
        model.hidden(row)
        for hook in hooks:
            hook.remove()
        return top[-1][0, 0, -1]

    whole: Any = torch.autograd.functional.jacobian(last, x)
    jacobian = whole[:, 0, 0].movedim(1, 0).flip(0)  # [T, D, D]
    found = stream_norms(model, read)[0]["embedded"]
    torch.testing.assert_close(torch.tensor(found.typical), jacobian.norm(dim=(1, 2)) / 8**0.5)
    torch.testing.assert_close(torch.tensor(found.largest), torch.linalg.matrix_norm(jacobian, ord=2))


def test_for_larger_widths_the_typical_norm_is_estimated(attention, text, monkeypatch):
    exact = stream_norms(attention, rows(text, 2))[0]["embedded"]
    monkeypatch.setattr(module, "WIDEST", 4)
    monkeypatch.setattr(module, "PROBES", 4000)
    estimated = stream_norms(attention, rows(text, 2))[0]["embedded"]
    assert estimated.largest is None
    assert estimated.typical == pytest.approx(exact.typical, rel=0.05)


def test_gradients_are_those_of_the_last_targets_loss(attention, text):
    read = rows(text, 3)
    ids = torch.cat([row.ids for row in read.rows], 1)
    (found,) = loss_lengths(attention, read)
    x = attention.embedded(attention.positions.embed(attention.embedding(ids), torch.arange(T)))
    x = x.detach().requires_grad_()
    hook = attention.embedded.register_forward_hook(lambda *_: x)
    logits, _ = attention(ids)
    hook.remove()
    asked = torch.cat([row.target[0, :, -1] for row in read.rows])
    last = torch.nn.functional.cross_entropy(logits[0, :, -1], asked, reduction="sum")
    (gradient,) = torch.autograd.grad(last, x)
    assert found == pytest.approx(gradient[0].norm(dim=-1).mean(0).flip(0).tolist(), rel=1e-5)


def test_a_hidden_states_jacobian_is_the_product_of_its_steps(recurrence, text):
    (found,) = hidden_states(recurrence, rows(text, 1))
    assert list(found) == ["layers.0.toy", "layers.1.toy"]
    layer = recurrence.layers[0]
    weight = layer.mixer.weight[0].detach().double()
    with torch.no_grad():
        x = layer.around_mixer.norm(recurrence.embedding(text[:T][None, None]))
        states = layer.mixer(x, None)[0][0, 0].double()
    steps = [(1 - states[t] ** 2)[:, None] * weight for t in range(1, T)]
    through, typical, largest = torch.eye(8, dtype=torch.float64), [1.0], [1.0]
    for step in reversed(steps):
        through = through @ step
        typical.append(float(through.norm()) / 8**0.5)
        largest.append(float(torch.linalg.matrix_norm(through, ord=2)))
    state = found["layers.0.toy"]
    assert state.norms.typical == pytest.approx(typical, rel=1e-4)
    assert state.norms.largest == pytest.approx(largest, rel=1e-4)
    bound = float(torch.linalg.matrix_norm(weight, ord=2))
    assert state.step_bound == pytest.approx(bound) and state.bound == pytest.approx([bound**n for n in range(T)])
    assert all(norm <= bound * 1.0001 for norm, bound in zip(largest, state.bound or [], strict=True))
    assert state.units == 8 and state.singular_values == sorted(state.singular_values, reverse=True)
    assert state.singular_values[0] <= bound


@pytest.mark.parametrize(
    "mixer, units, bounded",
    [
        ({"kind": "rnn", "nonlinearity": "sigmoid"}, 8, True),
        ({"kind": "rnn", "nonlinearity": "relu"}, 8, True),
        ({"kind": "rnn"}, 8, True),
        ({"kind": "gru"}, 8, False),
        ({"kind": "lstm"}, 16, False),
        ({"kind": "mingru"}, 8, True),
    ],
    ids=lambda given: str(given),
)
def test_every_recurrence_has_steps_and_some_have_bounds(mixer, units, bounded, text):
    spec = LanguageModelSpec(layers=1, width=8, context=16, mixer=mixer, positions="none")  # pyright: ignore
    model = spec.build(11).eval()
    (state,) = flow(model, text).own.hidden.values()
    assert state.units == units == len(state.singular_values) and len(state.norms.typical) == T
    assert (state.bound is not None) == bounded
    for norm, bound in zip(state.norms.largest or [], state.bound or [], strict=False):
        assert norm <= bound * 1.0001


def test_exploding_gradients_are_infinite_and_only_finite_ones_are_drawn(text, tmp_path):
    """A ReLU net whose state grows by a factor of 1000 per step: it overflows float32, then float64."""
    spec = LanguageModelSpec(
        layers=1, width=8, context=130, positions="none", mixer={"kind": "rnn", "nonlinearity": "relu"}, norm="none"
    )  # pyright: ignore
    model = spec.build(11).eval()
    with torch.no_grad():
        model.layers[0].mixer.along.recurrent.copy_(1000 * torch.eye(8)[None])
        model.layers[0].mixer.along.input.weight.abs_()
        model.embedding.weight.abs_()
    found = gradient_flow(model, in_segments(text, 120, 2))
    (state,) = found.own.hidden.values()
    assert state.norms.typical[1] == pytest.approx(1000) and state.norms.typical[-1] == math.inf
    assert state.norms.largest is not None and state.norms.largest[-1] == state.bound[-1] == math.inf  # pyright: ignore
    json.dumps(found.as_json(), allow_nan=False)
    drawn = FlowPage([FlowOfArm("grows", [found])], "valid").draw()
    drawn.save(tmp_path / "flow.svg")
    assert not re.search(r'[" ,](nan|inf)', (tmp_path / "flow.svg").read_text("utf-8"))


@pytest.mark.parametrize("size", [1.0, 1e-160])
def test_the_largest_singular_value_of_a_wide_matrix(size):
    matrix = torch.randn(300, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    largest = float(torch.linalg.matrix_norm(matrix, ord=2))
    assert _spectral_norm(size * matrix) == pytest.approx(size * largest, rel=1e-3)


def test_the_jacobian_of_an_lstm_step_equals_finite_differences(text):
    model = LanguageModelSpec(layers=1, width=4, context=16, mixer={"kind": "lstm"}, positions="none").build(11).eval()  # pyright: ignore
    (mixer,), slots = model.mixers, torch.arange(3)
    context = Context((1, 1), model.positions, Causal(), slots, slots)
    x = torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    found = state_flow.step_jacobians(mixer, x, context)
    assert found is not None

    @torch.no_grad()
    def after(flat):
        state = dict(zip(("hidden", "cell"), flat.float().view(1, 1, 8).split(4, -1), strict=True))
        return torch.cat(list(mixer(x[:, :, 1:2], context, state)[1].values()), -1).flatten().double()

    with torch.no_grad():
        begin = torch.cat(list(mixer(x[:, :, :1], context)[1].values()), -1).flatten().double()
    slopes = [(after(begin + 1e-2 * e) - after(begin - 1e-2 * e)) / 2e-2 for e in torch.eye(8, dtype=torch.float64)]
    torch.testing.assert_close(found[0], torch.stack(slopes, 1), atol=2e-3, rtol=0)


def test_power_iteration_finds_the_largest_singular_value(monkeypatch):
    matrix = torch.randn(40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) @ torch.diag(
        0.8 ** torch.arange(40, dtype=torch.float64)
    )
    monkeypatch.setattr(state_flow, "WIDEST_SINGULAR", 2)
    assert state_flow._spectral_norm(matrix) == pytest.approx(float(torch.linalg.matrix_norm(matrix, ord=2)), rel=1e-3)


def test_attention_has_no_hidden_state(attention, text):
    found = flow(attention, text)
    assert found.own.hidden == {} and found.source is None and found.as_json()["source"] is None
    assert len(found.own.losses) == T and len(found.rows.rows) == 5
    assert list(found.own.streams) == ["embedded", "layers.0.stream"]
    assert not any(tap._forward_hooks for tap in attention.modules())


def test_no_gradient_reaches_beyond_the_segment(attention, text):
    assert len(flow(attention, text, distance=2).own.losses) == 3
    for distance in (T, 0, -1):
        with pytest.raises(UserError, match=f"segment of {T} tokens, so distances go from 1 to {T - 1}"):
            flow(attention, text, distance=distance)
    with pytest.raises(UserError, match="the text has 4 tokens, too few"):
        flow(attention, text[:4])


def test_only_one_replica_can_be_analysed_at_a_time(text):
    two = LanguageModelSpec(layers=1, width=8, context=16, mixer={"heads": 2}).build(11, (0, 1))  # pyright: ignore
    with pytest.raises(UserError, match="but this has 2 replicas"):
        flow(two, text)


def test_several_models_in_one_picture(attention, recurrence, text, tmp_path):
    page = FlowPage(
        [
            FlowOfArm("toy", [flow(recurrence, text), flow(recurrence, text.flip(0))]),
            FlowOfArm("att", [flow(attention, text)]),
        ],
        "valid",
    )
    drawn = page.draw()
    assert [[curve.name for curve in chart.curves] for chart in drawn.charts] == [
        ["toy", "att"],
        ["toy", "att"],
        ["toy 0.toy", "toy 1.toy", "bound, toy 0.toy", "bound, toy 1.toy"],
        ["toy 0.toy", "toy 1.toy"],
    ]
    band = drawn.charts[0].curves[0]
    assert all(low <= mid <= high for low, mid, high in zip(band.low, band.middle, band.high, strict=True))
    for ending in ("html", "svg", "png"):
        assert drawn.save(tmp_path / f"flow.{ending}").stat().st_size > 1000
    assert {row[1] for row in page.table.rows} >= {"loss", "embedded", "layers.0.toy"}


def test_norms_are_not_drawn_where_they_are_zero():
    rows = in_segments(torch.zeros(5, dtype=torch.long), 4, 1)
    own = SideFlow(4, [1.0, 0.5, 0.0, 0.0], {"embedded": Norms([1.0, 0.5, 0.0, 0.0])}, {})
    gone = GradientFlow("gone", rows, own)
    chart = FlowPage([FlowOfArm("gone", [gone])], "valid").draw().charts[0]
    assert chart.drawn[0].x == [0, 1] and "<svg" in chart.svg()
