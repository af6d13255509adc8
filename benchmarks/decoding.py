"""Decoding speed on this CPU: Headway compared with Marian of `transformers`, with the same weights and sources.

    python -m benchmarks.decoding [turns]

2 + 2 layers, 8 heads, width 512, a vocabulary of 10,000, batches of 64 sources of 20 to 40 tokens, 40 tokens generated
for each (END is made impossible), greedy and with beam width 5; one thread, in turns in one process, comparing CPU
time. Both must produce the same tokens for all hypotheses of the beam, or otherwise hypotheses of equal log-probability
up to rounding. (The ranking of hypotheses is not compared: Headway counts the END that follows, Marian does not.)
"""

import json
import platform
import statistics
import sys

import numpy as np
import torch
from transformers import MarianConfig, MarianMTModel

from benchmarks.interleave import take_turns
from headway.formats import marian, marian_config
from headway.models.encoder_decoder import EncoderDecoder
from headway.recipe.recipe import from_tree
from headway.scoring.decoding import Beam, DecodingSpec, Greedy
from headway.scoring.translation import decoded
from headway.training.population import load_weights

LAYERS, HEADS, WIDTH, VOCABULARY, SOURCES, TOKENS = 2, 8, 512, 10_000, 64, 40
PAD, END = VOCABULARY - 1, 0
FORTY = {"per_source": 1e-9, "extra": TOKENS - 1}
WAYS: dict[str, tuple[DecodingSpec, int]] = {
    "greedy": (Greedy(**FORTY), 1),
    "beam 5": (Beam(size=5, nbest=5, **FORTY), 5),
}


def theirs(seed: int = 0) -> MarianMTModel:
    """A Marian that never generates END, with distributions sharp enough that rounding does not decide."""
    torch.manual_seed(seed)
    layers = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in SHAPE.items()}
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        **layers,
        max_position_embeddings=128,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
        eos_token_id=END,
        forced_eos_token_id=None,
        share_encoder_decoder_embeddings=False,  # otherwise a random model repeats the token it has just read
        tie_word_embeddings=False,
        init_std=0.06,
    )
    model = MarianMTModel(config).eval()
    model.final_logits_bias[0, END] = -1e4
    return model


SHAPE = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 4 * WIDTH}


def ours(model: MarianMTModel) -> tuple[EncoderDecoder, marian.Numbering]:
    """Headway's model with the same weights."""
    config = model.config.to_dict()
    numbers = marian_config.numbering(config)
    tree, _ = marian_config.model_tree(config, numbers, biased=True)
    spec = marian_config.written(from_tree({"model": tree, "data": {"kind": "pairs"}}, "benchmark").model)
    made = spec.build(VOCABULARY, VOCABULARY)
    load_weights(made, 0, marian.from_marian(dict(model.state_dict()), spec, numbers))
    return made.eval(), numbers


def sources(seed: int = 0) -> list[np.ndarray]:
    """Random sources as Marian's token ids, without END."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, PAD, rng.integers(20, 41)) for _ in range(SOURCES)]


def main(turns: int) -> None:
    torch.set_num_threads(1)
    their_model = theirs()
    our_model, numbers = ours(their_model)
    given = sources()
    moved = [np.array([numbers.ours(int(k)) for k in row], dtype=np.int32) for row in given]
    longest = max(len(row) for row in given) + 1
    ids = torch.full((SOURCES, longest), PAD)
    for k, row in enumerate(given):
        ids[k, : len(row) + 1] = torch.tensor([*row, END])
    mask = (torch.arange(longest) <= torch.tensor([[len(row)] for row in given])).long()
    for name, (how, beams) in WAYS.items():
        settings = {"num_beams": beams, "max_new_tokens": TOKENS, "do_sample": False, "bad_words_ids": [[PAD]]}
        if beams > 1:
            settings |= {"early_stopping": "never", "length_penalty": 1.0, "num_return_sequences": beams}
        written: dict[str, list[list[list[int]]]] = {}  # per source and hypothesis

        def headway(how=how, written=written) -> None:
            found = decoded(our_model, moved, VOCABULARY - 1, how, at_once=SOURCES)[0]
            written["headway"] = [sorted([numbers.theirs(k) for k in one.tokens] for one in best) for best in found]

        def transformers(settings=settings, written=written, beams=beams) -> None:
            with torch.no_grad():
                found = their_model.generate(input_ids=ids, attention_mask=mask, **settings)
            rows = [row[1 : TOKENS + 1] for row in found.tolist()]
            written["transformers"] = [sorted(rows[k : k + beams]) for k in range(0, len(rows), beams)]

        times = take_turns({"headway": headway, "transformers": transformers}, turns, calls=1)
        same = [a == b for a, b in zip(written["headway"], written["transformers"], strict=True)]
        apart = check_equally_likely(their_model, ids, mask, written, same)
        cpu = {way: statistics.median(SOURCES / t for t in times[way].cpu) for way in times}
        ratios = sorted(t / o for o, t in zip(times["headway"].cpu, times["transformers"].cpu, strict=True))
        quarter = len(ratios) // 4
        print(
            json.dumps(
                {
                    "benchmark": f"decoding on CPU, {name}: sentences per CPU second",
                    "headway": round(cpu["headway"], 2),
                    "transformers": round(cpu["transformers"], 2),
                    "ratio": round(statistics.median(ratios), 3),
                    "middle half of turns": [round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)],
                    "the same tokens": f"{sum(same)} of {SOURCES} sentences",
                    "others differ in nats by at most": apart,
                    "tokens in all": len({k for best in written["headway"] for row in best for k in row}),
                    "turns": turns,
                    "threads": torch.get_num_threads(),
                    "torch": torch.__version__,
                    "processor": platform.processor() or platform.machine(),
                }
            ),
            flush=True,
        )


@torch.no_grad()
def check_equally_likely(
    model: MarianMTModel,
    ids: torch.Tensor,
    mask: torch.Tensor,
    written: dict[str, list[list[list[int]]]],
    same: list[bool],
) -> float:
    """Check that differing outputs are equally likely: sums in another order round differently and can break ties."""
    apart = 0.0
    for k in (k for k, equal in enumerate(same) if not equal):
        nats = []
        for rows in written.values():
            targets = torch.tensor([[PAD, *row] for row in rows[k]])
            source, told = (one[k : k + 1].expand(len(targets), -1) for one in (ids, mask))
            logits = model(input_ids=source, attention_mask=told, decoder_input_ids=targets).logits[:, :-1]
            chances = logits.double().log_softmax(-1).gather(-1, targets[:, 1:, None])
            nats.append(sorted((-chances.sum((1, 2))).tolist()))
        apart = max(apart, *(abs(a - b) for a, b in zip(*nats, strict=True)))
    assert apart < 0.01, f"the two outputs differ by {apart:.3f} nats"
    return apart


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
