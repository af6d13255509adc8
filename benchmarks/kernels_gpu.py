"""Where a training step on a GPU spends its time, by kernel, and the speed of each way to compute it.

    python -m benchmarks.kernels_gpu [SHAPE …] [--modes plain kernels layers whole] [--table FILE.md] [--seconds 1.5]

One JSON line per shape, R and mode: tokens/s of complete, recorded training steps on random tokens, the seconds until
the first of them (building kernels, compiling), and the losses of the first steps, which must agree between modes.
Modes: `plain` and `kernels` compile nothing, without and with the kernels of `headway/nn/kernels`; `layers` compiles
one layer, `whole` the whole loss. --table writes the most expensive kernels of a replayed step as Markdown. --check
first compares each kernel with its reference implementation, and measures the attention kernels (forward and backward)
and the memory-bound kernels. Without a SHAPE all are measured; `none` measures no shape.
"""

import argparse
import dataclasses
import json
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.populations_gpu import SHAPES
from headway.data.running.batches import Crops
from headway.experiment.bench import Size
from headway.nn import backends
from headway.nn.kernels import fused, fused_adamw, fused_loss, fused_norm, launching, products
from headway.training.setting import choose
from headway.training.spec import TrainingSpec
from headway.training.update import STEPS_BEFORE_RECORDING, Update

MODES = ("plain", "kernels", "layers", "whole")


FLOAT, BF16 = torch.float32, torch.bfloat16
CHECKED = {
    "norm": (
        (128, FLOAT, None, BF16, True, True, 1e-5),
        (768, FLOAT, None, FLOAT, True, False, 1e-5),
        (768, FLOAT, (BF16, False, False), BF16, True, True, 1e-5),
        (512, FLOAT, (BF16, True, False), BF16, True, True, 1e-5),
        (128, FLOAT, (BF16, True, True), BF16, True, True, 1e-5),
        (100, FLOAT, (FLOAT, False, True), FLOAT, False, False, 1e-6),
    ),
    "activate": (
        (512, BF16, "gelu-tanh"),
        (192, FLOAT, "gelu"),
        (384, BF16, "none"),
        (100, FLOAT, "none"),
    ),
    "dropout": ((FLOAT, True), (BF16, False)),
    "rotate": ((4, 32, BF16),),
    "loss": ((BF16, 128, False), (BF16, 4096, False), (FLOAT, 64, True)),
    "adamw": ((True,), (False,)),
    "product": ((BF16, False, True), (BF16, False, False), (BF16, True, False)),
}
MODULES = {"norm": fused_norm, "loss": fused_loss, "adamw": fused_adamw, "product": products}
ATTENTION = ((64, 12, 1024, 64), (32, 8, 128, 64), (64, 3, 1024, 16), (384, 4, 64, 32))  # B, H, T, d


def check() -> list[dict]:
    """The error of each kernel, and the cost of attention with each of torch's kernels."""
    device, lines = torch.device("cuda"), []
    for operation, cases in CHECKED.items():
        module = MODULES.get(operation, fused)
        for case in cases:
            began = time.perf_counter()
            try:
                line = {"kernel": operation, "off": getattr(module, f"check_{operation}")(device, *case)}
            except Exception as error:
                line = {"kernel": operation, "error": f"{type(error).__name__}: {str(error).strip()[-600:]}"}
            lines.append({**line, "case": str(case), "seconds": round(time.perf_counter() - began, 2)})
            print(json.dumps(lines[-1]), flush=True)
    for B, H, T, d in ATTENTION:
        line: dict[str, Any] = {"attention": [B, H, T, d]}
        try:
            line["cudnn off"] = backends.check_cudnn(device, H, T, d, torch.bfloat16)
        except Exception as error:
            line["cudnn"] = f"{type(error).__name__}: {str(error).strip()[-200:]}"
        together = torch.randn(B, T, 3 * H * d, device=device, dtype=torch.bfloat16, requires_grad=True)
        for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            with suppress(RuntimeError), sdpa_kernel([kernel]):
                for turn in range(2):
                    began = time.perf_counter()
                    for _ in range(20):
                        q, k, v = (part.unflatten(-1, (H, d)).transpose(1, 2) for part in together.chunk(3, -1))
                        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
                        y.backward(y.detach())
                    torch.cuda.synchronize()
                    line[kernel.name] = round(50 * (time.perf_counter() - began), 3) if turn else None
        lines.append(line)
        print(json.dumps(line), flush=True)
    return lines


def speeds() -> list[dict]:
    """Memory-bound kernels at the sizes of `gpt2`: milliseconds, and TB/s of the data that must be read and written."""
    N, D, H, V = 64 * 1024, 768, 3072, 50304
    stream, more, hidden = (
        torch.randn(1, 64, 1024, width, device="cuda", dtype=dtype, requires_grad=True)
        for width, dtype in ((D, FLOAT), (D, BF16), (H, BF16))
    )
    weight, bias = torch.ones(1, D, device="cuda"), torch.zeros(1, D, device="cuda")
    logits = torch.randn(1, N // 4, V, device="cuda").to(BF16)
    targets, shares = torch.zeros(1, N // 4, dtype=torch.int64, device="cuda"), torch.ones(1, N // 4, device="cuda")
    both = fused_norm._SumAndNorm.apply(stream, more, None, None, weight, bias, 1e-5, True, BF16)
    for_hidden = torch.zeros(1, H, device="cuda")
    active, plainly_active = fused._Activate.apply(hidden, for_hidden, "gelu-tanh"), F.gelu(hidden, approximate="tanh")

    def back(given: Any, of: Any) -> Any:
        slopes = [torch.ones_like(one) for one in given]
        return lambda: torch.autograd.grad(given, of, slopes, retain_graph=True)

    ways = {
        "sum and norm, there": (
            lambda: fused_norm._SumAndNorm.apply(stream, more, None, None, weight, bias, 1e-5, True, BF16),
            12 * N * D,
        ),
        "sum and norm, back": (back(both, (stream, more)), 16 * N * D),
        "bias and gelu, there": (lambda: fused._Activate.apply(hidden, for_hidden, "gelu-tanh"), 4 * N * H),
        "bias and gelu, back": (back((active,), hidden), 6 * N * H),
        "torch's gelu without a bias, there": (lambda: F.gelu(hidden, approximate="tanh"), 4 * N * H),
        "torch's gelu without a bias, back": (back((plainly_active,), hidden), 6 * N * H),
        "loss, a quarter": (lambda: fused_loss.loss_and_slope(logits, targets, shares, V, 0.0), 4 * N // 4 * V),
    }
    lines = []
    for name, (run, moved) in ways.items():
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for turn in range(23):
            if turn == 3:
                began.record()
            run()
        ended.record()
        torch.cuda.synchronize()
        ms = began.elapsed_time(ended) / 20
        lines.append({"speed": name, "ms": round(ms, 4), "TB/s": round(moved / ms / 1e9, 2)})
        print(json.dumps(lines[-1]), flush=True)
    return lines


def update_for(size: Size, replicas: int, mode: str) -> Update:
    torch.manual_seed(0)
    training = TrainingSpec(batch=size.batch)
    setting = dataclasses.replace(choose(TrainingSpec(device="cuda"), size.width), compiled=False)
    seeds = list(range(replicas))
    model = size.spec.build(size.vocabulary, seeds, "cuda")
    optimizer = training.optimizer.build(dict(model.named_parameters()), [1e-3] * replicas, [0.1] * replicas)
    tokens = torch.randint(size.vocabulary, (100_000,), dtype=torch.int32).to("cuda")
    sampler = Crops().build(tokens, size.context, size.batch, seeds)
    alive = torch.ones(replicas, dtype=torch.bool, device="cuda")
    made = Update(model, optimizer, sampler, training, setting, alive)
    if mode in ("layers", "whole"):
        torch._dynamo.reset()
        made.compile(whole=mode == "whole")
    return made


def measured(size: Size, replicas: int, mode: str, seconds: float) -> tuple[dict, Update]:
    began = time.perf_counter()
    update = update_for(size, replicas, mode)
    losses = [update(step, 1.0)[0].mean() for step in range(STEPS_BEFORE_RECORDING + 2)]
    torch.cuda.synchronize()
    ready = time.perf_counter()
    torch.cuda.reset_peak_memory_stats()
    steps = 0
    while time.perf_counter() - ready < seconds:
        for _ in range(5):
            update(steps, 1.0)
            steps += 1
        torch.cuda.synchronize()
    each = (time.perf_counter() - ready) / steps
    found = {
        "tokens_per_second": round(replicas * size.batch * size.context / each),
        "ms": round(1000 * each, 3),
        "seconds_until_ready": round(ready - began, 1),
        "losses": [round(loss.item(), 4) for loss in losses],
        "gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }
    return found, update


def by_kernel(update: Update, most: int = 25) -> list[dict]:
    """Milliseconds and calls of each kernel in one replayed step, the most expensive first."""
    from torch.profiler import ProfilerActivity, profile

    update(0, 1.0)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for step in range(3):
            update(step, 1.0)
        torch.cuda.synchronize()
    rows = [
        {"kernel": event.key[:100], "ms": round(event.self_device_time_total / 3000, 4), "calls": event.count / 3}
        for event in profiled.key_averages()
        if event.self_device_time_total > 0
    ]
    rows.sort(key=lambda row: -row["ms"])
    rest = rows[most:]
    total = {"kernel": "all", "ms": round(sum(row["ms"] for row in rows), 3), "calls": sum(r["calls"] for r in rows)}
    others = {"kernel": f"{len(rest)} others", "ms": round(sum(row["ms"] for row in rest), 3)}
    return [total, *rows[:most], others | {"calls": sum(row["calls"] for row in rest)}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=f"of {', '.join(SHAPES)}, as NAME or NAME:R")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--out", type=Path, help="a file for the same lines")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    lines, tables = check() + speeds() if asked.check else [], []
    for word in asked.shapes if asked.shapes != ["none"] else []:
        name, _, only = word.partition(":")
        size, populations = SHAPES[name]
        for replicas in [int(only)] if only else populations:
            for mode in asked.modes:
                line = {"shape": name, "R": replicas, "mode": mode}
                try:
                    with launching.plainly() if mode == "plain" else nullcontext():
                        found, update = measured(size, replicas, mode, asked.seconds)
                        line |= found
                        if asked.table:
                            table = by_kernel(update)
                            tables += [f"\n{name}, R = {replicas}, {mode}\n\n| kernel | ms | calls |\n|---|---|---|"]
                            tables += [f"| {row['kernel']} | {row['ms']} | {row['calls']:g} |" for row in table]
                    del update
                except Exception as error:  # continue with the other modes
                    line["error"] = f"{type(error).__name__}: {str(error).strip()[-400:]}"
                torch.cuda.empty_cache()
                print(json.dumps(line), flush=True)
                lines.append(line)
                if asked.table:
                    asked.table.write_text("\n".join(tables) + "\n")
                if asked.out:
                    asked.out.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
