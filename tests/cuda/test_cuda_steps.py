"""Training steps on a GPU: recorded, compiled and sharded steps learn the same as plain ones."""

import os
from unittest.mock import patch

import numpy as np
import pytest
import torch
from learning import losses_of_steps

from headway.data.labelled.batches import RowTable, Shuffled
from headway.data.pairs.batches import Buckets
from headway.data.pairs.dataset import PairedTexts, Side
from headway.data.running.batches import Batch, Crops
from headway.models.classifier import ClassifierSpec
from headway.models.encoder_decoder import EncoderDecoderSpec
from headway.models.language_model import LanguageModelSpec
from headway.nn import backends
from headway.nn.kernels import launching, trusted
from headway.nn.replicated import copies_for_products
from headway.training.adam import AdamW
from headway.training.parallel import Parallel, Shards
from headway.training.processes import Processes
from headway.training.setting import choose
from headway.training.spec import TrainingSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_a_recorded_step_of_a_classifier_equals_a_plain_one():
    lengths = np.arange(300) % 11 + 1
    rows = np.where(np.arange(11) < lengths[:, None], np.arange(300)[:, None] % 50, 0).astype(np.int32)
    found = []
    training = TrainingSpec(batch=8, precision="float32")
    for recorded in (True, False):
        model = ClassifierSpec(layers=2, width=64, dropout=0.1).build(50, 3, [0, 1], "cuda")
        sampler = Shuffled().build(RowTable(rows, lengths, np.arange(300) % 3, "cuda"), 8, [0, 1])
        more_than_an_epoch = 80
        found.append(
            losses_of_steps(model, sampler, training, more_than_an_epoch, 1e-3, compiled=False, recorded=recorded)
        )
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)


ADDITIVE = {"kind": "attention", "heads": 2, "similarity": "additive"}
TRANSLATORS = {
    "attention": {"positions": "rotary"},
    "additive": {"positions": "none", "mixer": ADDITIVE},
    "recurrent": {
        "mixer": "gru",
        "encoder_mixer": {"kind": "lstm", "bidirectional": True},
        "positions": "none",
        "first_state": "encoder",
        "cross": ADDITIVE,
    },
}


def _learning_pairs(model: dict, device: str, recorded: bool) -> torch.Tensor:
    """The losses of some steps on pairs of several lengths, which give batches of several shapes."""
    lengths = np.arange(200) % 9 + 1
    ends, ids = np.cumsum(lengths), np.arange(lengths.sum()).astype(np.int32) * 7 % 40
    side = Side([str(k) for k in range(200)], ids, ends, 40)
    pairs = PairedTexts(side, side, np.zeros(200, dtype=bool))
    training = TrainingSpec(batch=8, precision="float32", device=device)
    made = EncoderDecoderSpec.model_validate({"layers": 1, "width": 32, "context": 16, **model}).build(
        41, 41, [0, 1], device
    )
    sampler = Buckets().build(pairs, 16, 8, [0, 1], device)
    return losses_of_steps(made, sampler, training, 30, 1e-3, compiled=False, recorded=recorded)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_recorded_steps_of_a_translator_equal_plain_ones_and_those_on_a_cpu(name):
    recorded, plain = (_learning_pairs(TRANSLATORS[name], "cuda", recorded) for recorded in (True, False))
    torch.testing.assert_close(recorded, plain, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(plain, _learning_pairs(TRANSLATORS[name], "cpu", False), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("vocabulary", [50, 40_000], ids=["plain loss", "loss in chunks"])
def test_compiled_and_recorded_steps_learn_the_same_as_plain_ones(replicas, vocabulary):
    """A compiled step can be silently wrong: gradients of zero look like a model that learns slowly."""
    spec = LanguageModelSpec.model_validate({"layers": 1, "width": 32, "context": 64, "mixer": {"heads": 2}})
    training, found = TrainingSpec(batch=8, device="cuda", precision="float32"), {}
    tokens = (torch.arange(9000, dtype=torch.int32) * 7 % 41).cuda()
    seeds = list(range(replicas))
    for fast in (False, True):
        model, sampler = spec.build(vocabulary, seeds, "cuda"), Crops().build(tokens, 64, 8, seeds)
        found[fast] = losses_of_steps(model, sampler, training, compiled=fast, recorded=fast)
    assert (found[True][0] - found[True][-1] > 1).all()
    torch.testing.assert_close(found[True], found[False], rtol=1e-2, atol=1e-2)


def test_a_sharded_model_learns_the_same_by_nccl_as_a_whole_one(tmp_path):
    """With one process, because there is one GPU; gathers and scatters still go through NCCL."""
    import torch.distributed as dist

    mixer = {"heads": 2, "bias": False}  # the gradient of keys' biases is zero but for rounding, which AdamW magnifies
    spec = LanguageModelSpec.model_validate({"layers": 2, "width": 64, "context": 32, "mixer": mixer})
    ids = torch.randint(50, (1, 4, 33), generator=torch.Generator().manual_seed(0)).cuda()
    batch = Batch(ids[..., :-1], ids[..., 1:], begins=torch.tensor(True))
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        found = {}
        for name, kind in (("whole", Parallel), ("sharded", Shards)):
            model = spec.build(50, [0], "cuda")
            parallel = kind(model, Processes())
            optimizer = AdamW().build(parallel.parameters, [1e-2], [0.1])
            weights = copies_for_products(model)
            for _ in range(5):
                with launching.in_use(), weights.in_use():
                    losses, _ = model.loss(batch)
                losses.sum().backward()
                parallel.average(losses.detach())
                optimizer.step(torch.ones((), device="cuda"), torch.ones(1, dtype=torch.bool, device="cuda"), 1.0)
                for p in parallel.parameters.values():
                    p.grad = None
            found[name] = losses.item(), {n: parallel.whole(n, p).cpu() for n, p in parallel.parameters.items()}
    finally:
        dist.destroy_process_group()
    assert found["sharded"][0] == pytest.approx(found["whole"][0], rel=1e-5)
    for name, weight in found["whole"][1].items():
        # AdamW turns rounding of tiny gradients into a part of its step: a hundredth of a step of 1e-2 is allowed.
        torch.testing.assert_close(found["sharded"][1][name], weight, atol=1e-4, rtol=1e-4)


def test_the_choices_made_for_a_gpu_have_reasons():
    setting = choose(TrainingSpec(), width=128)
    assert setting.device.type == "cuda"
    assert any(reason.startswith("bf16: CUDA SM") for reason in setting.reasons)


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="older than Hopper"
)
def test_a_training_that_has_just_built_its_kernels_uses_them(tmp_path):
    """On a machine on which none was compared before: cuDNN's attention among them."""
    spec = LanguageModelSpec.model_validate({"layers": 1, "width": 64, "context": 256, "mixer": {"heads": 2}})
    training = TrainingSpec(batch=4, device="cuda", precision="bf16")
    tokens = (torch.arange(9000, dtype=torch.int32) * 7 % 41).cuda()
    with (
        patch.dict(os.environ, HEADWAY_CACHE=str(tmp_path)),
        patch.dict(trusted._verdicts, clear=True),
        patch.dict(backends._cudnn, clear=True),
    ):
        model, sampler = spec.build(41, [0, 1], "cuda"), Crops().build(tokens, 256, 4, [0, 1])
        losses_of_steps(model, sampler, training, 5, compiled=False, recorded=True)
        assert backends._cudnn == {(2, 256, 32): True}
        assert {operation for operation, *_ in trusted._verdicts} > {"norm", "activate", "product", "loss", "adamw"}
        assert all(trusted._verdicts.values())
