"""Taps: internals are read and replaced by name."""

import pytest
import torch
from torch import nn

from headway.core.errors import UserError
from headway.nn.taps import Display, Tap, intervene, tap_names, watch, without_head


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.doubled, self.inner = Tap(), nn.ModuleList([Tap()])

    def forward(self, x):
        return self.inner[0](self.doubled(2 * x) + 1)


def test_taps_change_nothing_and_have_names():
    model, x = Model(), torch.arange(3.0)
    assert torch.equal(model(x), 2 * x + 1)
    assert tap_names(model) == ["doubled", "inner.0"]


def test_watching_returns_the_values():
    model, x = Model(), torch.arange(3.0)
    with watch(model, "doubled") as seen:
        model(x)
    assert list(seen) == ["doubled"] and torch.equal(seen["doubled"], 2 * x)
    with watch(model) as seen:
        model(x)
    assert list(seen) == ["doubled", "inner.0"]


def test_gradients_flow_through_watched_values():
    model, x = Model(), torch.arange(3.0, requires_grad=True)
    with watch(model, "doubled") as seen:
        out = model(x)
    (gradient,) = torch.autograd.grad(out.sum(), seen["doubled"])
    assert gradient.tolist() == [1, 1, 1]


def test_watching_ends_with_its_context_even_after_an_error():
    model = Model()
    with pytest.raises(ZeroDivisionError), watch(model):
        assert model.doubled.is_watched
        _ = 1 / 0
    assert not model.doubled.is_watched and not model.inner[0].is_watched


def test_a_wrong_name_gets_the_nearest_one():
    with (
        pytest.raises(UserError, match=r"no internal 'inner\.00'; did you mean 'inner\.0'\?"),
        watch(Model(), "inner.00"),
    ):
        pass


class Named(nn.Module):
    """A model whose slot is named after the module in it."""

    def __init__(self):
        super().__init__()
        self.mixer = Model()
        self.mixer.called = "attention"
        self.mixer.inner = nn.ModuleList([Tap("output")])
        self.shown = Display()

    def forward(self, x):
        self.shown(x)
        return self.mixer(x)


def test_a_module_that_defines_its_name_is_called_by_it():
    assert tap_names(Named()) == ["attention.doubled", "attention.inner.output", "shown"]
    with watch(Named(), "attention.inner.output") as seen:
        pass
    assert seen == {}


# Interventions


def test_values_can_be_replaced_and_later_taps_see_it():
    model, x = Model(), torch.arange(3.0)
    with intervene(model, {"doubled": lambda flow: -flow}), watch(model) as seen:
        assert torch.equal(model(x), 1 - 2 * x)
    assert torch.equal(seen["doubled"], -2 * x)
    assert torch.equal(model(x), 2 * x + 1)


def test_a_head_can_be_switched_off():
    mixed = torch.ones(1, 2, 3, 4, 5)
    assert without_head(0, 2)(mixed).sum((0, 1, 3, 4)).tolist() == [0, 40, 0]
    with pytest.raises(UserError, match=r"no head 3: the heads are 0 to 2"):
        without_head(3)(mixed)


def test_invalid_interventions_are_refused():
    model, x = Named(), torch.arange(3.0)
    with pytest.raises(UserError, match=r"'shown' cannot be replaced: it is computed only for display"):
        intervene(model, {"shown": lambda flow: flow}).__enter__()
    with pytest.raises(UserError, match=r"no internal 'attention\.double'; did you mean 'attention\.doubled'\?"):
        intervene(model, {"attention.double": lambda flow: flow}).__enter__()
    with (
        intervene(model, {"attention.doubled": lambda flow: flow[:1]}),
        pytest.raises(UserError, match=r"'attention\.doubled' has shape \(3,\); its replacement has \(1,\)"),
    ):
        model(x)
    assert torch.equal(model(x), 2 * x + 1)
