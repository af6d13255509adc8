"""Internals by name."""

import pytest
import torch
from torch import nn

from headway.errors import UserError
from headway.nn.taps import Tap, tap_names, watch


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


def test_watching_gives_what_flows_by():
    model, x = Model(), torch.arange(3.0)
    with watch(model, "doubled") as seen:
        model(x)
    assert list(seen) == ["doubled"] and torch.equal(seen["doubled"], 2 * x)
    with watch(model) as seen:
        model(x)
    assert list(seen) == ["doubled", "inner.0"]


def test_gradients_flow_through_what_was_watched():
    model, x = Model(), torch.arange(3.0, requires_grad=True)
    with watch(model, "doubled") as seen:
        out = model(x)
    (gradient,) = torch.autograd.grad(out.sum(), seen["doubled"])
    assert gradient.tolist() == [1, 1, 1]


def test_nobody_watches_afterwards_not_even_after_an_error():
    model = Model()
    with pytest.raises(ZeroDivisionError), watch(model):
        assert model.doubled.is_watched
        _ = 1 / 0
    assert not model.doubled.is_watched and not model.inner[0].is_watched


def test_a_wrong_name_is_answered_with_the_nearest():
    with (
        pytest.raises(UserError, match=r"no internal 'inner\.00'; did you mean 'inner\.0'\?"),
        watch(Model(), "inner.00"),
    ):
        pass
