"""Headway's own GPU kernels (`headway/nn/kernels`), compared with their plain definitions."""

import contextlib

import pytest
import torch
from learning import losses_of_steps

from headway.data.running.batches import Crops
from headway.models.language_model import LanguageModelSpec
from headway.nn.kernels import fused, fused_adamw, fused_loss, fused_norm, launching, products
from headway.nn.kernels.trusted import TOLERANCE
from headway.training.spec import TrainingSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

FLOAT, BF16 = torch.float32, torch.bfloat16
KERNELS = [
    ("norm", (48, FLOAT, None, BF16, True, True, 1e-5)),
    ("norm", (768, FLOAT, None, FLOAT, False, False, 1e-6)),
    ("norm", (768, FLOAT, (BF16, True, False), BF16, True, True, 1e-5)),
    ("norm", (48, FLOAT, (FLOAT, True, True), FLOAT, True, True, 1e-5)),
    ("norm", (100, FLOAT, (BF16, False, True), BF16, False, False, 1e-6)),
    *(
        ("activate", (width, dtype, kind))
        for kind in fused.NONLINEARITIES
        for width, dtype in ((256, BF16), (100, FLOAT))
    ),
    ("dropout", (FLOAT, False)),
    ("dropout", (BF16, True)),
    ("rotate", (3, 16, FLOAT)),
    ("rotate", (4, 32, BF16)),
    ("loss", (FLOAT, 128, True)),
    ("loss", (BF16, 1024, False)),
    ("loss", (BF16, 4096, False)),
    ("loss", (BF16, 4096, True)),
    *(("adamw", (count,)) for count in fused_adamw.COUNTS),
    *(("product", (BF16, several, biased)) for several, biased in ((False, True), (False, False), (True, False))),
]


MODULES = {"norm": fused_norm, "loss": fused_loss, "adamw": fused_adamw, "product": products}


@pytest.mark.parametrize(("operation", "case"), KERNELS, ids=str)
def test_kernels_on_the_gpu_equal_their_plain_definitions(operation, case):
    module = MODULES.get(operation, fused)
    off = getattr(module, f"check_{operation}")(torch.device("cuda"), *case)
    assert off <= TOLERANCE[BF16 if "bfloat16" in str(case) else FLOAT]
    assert operation != "dropout" or off == 0


WAYS = [("rotary", "gelu", 0.1, "float32"), ("learned", "relu", 0.0, "float32"), ("learned", "gelu-tanh", 0.1, "bf16")]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("changes", WAYS)
def test_a_model_learns_the_same_with_kernels_as_without(replicas, changes):
    positions, feedforward, dropout, precision = changes
    settings = {"layers": 2, "width": 64, "context": 32, "mixer": {"heads": 2}, "positions": positions}
    spec = LanguageModelSpec.model_validate({**settings, "feedforward": feedforward, "dropout": dropout})
    training, found = TrainingSpec(batch=8, device="cuda", precision=precision), []
    tokens, seeds = (torch.arange(9000, dtype=torch.int32) * 7 % 41).cuda(), list(range(replicas))
    for way in (contextlib.nullcontext, launching.plainly):
        model = spec.build(50, seeds, "cuda")
        with way():
            found.append(losses_of_steps(model, Crops().build(tokens, 32, 8, seeds), training, compiled=False))
    assert (found[0][0] - found[0][-1] > 1).all()
    within = 1e-2 if precision == "float32" else 5e-2
    torch.testing.assert_close(found[0], found[1], rtol=within, atol=within)
