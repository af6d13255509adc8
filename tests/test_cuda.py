"""What only a GPU can show. Skipped, visibly, without one; `python tests/test_cuda.py` prints a line per case."""

import contextlib
import dataclasses
import itertools
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from headway.audit.audit import NOT_CARRIED_OUT, read_report
from headway.data.labelled.batches import RowTable, Shuffled
from headway.data.pairs.batches import Buckets
from headway.data.pairs.dataset import PairedTexts, Side
from headway.data.running.batches import Batch, Contiguous, Crops
from headway.experiment.train import train
from headway.models.classifier import ClassifierSpec
from headway.models.encoder_decoder import EncoderDecoderSpec
from headway.models.language_model import LanguageModelSpec
from headway.nn.kernels import fused, fused_adamw, fused_loss, fused_norm, launching, products
from headway.nn.kernels.trusted import WITHIN
from headway.nn.replicated import copies_for_products
from headway.nn.scan import CELLS, scan
from headway.recipe.recipe import load
from headway.scoring.likelihood import losses_going_on
from headway.training.optimizers import AdamW
from headway.training.parallel import Parallel, Shards
from headway.training.processes import Processes
from headway.training.setting import choose
from headway.training.spec import TrainingSpec
from headway.training.update import Update

FLOAT, BF16 = torch.float32, torch.bfloat16
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

POSITIONS = ("none", "learned", "sinusoidal", "alibi", "alibi-symmetric", "rotary", "t5")
FUSIONS = ("concat", "shuffle", "shift", "reweight", "reweight-causal")
EXACT_CASES = list(itertools.product(POSITIONS, ("sdpa", "flex"), (None, 16)))
ENCODERS = ("none", "learned", "sinusoidal", "alibi-symmetric", "rotary", "t5-symmetric")
PADDED_CASES = list(itertools.product(ENCODERS, ("sdpa", "flex"), ("concat", "reweight")))
BF16_CASES = list(itertools.product(POSITIONS, FUSIONS))


def _losses_and_gradients(device: str, bf16: bool = False, positions: str = "none", dropout: float = 0.1, **mixer):
    settings = {"layers": 2, "width": 128, "context": 128, "positions": positions, "mixer": {"heads": 4, **mixer}}
    model = LanguageModelSpec.model_validate({**settings, "dropout": dropout}).build(50, [0, 1], device)
    ids = torch.randint(50, (2, 3, 129), generator=torch.Generator().manual_seed(0)).to(device)
    with torch.autocast(device, torch.bfloat16, enabled=bf16):
        losses = model.losses(ids[..., :-1], ids[..., 1:])
    losses.sum().backward()
    return losses.detach().cpu(), {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("positions", "backend", "window"), EXACT_CASES)
def test_fused_kernels_on_the_gpu_give_what_the_plain_one_gives_on_the_cpu(positions, backend, window):
    losses, gradients = _losses_and_gradients("cuda", positions=positions, backend=backend, window=window)
    expected, expected_gradients = _losses_and_gradients("cpu", positions=positions, backend="plain", window=window)
    torch.testing.assert_close(losses, expected, atol=1e-4, rtol=1e-4)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize(("positions", "backend", "fusion"), PADDED_CASES)
def test_padding_on_the_gpu_changes_nothing_either(positions, backend, fusion):
    """Rows padded on both sides, queries that may look nowhere among them, against the plain kernel on the CPU."""
    settings = {"layers": 2, "width": 64, "context": 64, "positions": positions}
    found = {}
    for device, kernel in (("cuda", backend), ("cpu", "plain")):
        mixer = {"heads": 4, "fusion": fusion, "backend": kernel}
        model = ClassifierSpec.model_validate({**settings, "mixer": mixer}).build(50, 5, [0, 1], device)
        ids = torch.randint(50, (2, 4, 40), generator=torch.Generator().manual_seed(0)).to(device)
        slots = torch.arange(40, device=device)
        left, end = torch.tensor([0, 3, 20, 39], device=device), torch.tensor([40, 30, 40, 40], device=device)
        padding_mask = ((slots >= left[:, None]) & (slots < end[:, None])).expand_as(ids)
        losses = model.losses(ids, padding_mask, torch.zeros(2, 4, dtype=torch.int64, device=device))
        losses.sum().backward()
        found[device] = losses.detach().cpu(), {name: p.grad.cpu() for name, p in model.named_parameters()}
    torch.testing.assert_close(found["cuda"][0], found["cpu"][0], atol=1e-4, rtol=1e-4)
    for name, gradient in found["cpu"][1].items():
        torch.testing.assert_close(found["cuda"][1][name], gradient, atol=2e-3, rtol=1e-3)


def test_a_recorded_step_of_a_classifier_is_a_plain_one():
    lengths = np.arange(300) % 11 + 1
    rows = np.where(np.arange(11) < lengths[:, None], np.arange(300)[:, None] % 50, 0).astype(np.int32)
    found = []
    for recorded in (True, False):
        setting = dataclasses.replace(choose(TrainingSpec(precision="float32"), 64), compiled=False, recorded=recorded)
        training = TrainingSpec(batch=8)
        model = ClassifierSpec(layers=2, width=64, dropout=0.1).build(50, 3, [0, 1], "cuda")
        optimizer = training.optimizer.build(dict(model.named_parameters()), [1e-3] * 2, [0.1] * 2)
        sampler = Shuffled().build(RowTable(rows, lengths, np.arange(300) % 3, "cuda"), 8, [0, 1])
        update = Update(model, optimizer, sampler, training, setting, torch.ones(2, dtype=torch.bool, device="cuda"))
        found.append(torch.stack([update(step, 1.0)[0] for step in range(80)]))  # more than one epoch
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


def _learning_pairs(model: dict, device: str, recorded: bool, steps: int = 30) -> torch.Tensor:
    """The losses of some steps; pairs of several lengths, so that there are several shapes."""
    lengths = np.arange(200) % 9 + 1
    ends, ids = np.cumsum(lengths), np.arange(lengths.sum()).astype(np.int32) * 7 % 40
    side = Side([str(k) for k in range(200)], ids, ends, 40)
    pairs = PairedTexts(side, side, np.zeros(200, dtype=bool))
    training = TrainingSpec(batch=8, precision="float32", device=device)
    setting = dataclasses.replace(choose(training, 32), compiled=False, recorded=recorded)
    made = EncoderDecoderSpec.model_validate({"layers": 1, "width": 32, "context": 16, **model}).build(
        41, 41, [0, 1], device
    )
    optimizer = training.optimizer.build(dict(made.named_parameters()), [1e-3] * 2, [0.1] * 2)
    sampler = Buckets().build(pairs, 16, 8, [0, 1], device)
    alive = torch.ones(2, dtype=torch.bool, device=device)
    update = Update(made, optimizer, sampler, training, setting, alive)
    return torch.stack([update(step, 1.0)[0].cpu() for step in range(steps)])


@pytest.mark.parametrize("name", TRANSLATORS)
def test_recorded_steps_of_a_translator_are_plain_ones_and_those_of_a_cpu(name):
    recorded, plain = (_learning_pairs(TRANSLATORS[name], "cuda", recorded) for recorded in (True, False))
    torch.testing.assert_close(recorded, plain, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(plain, _learning_pairs(TRANSLATORS[name], "cpu", False), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(("positions", "fusion"), BF16_CASES)
def test_gradients_in_bf16_point_where_those_in_float32_point(positions, fusion):
    """Fused kernels read heads in many memory layouts; one that misreads a layout is only wrong in its gradients."""
    _, gradients = _losses_and_gradients("cuda", bf16=True, positions=positions, fusion=fusion)
    _, expected = _losses_and_gradients("cpu", positions=positions, fusion=fusion, backend="plain")
    for name, gradient in expected.items():
        if gradient.norm() > 1e-2:  # smaller ones (the bias of keys: exactly zero in theory) are rounding alone
            agreement = torch.cosine_similarity(gradients[name].flatten(), gradient.flatten(), dim=0)
            assert agreement > 0.98, f"{name}: {agreement:.3f}"


def test_a_sharded_model_learns_by_nccl_what_a_whole_one_learns(tmp_path):
    """With one process, which is all that one GPU allows: every gather and scatter is made, by NCCL."""
    import torch.distributed as dist

    spec = LanguageModelSpec.model_validate({"layers": 2, "width": 64, "context": 32, "mixer": {"heads": 2}})
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
        torch.testing.assert_close(found["sharded"][1][name], weight, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("vocabulary", [50, 40_000], ids=["plain loss", "loss in chunks"])
def test_compiled_and_recorded_steps_learn_what_plain_ones_learn(replicas, vocabulary):
    """What is compiled can be wrong without a word: gradients of zero look like a model that is slow to learn."""
    spec = LanguageModelSpec.model_validate({"layers": 1, "width": 32, "context": 64, "mixer": {"heads": 2}})
    training, found = TrainingSpec(batch=8, device="cuda", precision="float32"), {}
    tokens = (torch.arange(9000, dtype=torch.int32) * 7 % 41).cuda()
    for fast in (False, True):
        torch._dynamo.reset()
        setting = dataclasses.replace(choose(training, 32), compiled=fast, recorded=fast)
        seeds = list(range(replicas))
        model = spec.build(vocabulary, seeds, "cuda")
        optimizer = AdamW().build(dict(model.named_parameters()), [1e-2] * replicas, [0.1] * replicas)
        alive = torch.ones(replicas, dtype=torch.bool, device="cuda")
        sampler = Crops().build(tokens, 64, 8, seeds)
        update = Update(model, optimizer, sampler, training, setting, alive)
        found[fast] = torch.stack([update(step, 1.0)[0] for step in range(12)]).cpu()
    assert (found[True][0] - found[True][-1] > 1).all()
    torch.testing.assert_close(found[True], found[False], rtol=1e-2, atol=1e-2)


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
    ("turn", (3, 16, FLOAT)),
    ("turn", (4, 32, BF16)),
    ("loss", (FLOAT, 128, True)),
    ("loss", (BF16, 4096, False)),
    ("loss", (BF16, 8192, False)),
    *(("adamw", (count,)) for count in fused_adamw.COUNTS),
    *(("product", (BF16, several, biased)) for several, biased in ((False, True), (False, False), (True, False))),
]


MODULES = {"norm": fused_norm, "loss": fused_loss, "adamw": fused_adamw, "product": products}


@pytest.mark.parametrize(("operation", "case"), KERNELS, ids=str)
def test_kernels_on_the_gpu_give_what_their_plain_lines_give(operation, case):
    module = MODULES.get(operation, fused)
    off = getattr(module, f"check_{operation}")(torch.device("cuda"), *case)
    assert off <= WITHIN[BF16 if "bfloat16" in str(case) else FLOAT]
    assert operation != "dropout" or off == 0


WAYS = [("rotary", "gelu", 0.1, "float32"), ("learned", "relu", 0.0, "float32"), ("learned", "gelu-tanh", 0.1, "bf16")]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("changes", WAYS)
def test_a_model_learns_by_kernels_what_it_learns_without(replicas, changes):
    positions, feedforward, dropout, precision = changes
    settings = {"layers": 2, "width": 64, "context": 32, "mixer": {"heads": 2}, "positions": positions}
    spec = LanguageModelSpec.model_validate({**settings, "feedforward": feedforward, "dropout": dropout})
    training, found = TrainingSpec(batch=8, device="cuda", precision=precision), []
    tokens, seeds = (torch.arange(9000, dtype=torch.int32) * 7 % 41).cuda(), list(range(replicas))
    for way in (contextlib.nullcontext, launching.plainly):
        setting = dataclasses.replace(choose(training, 64), compiled=False)
        model = spec.build(50, seeds, "cuda")
        optimizer = AdamW().build(dict(model.named_parameters()), [1e-2] * replicas, [0.1] * replicas)
        alive = torch.ones(replicas, dtype=torch.bool, device="cuda")
        with way():
            update = Update(model, optimizer, Crops().build(tokens, 32, 8, seeds), training, setting, alive)
            found.append(torch.stack([update(step, 1.0)[0] for step in range(12)]).cpu())
    assert (found[0][0] - found[0][-1] > 1).all()
    within = 1e-2 if precision == "float32" else 5e-2
    torch.testing.assert_close(found[0], found[1], rtol=within, atol=within)


RECURRENCES = [(kind, padded) for kind in CELLS for padded in (False, True)]


@pytest.mark.parametrize(("kind", "padded"), RECURRENCES)
def test_recurrences_on_the_gpu_give_what_they_give_on_the_cpu(kind, padded, dtype=torch.float32, within=1e-3):
    """Every kernel of a step, there and back, beside the plain lines of its cell; 300 units are more than one block."""
    cell, (R, B, T, H) = CELLS[kind], (3, 5, 7, 300)
    draw = torch.Generator().manual_seed(0)
    shapes = {"products": (R, B, T, cell.gates * H), "recurrent": (R, cell.gates * H, H)}
    shapes["first"] = (cell.states, R, B, H)
    if kind == "gru":
        shapes["bias"] = (R, H)
    given = {name: torch.randn(shape, generator=draw) * 0.3 for name, shape in shapes.items()}
    given["products"], given["recurrent"] = given["products"].to(dtype), given["recurrent"] * 0.2
    weigh, real = torch.randn(R, B, T, H, generator=draw), None
    if padded:  # and not laid out as the kernels count
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


SMOOTH = [(kind, padded) for kind, padded in RECURRENCES if kind != "rnn-relu"]  # whose slope jumps, as rounding will


@pytest.mark.parametrize(("kind", "padded"), SMOOTH)
def test_recurrences_in_bf16_on_the_gpu_give_what_they_give_on_the_cpu(kind, padded):
    test_recurrences_on_the_gpu_give_what_they_give_on_the_cpu(kind, padded, torch.bfloat16, 0.03)


@pytest.mark.parametrize("mixer", ["rnn", "gru", "lstm", "mingru"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_recorded_steps_of_a_recurrence_carry_its_state(mixer, replicas):
    spec = LanguageModelSpec.model_validate(
        {"layers": 2, "width": 32, "context": 16, "mixer": mixer, "positions": "none"}
    )
    training, found = TrainingSpec(batch=8, device="cuda", precision="float32"), {}
    tokens = (torch.arange(9000, dtype=torch.int32) * 7 % 41).cuda()
    for fast in (False, True):
        torch._dynamo.reset()
        setting = dataclasses.replace(choose(training, 32), compiled=fast, recorded=fast)
        seeds = list(range(replicas))
        model = spec.build(50, seeds, "cuda")
        optimizer = AdamW().build(dict(model.named_parameters()), [1e-2] * replicas, [0.1] * replicas)
        alive = torch.ones(replicas, dtype=torch.bool, device="cuda")
        update = Update(model, optimizer, Contiguous().build(tokens, 16, 8, seeds), training, setting, alive)
        found[fast] = torch.stack([update(step, 1.0)[0] for step in range(12)]).cpu()
        assert update.carried.here
    assert (found[True][0] - found[True][-1] > 1).all()
    torch.testing.assert_close(found[True], found[False], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("mixer", ["lstm", "gru"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_stream_that_is_replayed_is_read_as_on_the_cpu(mixer, replicas):
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
def test_a_recurrence_alone_is_what_it_is_beside_others_in_evaluation_too(mixer):
    """Alone it is cuDNN's, which goes back only from what it kept, warns of scattered weights, and rounds to TF32."""
    sizes = {"layers": 2, "width": 64, "context": 16, "feedforward": "none", "norm": "none"}
    spec = LanguageModelSpec.model_validate({**sizes, "mixer": mixer, "positions": "none"})
    ids, found = torch.arange(96, device="cuda").view(1, 6, 16) * 7 % 50, {}
    for seeds in ([1], [1, 2]):
        model = spec.build(50, seeds, "cuda").eval()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answers = model(ids.expand(len(seeds), -1, -1))[0][0]  # the logits, of the first
        answers.square().sum().backward()
        found[len(seeds)] = answers.detach(), *(p.grad[0] for p in model.parameters())
    for alone, beside in zip(found[1], found[2], strict=True):
        torch.testing.assert_close(alone, beside, atol=1e-5 * beside.abs().max().item(), rtol=1e-4)


TRAINED = [
    ("demo", "model.layers=2", "model.positions=alibi"),
    ("demo", "model.mixer=lstm", "model.positions=none", "data.batches=contiguous"),
    ("demo", "model.mixer=gru", "model.positions=none", "model.norm=none", "model.feedforward=none"),
    ("python-modules", "model.layers=1"),
    ("pig-latin", "model.layers=1"),
    ("pig-latin-gru",),
    ("pig-latin", "model.layers=1", "model.kind=decoder-only"),
]


@pytest.mark.parametrize("changed", TRAINED, ids=" ".join)
def test_audits_of_what_was_trained_on_a_gpu_are_carried_out(changed, tmp_path):
    recipe, *changes = changed
    short = ["training.duration=40 steps", "training.compile=off", "training.evaluate_every=20 steps"]
    recipes = [load(recipe, [*changes, *short, f"seed={seed}"]) for seed in (0, 1)]
    for run in train(recipes, ["a", "b"], tmp_path):
        report = read_report(run.folder)
        assert report is not None
        assert not [f for f in report.failures if f.sentence.startswith(NOT_CARRIED_OUT) or f.audit == "beside-others"]


def test_the_choices_made_for_a_gpu_say_why():
    setting = choose(TrainingSpec(), width=128)
    assert setting.device.type == "cuda"
    assert any(reason.startswith("bf16: CUDA SM") for reason in setting.reasons)


if __name__ == "__main__":
    checks = [(test_gradients_in_bf16_point_where_those_in_float32_point, BF16_CASES)]
    checks += [(test_fused_kernels_on_the_gpu_give_what_the_plain_one_gives_on_the_cpu, EXACT_CASES)]
    checks += [(test_padding_on_the_gpu_changes_nothing_either, PADDED_CASES)]
    checks += [(test_kernels_on_the_gpu_give_what_their_plain_lines_give, KERNELS)]
    learnt = [(replicas, changes) for replicas in (1, 3) for changes in WAYS]
    checks += [(test_a_model_learns_by_kernels_what_it_learns_without, learnt)]
    checks += [(test_a_recorded_step_of_a_classifier_is_a_plain_one, [()])]
    checks += [
        (test_compiled_and_recorded_steps_learn_what_plain_ones_learn, [(1, 50), (3, 50), (1, 40_000), (3, 40_000)])
    ]
    checks += [
        (test_recurrences_on_the_gpu_give_what_they_give_on_the_cpu, RECURRENCES),
        (test_recurrences_in_bf16_on_the_gpu_give_what_they_give_on_the_cpu, SMOOTH),
        (
            test_a_stream_that_is_replayed_is_read_as_on_the_cpu,
            [(mixer, replicas) for mixer in ("lstm", "gru") for replicas in (1, 3)],
        ),
        (
            test_recorded_steps_of_a_recurrence_carry_its_state,
            [(mixer, replicas) for mixer in ("rnn", "gru", "lstm", "mingru") for replicas in (1, 3)],
        ),
    ]
    checks += [(test_a_recurrence_alone_is_what_it_is_beside_others_in_evaluation_too, [("rnn",), ("gru",), ("lstm",)])]
    for changed in TRAINED:
        where = Path(tempfile.mkdtemp())
        checks += [(test_audits_of_what_was_trained_on_a_gpu_are_carried_out, [(changed, where)])]
    checks += [(test_the_choices_made_for_a_gpu_say_why, [()])]
    for check, cases in checks:
        for case in cases:
            try:
                check(*case)
                print("passed", check.__name__, *case, flush=True)
            except Exception as error:
                print("FAILED", check.__name__, *case, type(error).__name__, str(error).strip()[:300], flush=True)
