"""Low-rank adapters: equal to those of `peft`, for every replica; zero at the start; and they can be merged."""

import pytest
import torch
from torch import nn

from headway.core.errors import UserError
from headway.models.classifier import ClassifierSpec
from headway.nn.adapters import add_adapters, merged
from headway.nn.replicated import Clock, Linear
from headway.nn.seeding import seed
from headway.nn.trainable import Trainable
from headway.training.tuning import Lora

V, C = 23, 3


class Three(Trainable):
    """One matrix for three projections, and one for one."""

    def __init__(self, replicas: int):
        super().__init__()
        self.together, self.output = Linear(replicas, 6, 12), Linear(replicas, 4, 5)
        self.together.output_names, self.output.output_names = ("queries", "keys", "values"), ("output",)

    def forward(self, x):
        q, k, v = self.together(x).chunk(3, -1)
        return self.output(torch.tanh(q * k + v))


class Theirs(nn.Module):
    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(6, 4) for _ in range(3))
        self.output = nn.Linear(4, 5)

    def forward(self, x):
        return self.output(torch.tanh(self.queries(x) * self.keys(x) + self.values(x)))


@torch.no_grad()
def test_outputs_and_gradients_of_adapters_equal_those_of_peft():
    peft = pytest.importorskip("peft")
    targets, seeds = ["queries", "values", "output"], [0, 1]
    ours = Three(2)
    seed(ours, seeds)
    assert add_adapters(ours, targets, 2, 6.0, 0.0, seeds) == 2
    for p in ours.parameters():
        p.normal_(generator=torch.Generator().manual_seed(p.numel()))
    x = torch.randn(2, 3, 2, 6, generator=torch.Generator().manual_seed(0))
    own = dict(ours.named_parameters())
    with torch.enable_grad():
        answers = ours(x)
        answers.square().sum().backward()
    for r in range(2):
        config = peft.LoraConfig(r=2, lora_alpha=6, lora_dropout=0.0, target_modules=targets)
        theirs = peft.get_peft_model(Theirs(), config)
        base, named = theirs.base_model.model, {}
        for k, name in enumerate(("queries", "keys", "values", "output")):
            linear, matrix = getattr(base, name), "output" if name == "output" else "together"
            rows = slice(None) if name == "output" else slice(4 * k, 4 * k + 4)
            plain = linear.base_layer if name in targets else linear
            plain.weight.copy_(own[f"{matrix}.weight"][r, rows])
            plain.bias.copy_(own[f"{matrix}.bias"][r, rows])
            if name in targets:
                linear.lora_A["default"].weight.copy_(own[f"{matrix}.adapter.{name}.down"][r])
                linear.lora_B["default"].weight.copy_(own[f"{matrix}.adapter.{name}.up"][r])
                named[f"{matrix}.adapter.{name}.down"] = linear.lora_A["default"].weight
                named[f"{matrix}.adapter.{name}.up"] = linear.lora_B["default"].weight
        with torch.enable_grad():
            reference = theirs(x[r])
            reference.square().sum().backward()
        torch.testing.assert_close(answers[r], reference, rtol=1e-5, atol=1e-5)
        for name, p in named.items():
            torch.testing.assert_close(own[name].grad[r], p.grad, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_adapters_start_at_zero_depend_on_the_seed_and_can_be_merged():
    spec = ClassifierSpec.model_validate({"layers": 2, "width": 8, "context": 9, "mixer": {"heads": 2}})
    plain = spec.build(V, C, [4, 5]).eval()
    ids = torch.randint(V, (2, 3, 9), generator=torch.Generator().manual_seed(0))
    tuning = Lora(rank=2, targets=["queries", "keys", "values", "output", "feedforward"])
    tuned, alone = (tuning.apply(spec.build(V, C, seeds).eval(), seeds) for seeds in ([4, 5], [5]))
    assert torch.equal(tuned(ids), plain(ids))
    downs = [name for name, _ in tuned.named_parameters() if name.endswith("down")]
    assert len(downs) == 2 * 6
    both, one = dict(tuned.named_parameters()), dict(alone.named_parameters())
    assert all(torch.equal(both[name][1], one[name][0]) and not torch.equal(*both[name]) for name in downs)
    for name, p in tuned.named_parameters():
        if name.endswith("up"):
            p.normal_()
    weights = merged(tuned)
    assert set(weights) == {name for name, _ in plain.named_parameters()}
    for name, p in plain.named_parameters():
        p.copy_(weights[name])
    torch.testing.assert_close(plain(ids), tuned(ids), rtol=1e-4, atol=1e-5)


def test_dropout_of_adapters_follows_the_clock_of_the_model():
    spec = ClassifierSpec.model_validate({"layers": 1, "width": 8, "context": 9, "mixer": {"heads": 2}})
    tuned = Lora(dropout=0.5).apply(spec.build(V, C, [0]), [0])
    adapter = tuned.layers[0].mixer.project.together.adapter
    assert isinstance(tuned.clock, Clock) and adapter.queries.drop.clock is tuned.clock


def test_a_model_without_such_matrices_is_refused_with_a_message():
    spec = ClassifierSpec.model_validate({"layers": 1, "width": 8, "context": 9, "mixer": "gru", "positions": "none"})
    with pytest.raises(UserError, match="this model has no matrices for queries or values"):
        Lora().apply(spec.build(V, C), [0])
