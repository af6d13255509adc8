"""The total time of complete commands, with a cold and a warm cache, compared with a typical training loop.

    HEADWAY_DATA=… python -m benchmarks.end_to_end [train A4 B5] [--out FILE.json] [--cold] [--no-steps] [--no-loop]

Each command is run twice in separate processes: cold, with an empty HEADWAY_CACHE (nothing tokenised, no kernel built),
and warm, with the cache filled by the first. The output has the seconds of the whole command, those of its training
steps from the run folders, and whether it was compiled; --out also has every printed line with its time. Then follow
step speeds (`benchmarks.kernels_gpu`), and a GPT of the first command's shape in plain torch, compiled and trained as
in nanoGPT's train.py: once, times 32. --try uses tiny sizes, to test everything on a CPU. One JSON line each, all of
them also in --out.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

COMMANDS = {
    "train": ["train", "shakespeare-char-cpu", "--vary", "seed=0..31"],
    "A4": ["case", "A4"],
    "B5": ["case", "B5"],
}
TINY = {"train": ["train", "demo", "--vary", "seed=0..1", "training.duration=12 steps", "model.width=16"]}
STEPS = [
    "speeches:32",
    "shakespeare:32",
    "nano:8",
    "wide:8",
    "speeches:1",
    "shakespeare:1",
    "nano:1",
    "wide:1",
    "gpt2:1",
]


def command(words: list[str], cache: Path, most: float) -> dict[str, Any]:
    """Run one command in a fresh folder with this cache."""
    with tempfile.TemporaryDirectory() as home:
        began, lines = time.perf_counter(), []
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "headway.cli", *words],
            cwd=home,
            env={**os.environ, "HEADWAY_CACHE": str(cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        end = threading.Timer(most, process.kill)
        end.start()
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(f"{time.perf_counter() - began:.1f} {line.rstrip()}")
        code = process.wait()
        end.cancel()
        found: dict[str, Any] = {"seconds": round(time.perf_counter() - began, 1), "lines": lines}
        if code:
            killed = code == -signal.SIGKILL
            return found | {"error": f"not done after {most:.0f} s" if killed else " ".join(lines)[-300:]}
        facts = [json.loads(path.read_text()) for path in sorted(Path(home).rglob("run.json"))]
        # All runs of a population record the same seconds.
        populations = {json.dumps([f.get("population"), f.get("seconds")]): f.get("seconds", 0.0) for f in facts}
        found |= {"runs": len(facts), "training": round(sum(populations.values()), 1)}
        compiled = [fact["compiled_from"] for fact in facts if "compiled_from" in fact]
        return found | {"compiled_from": compiled[0] if compiled else None}


def steps(shapes: list[str], modes: list[str]) -> list[dict[str, Any]]:
    """Tokens per second of each shape in each mode."""
    with tempfile.TemporaryDirectory() as home:
        out = Path(home) / "steps.json"
        words = [*shapes, "--modes", *modes, "--seconds", "1", "--out", str(out)]
        subprocess.run([sys.executable, "-m", "benchmarks.kernels_gpu", *words], check=True)
        return json.loads(out.read_text())


LOOP = """
import sys, time
import torch, torch.nn as nn, torch.nn.functional as F
device, total, width, layers, heads, context, batch = sys.argv[1], int(sys.argv[2]), 128, 4, 4, 64, 12
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
    def forward(self, x):
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in self.qkv(self.a(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.b(x))))
class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(65, width), nn.Embedding(context, width)
        self.layers, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width, bias=False)
    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
data = torch.randint(65, (1_000_000,))
def read():
    at = torch.randint(len(data) - context - 1, (batch,))
    rows = torch.stack([data[i : i + context + 1] for i in at]).to(device)
    return rows[:, :-1], rows[:, 1:]
model = Gpt().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
step = torch.compile(model) if device == "cuda" else model
first = None
for n in range(total):
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        if n % 250 == 0:  # as nanoGPT's preset for a CPU: 20 batches of each split
            model.eval()
            with torch.no_grad():
                losses = [step(*read()).item() for _ in range(40)]
            model.train()
        loss = step(*read())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if n == 10:
        loss.item()
        first = time.perf_counter(), n
loss.item()
each = (time.perf_counter() - first[0]) / (total - 1 - first[1])
print(f"{batch * context / each:.0f}")
"""


def loop(device: str, total: int) -> dict[str, Any]:
    """The same training in a typical loop, in a separate process."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", LOOP, device, str(total)], capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        return {"error": done.stderr.strip()[-300:]}
    return {"seconds": round(seconds, 1), "times 32": round(32 * seconds), "tokens_per_second": int(done.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"of {', '.join(COMMANDS)}; all without")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-steps", action="store_true")
    parser.add_argument("--no-loop", action="store_true")
    parser.add_argument("--cold", action="store_true", help="only with an empty cache")
    parser.add_argument("--most", type=float, default=300, help="time limit of one command in seconds")
    parser.add_argument("--try", action="store_true", dest="tiny")
    asked = parser.parse_args()
    if unknown := set(asked.commands) - set(COMMANDS):
        parser.error(f"there is no command {', '.join(sorted(unknown))}; there are {', '.join(COMMANDS)}")
    told: dict[str, Any] = {"commands": {}}

    def tell(**line: Any) -> None:
        print(json.dumps(line), flush=True)
        if asked.out:
            asked.out.write_text(json.dumps(told, indent=1) + "\n")

    for name in TINY if asked.tiny else asked.commands or COMMANDS:
        words = (TINY if asked.tiny else COMMANDS)[name]
        cache = Path(tempfile.mkdtemp())
        try:
            for temperature in ("cold",) if asked.cold else ("cold", "warm"):
                found = command(words, cache, asked.most)
                told["commands"].setdefault(f"headway {' '.join(words)}", {})[temperature] = found
                tell(command=name, cache=temperature, **{key: value for key, value in found.items() if key != "lines"})
        finally:
            shutil.rmtree(cache, ignore_errors=True)
    if not asked.no_steps and not asked.tiny:
        told["steps"] = steps(STEPS, ["kernels"])
        tell(steps=len(told["steps"]))
    if not asked.no_loop:
        told["loop"] = loop("cpu", 20) if asked.tiny else loop("cuda", 2000)
        tell(loop=told["loop"])


if __name__ == "__main__":
    main()
