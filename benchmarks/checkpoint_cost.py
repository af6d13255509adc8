"""The cost of a checkpoint relative to the 500 training steps between two of them, at 10 million parameters.

    python -m benchmarks.checkpoint_cost [turns] [device] [folder]

The shape is nanoGPT's character model (6 layers, 6 heads, width 384), on CUDA with its batches of 64 × 256 tokens, on a
CPU with only 4 × 64, so that steps are short and the share of saving is overestimated. Both take turns in one process:
on a CPU single steps and complete saves (copies, checksums, writing, waiting for the disk, removing the oldest); on
CUDA, where a thread writes during training, 500 steps with a save and 500 without. `folder` chooses the disk.
"""

import json
import platform
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.interleave import take_turns
from headway.data.running.batches import Crops
from headway.experiment.recorder import writer_for
from headway.models.language_model import LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.training.checkpoint import WEIGHTS
from headway.training.population import Population
from headway.training.processes import ALONE
from headway.training.setting import choose
from headway.training.spec import TrainingSpec
from headway.training.update import Update

EVERY = 500
VOCABULARY = 65


def main(turns: int, device: str, folder: Path | None) -> None:
    batch, context = (64, 256) if device.startswith("cuda") else (4, 64)
    spec = LanguageModelSpec(layers=6, width=384, context=context, mixer=AttentionSpec(heads=6))
    training = TrainingSpec(batch=batch, device=device, evaluate_on=[])
    setting = choose(training, spec.width)
    model = spec.build(VOCABULARY, [0], device)
    optimizer = training.optimizer.build(dict(model.named_parameters()), [1e-3], [0.1])
    tokens = torch.randint(VOCABULARY, (100_000,), generator=torch.Generator().manual_seed(0)).to(setting.device)
    sampler = Crops().build(tokens, context, batch, [0])
    update = Update(model, optimizer, sampler, training, setting, torch.ones(1, dtype=torch.bool, device=device))
    population = Population(model, optimizer, 1)
    done = 0

    def steps(n: int) -> None:
        nonlocal done
        for _ in range(n):
            update(done, 1.0)
            done += 1
        if setting.device.type == "cuda":
            torch.cuda.synchronize()

    with tempfile.TemporaryDirectory(dir=folder) as home:
        run = Run.create(Path(home) / "run", Recipe(model=spec, training=training), device)
        writer = writer_for(setting, ALONE, 1)

        def save() -> None:
            made = population.slice(0, done)
            writer(lambda: run.save_checkpoint(made))

        if setting.device.type == "cuda":  # a thread writes during training, so measure how much it slows training down
            steps(10)
            ways = {"without": lambda: steps(EVERY), "with": lambda: (save(), steps(EVERY))}
            times = take_turns(ways, turns, calls=1)
            pairs = zip(times["with"].wall, times["without"].wall, strict=True)
            shares, per_step = [(w - without) / without for w, without in pairs], times["without"].median / EVERY
        else:
            times = take_turns({"step": lambda: steps(1), "save": save}, turns, calls=1)
            pairs = zip(times["save"].wall, times["step"].wall, strict=True)
            shares, per_step = [s / (t * EVERY) for s, t in pairs], times["step"].median
        writer.finish()
        writer.close()
        size = sum(f.stat().st_size for f in run.home.glob("*/*.safetensors")) / len(
            list(run.home.glob(f"*/{WEIGHTS}"))
        )
    shares.sort()
    quarter = len(shares) // 4
    print(
        json.dumps(
            {
                "benchmark": f"cost of a checkpoint every {EVERY} steps, {device}",
                "parameters": sum(p.numel() for p in model.parameters()),
                "batch": [batch, context],
                "megabytes": round(size / 1e6, 1),
                "milliseconds per step": round(per_step * 1e3, 2),
                "milliseconds per checkpoint": round(statistics.median(shares) * per_step * EVERY * 1e3, 1),
                "share of training time": round(statistics.median(shares), 5),
                "middle half of turns": [round(shares[quarter], 5), round(shares[-1 - quarter], 5)],
                "turns": turns,
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "processor": platform.processor() or platform.machine(),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    words = sys.argv[1:]
    main(
        int(words[0]) if words else 15,
        words[1] if len(words) > 1 else "cpu",
        Path(words[2]) if len(words) > 2 else None,
    )
