"""Training speed of recurrent language models: Headway compared with the same model using nn.LSTM, in the same loop.

    python -m benchmarks.recurrence                          on a CPU: one replica, in turns
    python -m benchmarks.recurrence --json FILE              on CUDA: R = 1 and 8, in every mode, one JSON line each

LSTM 2×200 as in pytorch/examples' word_language_model (bptt 35, batch 20, 33,278 words, tied, dropout 0.2), random
tokens, SGD with clipping. Every step is complete: batch, loss, gradients, clipping, update, carried state. The loss is
printed to show that both compute the same.
"""

import argparse
import dataclasses
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.interleave import ratio, take_turns
from headway.data.running.batches import Contiguous
from headway.models.language_model import LanguageModelSpec
from headway.nn.block import NoFeedForward, NoNorm
from headway.nn.mingru import MinGruSpec
from headway.nn.positions import NoPositions
from headway.nn.recurrence import GruSpec, LstmSpec, RecurrenceSpec, RnnSpec
from headway.nn.replicated import Clock
from headway.nn.trainable import Trainable
from headway.training.carried import CarriedState
from headway.training.optimizers import Sgd
from headway.training.setting import Setting, choose
from headway.training.spec import TrainingSpec
from headway.training.update import STEPS_BEFORE_RECORDING, Update

LAYERS, WIDTH, SEGMENT, BATCH, VOCABULARY, DROPOUT = 2, 200, 35, 20, 33_278, 0.2
MIXERS = {"lstm": LstmSpec(), "gru": GruSpec(), "rnn": RnnSpec(), "mingru": MinGruSpec()}
MODES = {
    "recorded": {"compiled": False, "recorded": True},
    "recorded, compiled": {"compiled": True, "recorded": True},
    "eager": {"compiled": False, "recorded": False},
}


def ours(mixer: RecurrenceSpec, replicas: int, device: str, width: int = WIDTH) -> Trainable:
    spec = LanguageModelSpec(
        layers=LAYERS,
        width=width,
        context=SEGMENT,
        mixer=mixer,
        positions=NoPositions(),
        feedforward=NoFeedForward(),
        norm=NoNorm(),
        dropout=DROPOUT,
        output_bias=True,
    )
    return spec.build(VOCABULARY, list(range(replicas)), device)


class Plain(Trainable):
    """The same model with torch's own modules, as usually written, for the same loop."""

    replicas = 1

    def __init__(self, device: str):
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(1, VOCABULARY, WIDTH).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(1, VOCABULARY))
        lstm = nn.LSTM(WIDTH, WIDTH, LAYERS, dropout=DROPOUT)
        self.names = [name for name, _ in lstm.named_parameters()]
        for name, p in lstm.named_parameters():  # with the axis of replicas that the optimizers expect
            self.register_parameter(name, nn.Parameter(p.detach()[None].clone()))
        self.to(device)
        self.clock = Clock(torch.device(device))

    def loss(self, batch: Any, state: dict[str, Tensor] | None = None):
        ids = batch.inputs[0].t()
        x = F.dropout(F.embedding(ids, self.embedding[0]), DROPOUT, self.training)
        zeros = x.new_zeros(1, ids.shape[1], LAYERS, WIDTH)
        before = {"hidden": zeros, "cell": zeros} if state is None else state
        first = tuple(before[name][0].transpose(0, 1).contiguous() for name in ("hidden", "cell"))
        weights = [getattr(self, name)[0] for name in self.names]
        y, h, c = torch.lstm(x, first, weights, True, LAYERS, DROPOUT, self.training, False, False)
        y = F.dropout(y, DROPOUT, self.training)
        logits = F.linear(y.flatten(0, 1), self.embedding[0], self.bias[0])
        loss = F.cross_entropy(logits.float(), batch.targets[0].t().flatten())
        return loss[None], {"hidden": h.transpose(0, 1)[None], "cell": c.transpose(0, 1)[None]}


AS_PUBLISHED = TrainingSpec(batch=BATCH, optimizer=Sgd(learning_rate=1.0), clip=0.25)


def step_of(
    model: Trainable, setting: Setting, tokens: Tensor, training: TrainingSpec = AS_PUBLISHED, segment: int = SEGMENT
) -> Callable[[], Tensor]:
    """A function that takes one training step and returns its losses."""
    replicas, rate = model.replicas, training.optimizer.learning_rate
    optimizer = training.optimizer.build(dict(model.named_parameters()), [rate] * replicas, [0.0] * replicas)
    sampler = Contiguous().build(tokens, segment, training.batch, list(range(replicas)))
    alive = torch.ones(replicas, dtype=torch.bool, device=setting.device)
    update, taken = Update(model, optimizer, sampler, training, setting, alive, carried=CarriedState()), 0

    def step() -> Tensor:
        nonlocal taken
        losses, _ = update(taken, 1.0)
        taken += 1
        return losses

    return step


def on_cpu(turns: int) -> None:
    setting = choose(TrainingSpec(device="cpu"), WIDTH)
    tokens = torch.randint(VOCABULARY, (200_000,), generator=torch.Generator().manual_seed(0))
    ways = {"headway": step_of(ours(LstmSpec(), 1, "cpu"), setting, tokens)}
    ways["nn.LSTM"] = step_of(Plain("cpu"), setting, tokens)
    times = take_turns(ways, turns, calls=1)
    middle, low, high = ratio(times["headway"], times["nn.LSTM"])
    line = {
        "benchmark": f"training tokens/s on CPU, LSTM {LAYERS}×{WIDTH}, bptt {SEGMENT}, batch {BATCH}, V {VOCABULARY}",
        **{name: round(SEGMENT * BATCH / one.median) for name, one in times.items()},
        "ratio": round(middle, 3),
        "middle half of turns": [round(low, 3), round(high, 3)],
        "ratio of processor seconds": round(sum(times["nn.LSTM"].cpu) / sum(times["headway"].cpu), 3),
        "turns": turns,
        "losses": {name: round(step()[0].item(), 3) for name, step in ways.items()},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
    }
    print(json.dumps(line), flush=True)


def on_cuda(file: Path, seconds: float) -> None:
    tokens = torch.randint(VOCABULARY, (500_000,), generator=torch.Generator().manual_seed(0)).cuda()
    cases = [("lstm", R, mode) for R in (1, 8) for mode in MODES]
    cases += [(name, R, "recorded, compiled") for name in ("gru", "rnn", "mingru") for R in (1, 8)]
    cases.append(("nn.LSTM", 1, "eager"))
    for name, replicas, mode in cases:
        torch._dynamo.reset()
        setting = dataclasses.replace(choose(TrainingSpec(device="cuda"), WIDTH), **MODES[mode])
        line: dict[str, Any] = {"model": name, "R": replicas, "mode": mode, "device": torch.cuda.get_device_name()}
        try:
            model = Plain("cuda") if name == "nn.LSTM" else ours(MIXERS[name], replicas, "cuda")
            line |= _measured(step_of(model, setting, tokens), replicas, seconds)
        except Exception as error:  # continue with the other lines
            line["error"] = f"{type(error).__name__}: {error}"[:500]
        print(json.dumps(line), flush=True)
        with file.open("a") as lines:
            lines.write(json.dumps(line) + "\n")


def _measured(step: Callable[[], Tensor], replicas: int, seconds: float) -> dict[str, Any]:
    began = time.perf_counter()
    first = step().tolist()
    for _ in range(STEPS_BEFORE_RECORDING + 5):
        step()
    torch.cuda.synchronize()
    ready, steps = time.perf_counter(), 0
    losses = torch.tensor(first)
    while time.perf_counter() - ready < seconds:
        for _ in range(50):
            losses = step()
        steps += 50
        torch.cuda.synchronize()
    took = time.perf_counter() - ready
    return {
        "tokens_per_second": round(steps * replicas * SEGMENT * BATCH / took),
        "milliseconds_per_step": round(1e3 * took / steps, 3),
        "seconds_before": round(ready - began, 1),
        "first_loss": round(first[0], 4),
        "loss": round(losses[0].item(), 4),
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15, help="on a CPU")
    parser.add_argument("--json", type=Path, help="on CUDA: the file to add lines to")
    parser.add_argument("--seconds", type=float, default=2.0, help="on CUDA: seconds per measurement")
    asked = parser.parse_args()
    on_cpu(asked.turns) if asked.json is None else on_cuda(asked.json, asked.seconds)
