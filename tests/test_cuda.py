"""What only a GPU can show. Skipped, visibly, without one; `python -m tests.test_cuda` runs it where pytest is missing."""

import itertools

import pytest
import torch

from headway.models.language_model import LanguageModelSpec
from headway.training.setting import choose
from headway.training.spec import TrainingSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

POSITIONS = ("none", "learned", "sinusoidal", "alibi", "alibi-symmetric", "rotary", "t5")
BACKENDS = ("sdpa", "flex")


def _losses_and_gradients(positions: str, backend: str, window: int | None, device: str):
    mixer = {"heads": 2, "backend": backend, "window": window}
    settings = {"layers": 2, "width": 64, "context": 128, "positions": positions, "mixer": mixer, "dropout": 0.1}
    model = LanguageModelSpec.model_validate(settings).build(50, [0, 1], device)
    ids = torch.randint(50, (2, 3, 129), generator=torch.Generator().manual_seed(0)).to(device)
    losses = model.losses(ids[..., :-1], ids[..., 1:])
    losses.sum().backward()
    return losses.detach().cpu(), {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("positions", "backend", "window"), itertools.product(POSITIONS, BACKENDS, (None, 16)))
def test_fused_kernels_on_the_gpu_give_what_the_plain_one_gives_on_the_cpu(positions, backend, window):
    losses, gradients = _losses_and_gradients(positions, backend, window, "cuda")
    expected, expected_gradients = _losses_and_gradients(positions, "plain", window, "cpu")
    torch.testing.assert_close(losses, expected, atol=1e-4, rtol=1e-4)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, atol=2e-3, rtol=1e-3)


def test_the_choices_made_for_a_gpu_say_why():
    setting = choose(TrainingSpec(), width=128)
    assert setting.device.type == "cuda"
    assert any(reason.startswith("bf16: CUDA SM") for reason in setting.reasons)


if __name__ == "__main__":
    for case in itertools.product(POSITIONS, BACKENDS, (None, 16)):
        try:
            test_fused_kernels_on_the_gpu_give_what_the_plain_one_gives_on_the_cpu(*case)
            print("passed", *case, flush=True)
        except Exception as error:
            print("FAILED", *case, type(error).__name__, str(error).strip()[:600], flush=True)
    test_the_choices_made_for_a_gpu_say_why()
