"""Attention's kernels on a GPU, compared with the plain kernel on a CPU."""

import itertools

import pytest
import torch

from headway.models.classifier import ClassifierSpec
from headway.models.language_model import LanguageModelSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

POSITIONS = ("none", "learned", "sinusoidal", "alibi", "alibi-symmetric", "rotary", "t5")
FUSIONS = ("concat", "shuffle", "shift", "reweight", "reweight-causal")
ENCODERS = ("none", "learned", "sinusoidal", "alibi-symmetric", "rotary", "t5-symmetric")
EXACT = list(itertools.product(POSITIONS, ("sdpa", "flex"), (None, 16)))
PADDED = list(itertools.product(ENCODERS, ("sdpa", "flex"), ("concat", "reweight")))
IN_BF16 = list(itertools.product(POSITIONS, FUSIONS))


def _losses_and_gradients(device: str, bf16: bool = False, positions: str = "none", dropout: float = 0.1, **mixer):
    settings = {"layers": 2, "width": 128, "context": 128, "positions": positions, "mixer": {"heads": 4, **mixer}}
    model = LanguageModelSpec.model_validate({**settings, "dropout": dropout}).build(50, [0, 1], device)
    ids = torch.randint(50, (2, 3, 129), generator=torch.Generator().manual_seed(0)).to(device)
    with torch.autocast(device, torch.bfloat16, enabled=bf16):
        losses = model.losses(ids[..., :-1], ids[..., 1:])
    losses.sum().backward()
    return losses.detach().cpu(), {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("positions", "backend", "window"), EXACT)
def test_fused_kernels_on_the_gpu_equal_the_plain_one_on_the_cpu(positions, backend, window):
    losses, gradients = _losses_and_gradients("cuda", positions=positions, backend=backend, window=window)
    expected, expected_gradients = _losses_and_gradients("cpu", positions=positions, backend="plain", window=window)
    torch.testing.assert_close(losses, expected, atol=1e-4, rtol=1e-4)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize(("positions", "backend", "fusion"), PADDED)
def test_padded_rows_on_the_gpu_equal_those_on_the_cpu(positions, backend, fusion):
    """Rows padded on both sides, including queries without visible keys, compared with the plain kernel on the CPU."""
    settings = {"layers": 2, "width": 64, "context": 64, "positions": positions}
    found = {}
    for device, kernel in (("cuda", backend), ("cpu", "plain")):
        mixer = {"heads": 4, "fusion": fusion, "backend": kernel}
        model = ClassifierSpec.model_validate({**settings, "mixer": mixer}).build(50, 5, [0, 1], device)
        ids = torch.randint(50, (2, 4, 40), generator=torch.Generator().manual_seed(0)).to(device)
        slots = torch.arange(40, device=device)
        left, end = torch.tensor([0, 3, 20, 39], device=device), torch.tensor([40, 30, 40, 40], device=device)
        padding_mask = ((slots >= left[:, None]) & (slots < end[:, None])).expand_as(ids)
        losses = model.losses(model(ids, padding_mask), torch.zeros(2, 4, dtype=torch.int64, device=device))
        losses.sum().backward()
        found[device] = losses.detach().cpu(), {name: p.grad.cpu() for name, p in model.named_parameters()}
    torch.testing.assert_close(found["cuda"][0], found["cpu"][0], atol=1e-4, rtol=1e-4)
    for name, gradient in found["cpu"][1].items():
        torch.testing.assert_close(found["cuda"][1][name], gradient, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize(("positions", "fusion"), IN_BF16)
def test_gradients_in_bf16_have_the_direction_of_those_in_float32(positions, fusion):
    """Fused kernels support many memory layouts of the heads; a layout error may only show in the gradients."""
    _, gradients = _losses_and_gradients("cuda", bf16=True, positions=positions, fusion=fusion)
    _, expected = _losses_and_gradients("cpu", positions=positions, fusion=fusion, backend="plain")
    for name, gradient in expected.items():
        if gradient.norm() > 1e-2:  # smaller ones are only rounding (that of the key bias is zero in theory)
            agreement = torch.cosine_similarity(gradients[name].flatten(), gradient.flatten(), dim=0)
            assert agreement > 0.98, f"{name}: {agreement:.3f}"
