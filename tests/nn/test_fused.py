"""Kernels for a GPU, beside the plain lines they stand for: here by programs on a CPU, in test_cuda.py on a GPU."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from triton_on_cpu import triton_on_cpu

from headway.data.running.batches import Batch
from headway.models.language_model import LanguageModelSpec
from headway.nn import cross_entropy, fused, fused_adamw, fused_loss, launching, trusted
from headway.training.optimizers import AdamW

CPU = torch.device("cpu")
FLOAT, BF16 = torch.float32, torch.bfloat16
CHECKS = {name: getattr(fused, f"check_{name}") for name in ("norm", "activate", "dropout", "turn")}
CHECKS |= {"loss": fused_loss.check_loss, "adamw": fused_adamw.check_adamw}
CASES = [
    ("norm", (48, FLOAT, BF16, True, True, 1e-5)),
    ("norm", (17, FLOAT, FLOAT, True, False, 1e-5)),
    ("norm", (100, FLOAT, BF16, False, False, 1e-6)),
    ("norm", (300, BF16, BF16, True, True, 1e-5)),
    *(("activate", (64, FLOAT, kind)) for kind in fused.NONLINEARITIES),
    ("activate", (300, BF16, "gelu")),
    ("dropout", (FLOAT, True)),
    ("dropout", (BF16, False)),
    ("turn", (3, 16, FLOAT)),
    ("turn", (2, 8, BF16)),
    ("loss", (FLOAT, 128, False)),
    ("loss", (BF16, 4096, False)),
    ("loss", (FLOAT, 64, True)),
    ("adamw", (True,)),
    ("adamw", (False,)),
]


@pytest.fixture
def kernels(monkeypatch):
    found = spec_from_file_location("kernels_on_cpu", Path(fused.__file__).with_name("fused_kernels.py"))
    assert found is not None and found.loader is not None
    made = module_from_spec(found)
    with triton_on_cpu():
        found.loader.exec_module(made)
        monkeypatch.setattr(launching, "kernels", lambda: made)
        yield made


@pytest.mark.parametrize(("operation", "case"), CASES, ids=str)
def test_a_kernel_gives_what_the_plain_lines_give(kernels, operation, case):
    off = CHECKS[operation](CPU, *case)
    assert off <= (1e-2 if BF16 in case else 1e-5)
    if operation == "dropout":
        assert off == 0


MODELS = [
    {"positions": "rotary", "dropout": 0.1},
    {"positions": "learned", "feedforward": "relu", "norm": {"kind": "rms"}},
    {"positions": "alibi", "feedforward": "swiglu", "norm": {"kind": "layer", "placement": "post"}},
]


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("seeds", [[1], [1, 2]], ids=["alone", "two"])
def test_a_model_learns_by_kernels_what_it_learns_without(kernels, monkeypatch, model, seeds):
    """Whatever stands between the kernels: layouts, precisions, replicas. Two steps of AdamW, decay and clipping."""
    spec = LanguageModelSpec.model_validate({"layers": 1, "width": 16, "context": 8, "mixer": {"heads": 2}, **model})
    ids = torch.arange(len(seeds) * 2 * 9).view(len(seeds), 2, 9) * 7 % 41
    monkeypatch.setattr(cross_entropy, "_can_be_in_place", lambda x: False)
    found = []
    for by_kernels in (True, False):
        monkeypatch.setattr(launching, "wanted", lambda x, use=by_kernels: use and torch.is_grad_enabled())
        monkeypatch.setattr(fused_adamw, "can_step", lambda x, use=by_kernels: use)
        made = spec.build(41, seeds).train()
        optimizer = AdamW().build(dict(made.named_parameters()), [1e-2] * len(seeds), [0.1] * len(seeds))
        losses, norms, gradients = [], [], []
        for step in range(3):
            made.clock.set(step)
            loss, _ = made.loss(Batch(ids[..., :-1], ids[..., 1:], begins=torch.tensor(True)))
            loss.sum().backward()
            losses.append(loss.detach())
            gradients.append(torch.cat([p.grad.flatten() for p in made.parameters() if p.grad is not None]))
            norms.append(optimizer.step(torch.ones(()), torch.ones(len(seeds), dtype=torch.bool), 1.0))
            for p in made.parameters():
                p.grad = None
        found.append([torch.stack(losses), torch.stack(norms), gradients[0]])
    assert trusted.difference(*found) < 1e-5


PLANTED = {"norm": "norm_backward", "activate": "activate_backward", "dropout": "dropped", "turn": "turned"}


@pytest.mark.parametrize(("operation", "name"), PLANTED.items())
def test_a_kernel_that_is_wrong_is_not_trusted(kernels, monkeypatch, caplog, operation, name):
    """The same kernel, but what it wrote last is a little larger than it should be."""
    right = getattr(kernels, name).function

    def wrong(*given):
        right(*given)
        written = next(g for g in given if hasattr(g, "memory") and g.memory.dtype == FLOAT and g.memory.max() > 0)
        written.memory.mul_(1.01)

    monkeypatch.setattr(getattr(kernels, name), "function", wrong)
    case = next(case for one, case in CASES if one == operation and BF16 not in case)
    monkeypatch.setattr(trusted, "_verdicts", {})
    assert not trusted.trusted(operation, CPU, CHECKS[operation], *case)
    assert "not used" in caplog.text


def test_what_cannot_be_built_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr(trusted, "_verdicts", {})
    assert not trusted.trusted("adamw", CPU, lambda device: 1 / 0)
    assert "ZeroDivisionError" in caplog.text


def test_what_cannot_be_built_for_some_sizes_after_all_is_not_used_either(monkeypatch, caplog):
    monkeypatch.setattr(trusted, "_verdicts", {})
    wanted = ("norm", CPU, lambda device, width: 0.0, (3,))
    assert trusted.by_kernel(*wanted, lambda: 5) == 5
    assert trusted.by_kernel(*wanted, lambda: 1 / 0) is None
    assert trusted.by_kernel(*wanted, lambda: 5) is None  # nor asked again
    assert caplog.text.count("ZeroDivisionError") == 1
    with pytest.raises(torch.OutOfMemoryError):  # which says nothing of the kernel
        trusted.by_kernel("turn", CPU, lambda device: 0.0, (), lambda: (_ for _ in ()).throw(torch.OutOfMemoryError()))


def test_on_a_cpu_nothing_changes():
    x = torch.ones(1, 2, 3, 4)
    assert not launching.wanted(x)
    assert fused.norm(x, torch.ones(1, 4), None, 1e-5, True, FLOAT) is None
    assert not fused_adamw.can_step(x)
