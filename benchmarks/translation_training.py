"""Training speed of translators: Headway compared with Marian of `transformers`, with the same batches.

    python -m benchmarks.translation_training [--device cuda] [--shapes small wide] [--turns 5] [--dropout 0.1]
        [--compile off]

Both start with the same weights, read the same pairs in the same order (random tokens; the target is the source with
each token moved by one, so it can be learnt), and take the same steps: loss, gradients, clipping at 1, AdamW. On a CPU:
one thread, float32, CPU time, in turns in one process. On a GPU: bf16, Headway recorded and compiled as by default,
Marian as usually trained (eager, autocast, fused AdamW), and also populations of 8. The losses are checked: they must
be equal before the first step and similar after the last one.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import MarianConfig, MarianMTModel

from headway.data.pairs.batches import Buckets, BucketSampler
from headway.data.pairs.dataset import PairedTexts, Side
from headway.formats import marian, marian_config
from headway.models.encoder_decoder import EncoderDecoder
from headway.recipe.recipe import from_tree
from headway.training.population import load_weights
from headway.training.setting import choose
from headway.training.spec import TrainingSpec
from headway.training.update import Update

RATE, DECAY = 3e-4, 0.1


@dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    width: int
    hidden: int
    vocabulary: int
    batch: int
    """Batch size in the longest bucket; shorter buckets have larger batches."""
    shortest: int = 8
    longest: int = 40


SHAPES = {
    "small": Shape(4, 4, 128, 256, 10_000, 64),  # as for multi30k
    "wide": Shape(2, 8, 512, 2048, 10_000, 16),
}


def pairs_of(shape: Shape, rows: int = 20_000) -> PairedTexts:
    """Random pairs: token k of the vocabulary in a source is token k + 1 in its target; END is the last token."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(shape.shortest, shape.longest, rows)
    ids = rng.zipf(1.3, int(lengths.sum())) % (shape.vocabulary - 3)
    sides = [
        Side([""] * rows, (ids + moved).astype(np.int32), np.cumsum(lengths), shape.vocabulary - 1) for moved in (0, 1)
    ]
    return PairedTexts(*sides, np.zeros(rows, np.bool_))


def marian_of(shape: Shape, dropout: float) -> MarianMTModel:
    """A Marian whose END is also the last token and starts the targets, so both models can use the same batches."""
    torch.manual_seed(0)
    end = shape.vocabulary - 1
    sides = {"layers": shape.layers, "attention_heads": shape.heads, "ffn_dim": shape.hidden}
    config = MarianConfig(
        vocab_size=shape.vocabulary,
        d_model=shape.width,
        **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sides.items()},
        max_position_embeddings=64,
        activation_function="relu",
        dropout=dropout,
        scale_embedding=True,
        pad_token_id=end,
        decoder_start_token_id=end,
        eos_token_id=end,
        forced_eos_token_id=None,
        use_cache=False,
    )
    return MarianMTModel(config)


def headway_of(model: MarianMTModel, replicas: int, device: str) -> EncoderDecoder:
    """Headway's model with the same weights in every replica."""
    config = model.config.to_dict()
    numbers = marian_config.numbering(config)
    tree, _ = marian_config.model_tree(config, numbers, biased=False)
    spec = marian_config.written(from_tree({"model": tree, "data": {"kind": "pairs"}}, "benchmark").model)
    size = config["vocab_size"]
    made = spec.build(size, size, list(range(replicas)), device)
    weights = marian.from_marian({name: tensor.cpu() for name, tensor in model.state_dict().items()}, spec, numbers)
    for r in range(replicas):
        load_weights(made, r, weights)
    return made


class Ours:
    """Headway's training step."""

    def __init__(self, theirs: MarianMTModel, shape: Shape, replicas: int, device: str, compile: str):
        self.model = headway_of(theirs, replicas, device)
        training = TrainingSpec.model_validate(
            {"batch": shape.batch, "device": device, "clip": 1.0, "compile": compile}
        )
        parameters = dict(self.model.named_parameters())
        optimizer = training.optimizer.build(parameters, [RATE] * replicas, [DECAY] * replicas)
        seeds = list(range(replicas))
        self.sampler = Buckets().build(pairs_of(shape), shape.longest, shape.batch, seeds, device)
        alive = torch.ones(replicas, dtype=torch.bool, device=device)
        self.update = Update(self.model, optimizer, self.sampler, training, choose(training, shape.width), alive)
        self.step, self.losses = 0, []

    def __call__(self) -> None:
        losses, _ = self.update(self.step, 1.0)
        self.losses.append(losses)
        self.step += 1


class Theirs:
    """A typical training loop with transformers."""

    def __init__(self, model: MarianMTModel, sampler: BucketSampler, device: str):
        self.model, self.sampler, self.device = model.to(device).train(), sampler, device
        fused = {"fused": True} if device.startswith("cuda") else {}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=DECAY, **fused)
        self.step, self.losses = 0, []

    def __call__(self) -> None:
        batch = self.sampler.at(self.step)
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.device.startswith("cuda")):
            logits = self.model(
                input_ids=batch.sources[0],
                attention_mask=batch.source_mask[0].long(),
                decoder_input_ids=batch.inputs[0],
            ).logits
            targets = batch.targets[0].masked_fill(~batch.padding_mask[0], -100)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.detach())
        self.step += 1


def timed(step: Callable[[], None], steps: int, device: str) -> float:
    """Seconds of these steps: CPU time on a CPU, otherwise wall time."""
    cuda = device.startswith("cuda")
    clock = time.perf_counter if cuda else time.process_time
    if cuda:
        torch.cuda.synchronize()
    began = clock()
    for _ in range(steps):
        step()
    if cuda:
        torch.cuda.synchronize()
    return clock() - began


def compare(name: str, shape: Shape, device: str, turns: int, dropout: float, compile: str) -> None:
    cuda = device.startswith("cuda")
    theirs_model = marian_of(shape, dropout)
    ours, populations = Ours(theirs_model, shape, 1, device, compile), {}
    if cuda:
        populations = {8: Ours(theirs_model, shape, 8, device, compile)}
    theirs = Theirs(theirs_model, Buckets().build(pairs_of(shape), shape.longest, shape.batch, [0], device), device)
    ways: dict[str, Any] = {"headway": ours, "transformers": theirs}
    ways |= {f"headway, R = {replicas}": way for replicas, way in populations.items()}
    warm, steps = (100, 200) if cuda else (1, 4 if shape.width > 256 else 8)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns + 1):
        for way, step in ways.items():
            took = timed(step, warm if turn == 0 else steps, device)
            if turn:
                seconds[way].append(took / steps)
    first = [float(way.losses[0].mean()) for way in (ours, theirs)]
    last = [float(torch.stack(way.losses[-5:]).mean()) for way in (ours, theirs)]
    assert abs(first[0] - first[1]) < (0.02 if cuda or dropout else 1e-3), f"the first losses differ: {first}"
    assert last[0] < first[0] - 0.05, f"nothing was learnt: {first[0]:.3f} → {last[0]:.3f}"
    assert abs(last[0] - last[1]) < 0.05 + 0.02 * last[1], f"the last losses differ: {last}"
    per_step = ours.sampler.tokens_per_step
    of_theirs, where = seconds["transformers"], torch.cuda.get_device_name() if cuda else "CPU"
    for way, took in seconds.items():
        replicas = 8 if "R = 8" in way else 1
        ratios = sorted(replicas * b / a for a, b in zip(took, of_theirs, strict=True))
        quarter = len(ratios) // 4
        line = {
            "benchmark": f"training target tokens/s on {where}, {name}: {way}",
            "tokens_per_second": round(replicas * per_step / statistics.median(took)),
            "over transformers": round(statistics.median(ratios), 3),
            "middle half of turns": [round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)],
            "first and last loss": [round(x, 4) for x in (first[way == "transformers"], last[way == "transformers"])],
            "steps": ours.step,
            "compiled": ours.update.setting.compiled,
            "dropout": dropout,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "processor": platform.processor() or platform.machine(),
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--compile", default="auto", choices=["auto", "on", "off"], help="four shapes take minutes")
    asked = parser.parse_args()
    if asked.device == "cpu":
        torch.set_num_threads(1)
    for name in asked.shapes:
        compare(name, SHAPES[name], asked.device, asked.turns, asked.dropout, asked.compile)


if __name__ == "__main__":
    main()
