"""Recurrences on a GPU: the kernels of a step, the carried state, and cuDNN's kernels."""

import warnings

import pytest
import torch
from learning import losses_of_steps

from headway.data.running.batches import Contiguous
from headway.models.language_model import LanguageModelSpec
from headway.nn.scan import CELLS, scan
from headway.scoring.likelihood import losses_going_on
from headway.training.spec import TrainingSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

RECURRENCES = [(kind, padded) for kind in CELLS for padded in (False, True)]


@pytest.mark.parametrize(("kind", "padded"), RECURRENCES)
def test_recurrences_on_the_gpu_equal_those_on_the_cpu(kind, padded, dtype=torch.float32, within=1e-3):
    """Forward and backward kernels of a step, compared with the plain cell; 300 units need more than one block."""
    cell, (R, B, T, H) = CELLS[kind], (3, 5, 7, 300)
    draw = torch.Generator().manual_seed(0)
    shapes = {"products": (R, B, T, cell.gates * H), "recurrent": (R, cell.gates * H, H)}
    shapes["first"] = (cell.states, R, B, H)
    if kind == "gru":
        shapes["bias"] = (R, H)
    given = {name: torch.randn(shape, generator=draw) * 0.3 for name, shape in shapes.items()}
    given["products"], given["recurrent"] = given["products"].to(dtype), given["recurrent"] * 0.2
    weigh, real = torch.randn(R, B, T, H, generator=draw), None
    if padded:  # and in another memory layout than the kernels use
        real = (torch.arange(T) < torch.tensor([7, 3, 1, 5, 7])[:, None].expand(R, B, 1)).transpose(0, 1)
        real = real.contiguous().transpose(0, 1)
    found = {}
    for device in ("cpu", "cuda"):
        mine = {name: tensor.clone().to(device).requires_grad_() for name, tensor in given.items()}
        seen = None if real is None else real.to(device)
        states, _ = scan(kind, mine["products"], mine["recurrent"], mine.get("bias"), mine["first"], seen)
        ((states[0, :, :, 1:] * weigh.to(device)).sum() + states[:, :, :, -1].square().sum()).backward()
        found[device] = states.detach().cpu(), *(tensor.grad.float().cpu() for tensor in mine.values())
    for plain, fast in zip(found["cpu"], found["cuda"], strict=True):
        torch.testing.assert_close(fast, plain, atol=within * plain.abs().max().item(), rtol=within)


# its derivative jumps at zero, so rounding changes gradients
SMOOTH = [(kind, padded) for kind, padded in RECURRENCES if kind != "rnn-relu"]


@pytest.mark.parametrize(("kind", "padded"), SMOOTH)
def test_recurrences_in_bf16_on_the_gpu_equal_those_on_the_cpu(kind, padded):
    test_recurrences_on_the_gpu_equal_those_on_the_cpu(kind, padded, torch.bfloat16, 0.03)


@pytest.mark.parametrize("mixer", ["rnn", "gru", "lstm", "mingru"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_recorded_steps_of_a_recurrence_carry_its_state(mixer, replicas):
    spec = LanguageModelSpec.model_validate(
        {"layers": 2, "width": 32, "context": 16, "mixer": mixer, "positions": "none"}
    )
    training, found = TrainingSpec(batch=8, device="cuda", precision="float32"), {}
    tokens = (torch.arange(9000, dtype=torch.int32) * 7 % 41).cuda()
    seeds = list(range(replicas))
    for fast in (False, True):
        model, sampler = spec.build(50, seeds, "cuda"), Contiguous().build(tokens, 16, 8, seeds)
        found[fast] = losses_of_steps(model, sampler, training, carries=True, compiled=fast, recorded=fast)
    assert (found[True][0] - found[True][-1] > 1).all()
    torch.testing.assert_close(found[True], found[False], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("mixer", ["lstm", "gru"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_losses_of_a_recurrence_over_a_stream_equal_those_on_the_cpu(mixer, replicas):
    sizes = {"layers": 2, "width": 32, "context": 16, "feedforward": "none", "norm": "none"}
    spec = LanguageModelSpec.model_validate({**sizes, "mixer": mixer, "positions": "none"})
    tokens = torch.arange(16 * 40 + 5) * 7 % 41
    found = {}
    for device in ("cpu", "cuda"):
        model = spec.build(50, list(range(replicas)), device).eval()
        with torch.no_grad():
            found[device] = losses_going_on(model, tokens, 16).cpu()
    torch.testing.assert_close(found["cuda"], found["cpu"], atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("mixer", ["rnn", "gru", "lstm"])
def test_a_single_recurrence_equals_one_in_a_population_in_evaluation(mixer):
    """A single replica uses cuDNN, whose backward pass needs what the forward pass saved, which warns of non-contiguous
    weights, and which rounds to TF32."""
    sizes = {"layers": 2, "width": 64, "context": 16, "feedforward": "none", "norm": "none"}
    spec = LanguageModelSpec.model_validate({**sizes, "mixer": mixer, "positions": "none"})
    ids, found = torch.arange(96, device="cuda").view(1, 6, 16) * 7 % 50, {}
    for seeds in ([1], [1, 2]):
        model = spec.build(50, seeds, "cuda").eval()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answers = model(ids.expand(len(seeds), -1, -1))[0][0]  # the logits of the first replica
        answers.square().sum().backward()
        found[len(seeds)] = answers.detach(), *(p.grad[0] for p in model.parameters())
    for alone, beside in zip(found[1], found[2], strict=True):
        torch.testing.assert_close(alone, beside, atol=1e-5 * beside.abs().max().item(), rtol=1e-4)
