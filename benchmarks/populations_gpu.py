"""Populations on a GPU: R replicas trained together, compared with one replica in its best mode.

    python -m benchmarks.populations_gpu [speeches nano wide shakespeare gpt2]

One JSON line per (shape, R, mode): total training tokens/s and peak memory. Random tokens; bf16; every step is a
complete training step (batch, loss, gradients, clipping, AdamW). Modes: `recorded` replays a CUDA graph, `compiled`
uses torch.compile.
"""

import dataclasses
import json
import sys

import torch

from headway.experiment.bench import Size, measure
from headway.training.setting import choose
from headway.training.spec import TrainingSpec

SHAPES = {
    "speeches": (Size(4, 2, 64, 32, 16, 5755), (1, 32)),
    "nano": (Size(3, 3, 48, 1024, 8, 10000), (1, 8)),
    "wide": (Size(6, 8, 512, 128, 32, 33278), (1, 8)),
    "shakespeare": (Size(4, 4, 128, 64, 12, 65), (1, 32)),
    "gpt2": (Size(12, 12, 768, 1024, 64, 50304, biases=False), (1,)),  # as nanoGPT trains it
}
MODES = {
    "recorded": {"compiled": False, "recorded": True},
    "recorded, compiled": {"compiled": True, "recorded": True},
    "compiled": {"compiled": True, "recorded": False},
    "eager": {"compiled": False, "recorded": False},
}


def main(names: list[str]) -> None:
    device = torch.cuda.get_device_name()
    for name in names:
        size, populations = SHAPES[name]
        best: dict[int, float] = {}
        for replicas in populations:
            for mode, choices in MODES.items():
                torch._dynamo.reset()
                setting = dataclasses.replace(choose(TrainingSpec(device="cuda"), size.width), **choices)
                line = {"benchmark": f"training on {device}, {name}", "R": replicas, "mode": mode}
                try:
                    line |= measure(size, replicas, setting, seconds=2.0)
                    best[replicas] = max(best.get(replicas, 0), line["tokens_per_second"])
                except torch.cuda.OutOfMemoryError:
                    line["error"] = "does not fit into the memory"
                print(json.dumps(line), flush=True)
        for replicas in populations[1:]:
            line = {"benchmark": f"{name}: R = {replicas} over R = 1, best modes", "ratio": best[replicas] / best[1]}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(SHAPES))
