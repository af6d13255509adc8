"""Measures training speed and memory on this machine for a few model sizes, and what training more replicas gains."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import torch

from headway.core.errors import UserError, did_you_mean
from headway.data.running.batches import Crops
from headway.models.language_model import LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.block import GeluTanh
from headway.scoring.cost import peak_flops
from headway.training.setting import Setting, choose
from headway.training.spec import TrainingSpec
from headway.training.update import STEPS_BEFORE_RECORDING, Update


@dataclasses.dataclass(frozen=True)
class Size:
    layers: int
    heads: int
    width: int
    context: int
    batch: int
    vocabulary: int
    biases: bool = True

    @property
    def spec(self) -> LanguageModelSpec:
        return LanguageModelSpec(
            layers=self.layers,
            width=self.width,
            context=self.context,
            mixer=AttentionSpec(heads=self.heads, bias=self.biases),
            feedforward=GeluTanh(bias=self.biases),
        )


SIZES = {
    "tiny": Size(4, 2, 64, 32, 16, 5755),
    "small": Size(4, 4, 128, 64, 12, 65),
    "medium": Size(6, 8, 512, 128, 32, 33278),
    "gpt2": Size(12, 12, 768, 1024, 8, 50304),
}
ON_A_CPU = ("tiny", "small")


def bench(names: list[str] | None = None, seconds: float = 1.5, device: str = "auto") -> Iterator[dict[str, Any]]:
    """Yield one measurement at a time: every size with 1, 2, 4 … replicas, until more gain nothing or do not fit."""
    # Without torch.compile, which would take minutes over all sizes and gains up to a factor of two.
    setting = dataclasses.replace(choose(TrainingSpec(device=device), width=512), compiled=False)
    cuda = setting.device.type == "cuda"
    for name in names or (SIZES if cuda else ON_A_CPU):
        if name not in SIZES:
            raise UserError(f"unknown size '{name}'{did_you_mean(name, SIZES)}")
        best = 0.0
        for replicas in (1, 2, 4, 8, 16, 32, 64) if cuda else (1, 2, 4):
            try:
                found = measure(SIZES[name], replicas, setting, seconds)
            except torch.cuda.OutOfMemoryError:
                yield {"size": name, "replicas": replicas, "error": "does not fit into memory"}
                break
            yield {"size": name, "replicas": replicas, "device": _name(setting.device), **found}
            if found["tokens_per_second"] < 1.1 * best:
                break
            best = max(best, found["tokens_per_second"])


def measure(size: Size, replicas: int, setting: Setting, seconds: float) -> dict[str, Any]:
    """Take whole training steps on random tokens for about this long."""
    device = setting.device
    training = TrainingSpec(batch=size.batch)
    seeds = list(range(replicas))
    model = size.spec.build(size.vocabulary, seeds, str(device))
    optimizer = training.optimizer.build(dict(model.named_parameters()), [1e-3] * replicas, [0.1] * replicas)
    tokens = torch.randint(size.vocabulary, (100_000,), dtype=torch.int32).to(device)
    sampler = Crops().build(tokens, size.context, size.batch, seeds)
    alive = torch.ones(replicas, dtype=torch.bool, device=device)
    update = Update(model, optimizer, sampler, training, setting, alive)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    for step in range(STEPS_BEFORE_RECORDING + 2):  # warm up
        update(step, 1.0)
    _wait(device)
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        update(steps, 1.0)
        steps += 1
        if steps % 10 == 0:
            _wait(device)
    _wait(device)
    per_second = steps * replicas * size.batch * size.context / (time.perf_counter() - began)
    found: dict[str, Any] = {
        "tokens_per_second": round(per_second),
        "parameters": sum(p.numel() for p in model.parameters()) // replicas,
    }
    peak = peak_flops(_name(device))
    if peak is not None:
        found["mfu"] = round(
            3 * per_second * size.spec.forward_flops_per_token(size.vocabulary, size.context) / peak, 4
        )
    if device.type == "cuda":
        found["gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    return found


def bars(figures: list[dict[str, Any]], width: int = 40) -> list[str]:
    """Throughput against the number of replicas R, as a bar chart with one line per measurement."""
    speeds = [f["tokens_per_second"] for f in figures if "tokens_per_second" in f]
    lines = []
    for f in figures:
        if "tokens_per_second" not in f:
            lines.append(f"R = {f['replicas']:<3} {f['error']}")
            continue
        bar = "█" * max(1, round(width * f["tokens_per_second"] / max(speeds)))
        facts = [f"{f['tokens_per_second']:>12,} tokens/s"]
        facts += [f"{f['gib']:.2f} GiB"] if "gib" in f else []
        facts += [f"{f['mfu']:.1%} of peak FLOPs"] if "mfu" in f else []
        lines.append(f"R = {f['replicas']:<3} {bar:<{width}} {'  '.join(facts)}")
    return lines


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
