"""Training speed on this CPU: Headway's loop compared with an equal GPT-2 of `transformers` in a typical user's loop.

    python -m benchmarks.language_model_cpu [turns]

Same shape, same batches, float32, AdamW with clipping at 1; one thread, in turns in one process, comparing CPU time.
"""

import json
import platform
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.interleave import Turns, ratio, take_turns
from headway.data.running.batches import Crops
from headway.experiment.bench import Size
from headway.training.loop import Loop, ReplicaState
from headway.training.setting import choose
from headway.training.spec import TrainingSpec

SHAPES = {"shakespeare-char-cpu": Size(4, 4, 128, 64, 12, 65), "width-512": Size(4, 8, 512, 128, 8, 8192)}


def headway_step(shape: Size, tokens: torch.Tensor):
    training = TrainingSpec(batch=shape.batch, device="cpu", evaluate_on=[])
    model = shape.spec.build(shape.vocabulary)
    optimizer = training.optimizer.build(dict(model.named_parameters()), [1e-3], [0.1])
    sampler = Crops().build(tokens, shape.context, shape.batch, [0])
    loop = Loop(
        model,
        optimizer,
        sampler,
        training,
        choose(training, shape.width),
        tokens_per_step=shape.batch * shape.context,
        evaluate=list,
        recorder=None,  # pyright: ignore  (single steps write nothing)
        replica_states=[ReplicaState()],
    )
    return loop.take_step


def transformers_step(shape: Size, tokens: torch.Tensor):
    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    sampler = Crops().build(tokens, shape.context, shape.batch, [0])
    step = 0

    def take_step() -> None:
        nonlocal step
        batch = sampler.at(step)
        logits = model(batch.inputs[0]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets[0].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1

    return take_step


def main(turns: int) -> None:
    torch.set_num_threads(1)
    for name, shape in SHAPES.items():
        tokens = torch.randint(shape.vocabulary, (100_000,), generator=torch.Generator().manual_seed(0))
        ways = {"headway": headway_step(shape, tokens), "transformers": transformers_step(shape, tokens)}
        times = take_turns(ways, turns, calls=10 if shape.width < 256 else 2)
        times = {way: Turns(of.cpu, of.cpu) for way, of in times.items()}  # so that other processes do not matter
        middle, low, high = ratio(times["headway"], times["transformers"])
        per_step = shape.batch * shape.context
        print(
            json.dumps(
                {
                    "benchmark": f"training tokens per CPU second, {name}",
                    "shape": vars(shape),
                    "headway": round(per_step / times["headway"].median),
                    "transformers": round(per_step / times["transformers"].median),
                    "ratio": round(middle, 3),
                    "middle half of turns": [round(low, 3), round(high, 3)],
                    "turns": turns,
                    "threads": torch.get_num_threads(),
                    "torch": torch.__version__,
                    "processor": platform.processor() or platform.machine(),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
