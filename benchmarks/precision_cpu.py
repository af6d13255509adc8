"""Training speed on this CPU in bf16 compared with float32: the same model, batches and loop, in turns in one process.

    python -m benchmarks.precision_cpu [turns]

One thread; CPU time is compared, so that other processes do not matter. The losses after the last turn are printed to
show that both compute the same. The gain from bf16 depends on whether the processor has bf16 multiplication
(`bf16 of its own`).
"""

import dataclasses
import json
import platform
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.interleave import Turns, ratio, take_turns
from benchmarks.recurrence import step_of
from headway.models.language_model import LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.block import NoFeedForward
from headway.nn.positions import NoPositions
from headway.nn.recurrence import LstmSpec
from headway.training.setting import choose, multiplies_bf16
from headway.training.spec import TrainingSpec

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


@dataclasses.dataclass
class Shape:
    spec: LanguageModelSpec
    vocabulary: int
    batch: int

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.spec.context


def decoder(layers: int, heads: int, width: int, context: int) -> LanguageModelSpec:
    return LanguageModelSpec(layers=layers, width=width, context=context, mixer=AttentionSpec(heads=heads))


def lstm(width: int) -> LanguageModelSpec:
    return LanguageModelSpec(
        layers=2, width=width, context=35, mixer=LstmSpec(), positions=NoPositions(), feedforward=NoFeedForward()
    )


SHAPES = {
    "4 layers, width 128, T 64, B 12, V 65": Shape(decoder(4, 4, 128, 64), 65, 12),
    "4 layers, width 128, T 64, B 12, V 33,278": Shape(decoder(4, 4, 128, 64), 33_278, 12),
    "4 layers, width 512, T 128, B 8, V 8,192": Shape(decoder(4, 8, 512, 128), 8192, 8),
    "LSTM 2×200, T 35, B 20, V 33,278": Shape(lstm(200), 33_278, 20),
    "LSTM 2×400, T 35, B 40, V 33,278": Shape(lstm(400), 33_278, 40),
}


def in_precision(shape: Shape, precision: torch.dtype) -> Callable[[], Tensor]:
    """A function that takes one training step and returns its loss."""
    training = TrainingSpec(batch=shape.batch, device="cpu")
    setting = dataclasses.replace(choose(training, shape.spec.width), precision=precision)
    tokens = torch.randint(shape.vocabulary, (100_000,), generator=torch.Generator().manual_seed(0))
    return step_of(shape.spec.build(shape.vocabulary, [0], "cpu"), setting, tokens, training, shape.spec.context)


def main(turns: int) -> None:
    torch.set_num_threads(1)
    for name, shape in SHAPES.items():
        ways = {precision: in_precision(shape, dtype) for precision, dtype in PRECISIONS.items()}
        times = take_turns(ways, turns, calls=10 if shape.vocabulary < 100 else 1)
        times = {way: Turns(of.cpu, of.cpu) for way, of in times.items()}
        middle, low, high = ratio(times["bf16"], times["float32"])
        line = {
            "benchmark": f"training tokens per CPU second, {name}",
            **{way: round(shape.tokens_per_step / of.median) for way, of in times.items()},
            "ratio": round(middle, 3),
            "middle half of turns": [round(low, 3), round(high, 3)],
            "losses": {way: round(step().item(), 4) for way, step in ways.items()},
            "turns": turns,
            "bf16 of its own": multiplies_bf16(),
            "torch": torch.__version__,
            "processor": platform.processor() or platform.machine(),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
