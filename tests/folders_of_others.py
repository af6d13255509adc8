"""Model folders as transformers writes them, and runs to compare them with."""

import os
from pathlib import Path

import pytest
import tokenizers
import torch
from tiny import TEXT, cache_in, tiny_recipe
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from headway.recipe.recipe import from_tree

os.environ["HF_HUB_OFFLINE"] = "1"  # set before transformers is imported, so that nothing here uses the network

END = "<|endoftext|>"


def byte_level(size: int = 300) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer made as GPT-2's was: its pre-tokenizer pattern, and a token for the end of a text."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=[END], show_progress=False)
    library.train_from_iterator([TEXT], trainer)
    return library


@pytest.fixture(scope="session")
def gpt2_library() -> tokenizers.Tokenizer:
    return byte_level()


@pytest.fixture
def gpt2_folder(tmp_path, gpt2_library):
    """Saves a random GPT-2 with `save_pretrained`, and returns the folder and the model. The settings are those of
    GPT2Config."""
    from transformers import GPT2Config, GPT2LMHeadModel

    def make(name: str = "theirs", saved: dict | None = None, **settings):
        given = {"n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3, "bos_token_id": 0, "eos_token_id": 0}
        config = GPT2Config(vocab_size=gpt2_library.get_vocab_size(), **{**given, **settings})
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).eval()
        for parameter in model.parameters():  # biases start at 0 and norm weights at 1, which would hide mistakes
            torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(tmp_path / name, **(saved or {}))
        gpt2_library.save(str(tmp_path / name / "tokenizer.json"))
        return tmp_path / name, model

    return make


@pytest.fixture
def train_tiny(workshop):
    """Trains the small recipe with changes, in its own folder."""
    from headway.experiment.train import train

    def run(folder: Path, name: str, *changes: str):
        with cache_in(workshop.cache):
            (made,) = train([tiny_recipe(workshop.text, "training.duration=12 steps", *changes)], [name], folder)
        return made

    return run


REVIEWS = [
    *[(f"a good and warm film no {k}", "good") for k in range(24)],
    *[(f"a bad and cold film no {k}", "bad") for k in range(24)],
]
PIECES = [
    *(
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "good",
        "bad",
        "and",
        "warm",
        "cold",
        "film",
        "no",
        "un",
        "##able",
    ),
    *map(str, range(24)),
    *(".", ",", "it", "##s", "'", "s"),
]

ENCODERS = {
    "bert": ("BertConfig", {}),
    "roberta": ("RobertaConfig", {"max_position_embeddings": 34, "type_vocab_size": 1, "pad_token_id": 0}),
    "electra": ("ElectraConfig", {"embedding_size": 16}),
    "distilbert": ("DistilBertConfig", {}),
}
FOREIGN = {
    "mpnet": ("MPNetConfig", {"max_position_embeddings": 34}),
    "deberta": (
        "DebertaV2Config",
        {
            "type_vocab_size": 2,
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["p2c", "c2p"],
        },
    ),
    "albert": ("AlbertConfig", {"embedding_size": 8}),
    "small-electra": ("ElectraConfig", {"embedding_size": 8}),
}
"""Encoders that Headway's own encoder cannot represent."""


@pytest.fixture
def encoder_folder(tmp_path):
    """Saves a random encoder with transformers, and returns the folder and the model. `head` is the AutoModel…
    class."""
    import transformers

    def make(family: str = "bert", head: str = "AutoModel", name: str | None = None, **settings):
        config_class, given = (ENCODERS | FOREIGN)[family]
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
        if family == "distilbert":
            shape = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
        places = {"vocab_size": len(PIECES), "max_position_embeddings": 32}
        config = getattr(transformers, config_class)(**{**shape, **places, **given, **settings})
        torch.manual_seed(0)
        model = getattr(transformers, head).from_config(config).eval()
        for parameter in model.parameters():  # biases start at 0 and norm weights at 1, which would hide mistakes
            torch.nn.init.normal_(parameter, std=0.3)
        folder = tmp_path / (name or family)
        model.save_pretrained(folder)
        word_pieces(folder)
        return folder, model

    return make


def word_pieces(folder: Path) -> None:
    """Writes BERT's tokenizer with a small vocabulary."""
    from transformers import BertTokenizer

    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", "utf-8")
    vocabulary = {name: k for k, name in enumerate(PIECES)}
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)


@pytest.fixture
def reviews(tmp_path):
    """A table of labelled texts."""
    table = tmp_path / "reviews.tsv"
    table.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in REVIEWS), "utf-8")
    return table


def recipe(origin, *changes, **model):
    """The recipe of a classifier initialised with these weights."""
    start = {"kind": "pretrained", "from": str(origin)}
    tree = {"model": {"kind": "classifier", "start": start, **model}, "data": {"kind": "labelled"}}
    return from_tree(tree, "recipe", overrides=changes)


def started(made, replicas=1):
    """The model with the weights loaded, and the messages about them."""
    model = made.model.build(len(PIECES), 2, list(range(replicas)))
    model.notes = made.model.start.fill(model)
    return model.eval()
