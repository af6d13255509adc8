"""Small models to look at: a decoder, an encoder with padding and one without attention; and tokenizers."""

import pytest
import torch
from torch import nn

from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import Char, Word
from headway.models.language_model import LanguageModel, LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.backends import Needs
from headway.nn.context import Context
from headway.nn.heads import Concat
from headway.nn.masks import Everything, Padding
from headway.nn.positions import Learned
from headway.nn.replicated import Embedding, Linear
from headway.nn.trainable import Trainable

WIDTH, HEADS, CLASSES = 8, 2, 3
TEXT = "the quick brown fox jumps over the lazy dog\n" * 2


def with_random_weights(model: nn.Module) -> nn.Module:
    """Random weights large enough to matter: with fresh weights attention is uniform, which would hide mistakes."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.6, generator=generator)
    return model.eval()


class Encoder(Trainable):
    """Tokens to classes; `masks_padding` is off to plant a mistake."""

    def __init__(self, vocabulary: int, masks_padding: bool = True, context: int = 12):
        super().__init__()
        self.replicas, self.masks_padding = 1, masks_padding
        self.embedding = Embedding(1, vocabulary, WIDTH)
        self.positions = Learned().build(1, WIDTH, HEADS, context)
        spec = AttentionSpec(heads=HEADS)
        self.layers = nn.ModuleList(nn.ModuleDict({"mixer": spec.build(1, WIDTH, 1.0, Needs())}) for _ in range(2))
        self.output = Linear(1, WIDTH, CLASSES)

    def forward(self, ids, padding_mask):
        slots = torch.arange(ids.shape[2])
        mask = Padding(padding_mask.flatten(0, 1)) if self.masks_padding else Everything()
        context = Context((1, ids.shape[1]), self.positions, mask, slots, slots, padding_mask)
        x = self.positions.embed(self.embedding(ids), slots)
        for layer in self.layers:
            x = x + layer["mixer"](x, context)[0]
        pooled = (x * padding_mask[..., None]).sum(2, keepdim=True) / padding_mask.sum(2)[..., None, None]
        return self.output(pooled)[:, :, 0]


class WithoutAttention(Trainable):
    """Predicts each next token from the previous one alone."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.replicas = 1
        self.embedding = Embedding(1, vocabulary, WIDTH)
        self.output = Linear(1, WIDTH, vocabulary)

    def forward(self, ids):
        return self.output(self.embedding(ids))


@pytest.fixture(scope="session")
def words() -> Tokenizer:
    return Word().learn(TEXT)


@pytest.fixture(scope="session")
def letters() -> Tokenizer:
    return Char().learn(TEXT + "<>/")


@pytest.fixture
def decoder():
    def make(vocabulary: int, positions=None, fusion=None, backend="sdpa", layers=2, heads=HEADS, seeds=(0,)):
        mixer = AttentionSpec(heads=heads, fusion=fusion or Concat(), backend=backend)
        width = 4 * heads
        spec = LanguageModelSpec(layers=layers, width=width, context=16, mixer=mixer, positions=positions or Learned())
        made: LanguageModel = spec.build(vocabulary, seeds)
        return with_random_weights(made)

    return make


@pytest.fixture
def encoder():
    return lambda vocabulary, **settings: with_random_weights(Encoder(vocabulary, **settings))


@pytest.fixture
def without_attention():
    return lambda vocabulary: with_random_weights(WithoutAttention(vocabulary))
