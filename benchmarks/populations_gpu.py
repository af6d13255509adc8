"""Populations on a GPU: R replicas trained as one against one replica in its best mode.

    python -m benchmarks.populations_gpu [speeches nano wide shakespeare gpt2]

One JSON line per (shape, R, mode): total training tokens/s, milliseconds per step, peak memory. Random tokens; bf16;
every step is a whole training step (batch, loss, gradients, clipping, AdamW). Modes: `recorded` replays a CUDA graph,
`compiled` uses torch.compile.
"""

import dataclasses
import json
import sys
import time
from typing import NamedTuple

import torch

from headway.data.batches import Crops
from headway.models.language_model import LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.block import FeedForwardSpec
from headway.training.optimizers import AdamW
from headway.training.setting import choose
from headway.training.spec import TrainingSpec
from headway.training.update import STEPS_BEFORE_RECORDING, Update


class Shape(NamedTuple):
    layers: int
    heads: int
    width: int
    context: int
    batch: int
    vocabulary: int
    replicas: tuple[int, ...]
    biases: bool = True


SHAPES = {
    "speeches": Shape(4, 2, 64, 32, 16, 5755, (1, 32)),
    "nano": Shape(3, 3, 48, 1024, 8, 10000, (1, 8)),
    "wide": Shape(6, 8, 512, 128, 32, 33278, (1, 8)),
    "shakespeare": Shape(4, 4, 128, 64, 12, 65, (1, 32)),
    "gpt2": Shape(12, 12, 768, 1024, 64, 50304, (1,), biases=False),  # as nanoGPT trains it
}
MODES = {
    "recorded": (False, True),
    "recorded, compiled": (True, True),
    "compiled": (True, False),
    "eager": (False, False),
}


def measure(shape: Shape, replicas: int, compiled: bool, recorded: bool, seconds: float = 2.0) -> dict[str, float]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    spec = LanguageModelSpec(
        layers=shape.layers,
        width=shape.width,
        context=shape.context,
        mixer=AttentionSpec(heads=shape.heads, bias=shape.biases),
        feedforward=FeedForwardSpec(kind="gelu-tanh", bias=shape.biases),
    )
    seeds = list(range(replicas))
    training = TrainingSpec(batch=shape.batch, device="cuda", optimizer=AdamW())
    setting = dataclasses.replace(choose(training, shape.width), compiled=compiled, recorded=recorded)
    model = spec.build(shape.vocabulary, seeds, "cuda")
    optimizer = training.optimizer.build(dict(model.named_parameters()), [1e-3] * replicas, [0.1] * replicas)
    tokens = torch.randint(shape.vocabulary, (300_000,), device="cuda", dtype=torch.int32)
    sampler = Crops().build(tokens, shape.context, shape.batch, seeds)
    update = Update(model, optimizer, sampler, training, setting, torch.ones(replicas, dtype=torch.bool, device="cuda"))
    began, step = time.perf_counter(), 0
    for _ in range(STEPS_BEFORE_RECORDING + 3):
        losses, _ = update(step, 1.0)
        step += 1
    torch.cuda.synchronize()
    warm, began, first = time.perf_counter() - began, time.perf_counter(), step
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            losses, _ = update(step, 1.0)
            step += 1
        torch.cuda.synchronize()
    per_step = (time.perf_counter() - began) / (step - first)
    return {
        "tokens/s": round(replicas * shape.batch * shape.context / per_step),
        "ms per step": round(per_step * 1e3, 3),
        "GiB at most": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "s to warm up": round(warm, 1),
        "loss": round(losses.mean().item(), 3),
    }


def main(names: list[str]) -> None:
    device = torch.cuda.get_device_name()
    for name in names:
        shape, best = SHAPES[name], {}
        for replicas in shape.replicas:
            for mode, (compiled, recorded) in MODES.items():
                if (name == "gpt2") != (not recorded) and not (compiled and recorded):  # a big model needs no recording
                    continue
                line = {"benchmark": f"training on {device}, {name}", "R": replicas, "mode": mode}
                try:
                    line |= measure(shape, replicas, compiled, recorded)
                    best[replicas] = max(best.get(replicas, 0), line["tokens/s"])
                except Exception as error:
                    line |= {"error": f"{type(error).__name__}: {str(error)[:200]}"}
                print(json.dumps(line), flush=True)
        for replicas in shape.replicas[1:]:
            ratio = round(best[replicas] / best[1], 2)
            print(
                json.dumps({"benchmark": f"{name}: R = {replicas} over R = 1, best modes", "ratio": ratio}), flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:] or list(SHAPES))
