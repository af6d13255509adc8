"""Folders as transformers writes them, and runs to compare them with."""

import os
from pathlib import Path

import pytest
import tokenizers
import torch
from tiny import TEXT, cache_in, tiny_recipe
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing here may ask the network

END = "<|endoftext|>"


def byte_level(size: int = 300) -> tokenizers.Tokenizer:
    """Made as GPT-2's was: byte pairs within the words of its own pattern, and a token for the end of a text."""
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
    """Writes a random GPT-2 with `save_pretrained`; gives the folder and the model. Settings are GPT2Config's."""
    from transformers import GPT2Config, GPT2LMHeadModel

    def make(name: str = "theirs", saved: dict | None = None, **settings):
        given = {"n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3, "bos_token_id": 0, "eos_token_id": 0}
        config = GPT2Config(vocab_size=gpt2_library.get_vocab_size(), **{**given, **settings})
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).eval()
        for parameter in model.parameters():  # biases and norms start at 0 and 1, where mistakes would not show
            torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(tmp_path / name, **(saved or {}))
        gpt2_library.save(str(tmp_path / name / "tokenizer.json"))
        return tmp_path / name, model

    return make


@pytest.fixture
def train_tiny(workshop):
    """Trains the small recipe with changes, in a folder of its own."""
    from headway.experiment.train import train

    def run(folder: Path, name: str, *changes: str):
        with cache_in(workshop.cache):
            (made,) = train([tiny_recipe(workshop.text, "training.duration=12 steps", *changes)], [name], folder)
        return made

    return run
