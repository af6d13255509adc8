"""Random models of CLIP's and SigLIP's kind: embeddings and scores equal those of `transformers`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from headway.core.errors import UserError
from headway.scoring.pictures.borrowed_matcher import open_borrowed
from headway.scoring.pictures.matching import Shown, match

transformers = pytest.importorskip("transformers")

WORDS = ["a", "red", "blue", "cat", "dog", "photo", "of"]
PICTURES = [
    Shown(str(k), Image.fromarray(np.random.default_rng(k).integers(0, 255, (20 + k, 30, 3), dtype=np.uint8)))
    for k in range(3)
]


def tokenizer(kind: str, limit: int):
    """A word tokenizer; texts end with END, as in CLIP and SigLIP, and for CLIP also have a start token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    signs = ["<pad>", "<s>", "</s>", "<unk>"]
    library = Tokenizer(models.WordLevel({word: k for k, word in enumerate(signs + WORDS)}, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    single = "<s> $A </s>" if kind == "clip" else "$A </s>"
    library.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=library,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=limit,
    )


@pytest.fixture(scope="module", params=["clip", "siglip"])
def folder(request, tmp_path_factory) -> Path:
    kind, limit = request.param, 8
    torch.manual_seed(0)
    common = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**common, "vocab_size": 11, "max_position_embeddings": limit, "eos_token_id": 2, "bos_token_id": 1}
    text["pad_token_id"] = 0
    vision = {**common, "image_size": 16, "patch_size": 8}
    home = tmp_path_factory.mktemp(kind)
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
        model, processor = transformers.CLIPModel(config), transformers.CLIPImageProcessor
    else:
        config = transformers.SiglipConfig(text_config=text, vision_config=vision)
        model, processor = transformers.SiglipModel(config), transformers.SiglipImageProcessor
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    model.save_pretrained(home, safe_serialization=True)
    tokenizer(kind, limit).save_pretrained(home)
    size = {"shortest_edge": 16} if kind == "clip" else {"height": 16, "width": 16}
    processor(size=size, crop_size={"height": 16, "width": 16}).save_pretrained(home)
    return home


def test_it_equals_the_library(folder):
    captions = ["a photo of a cat", "blue dog"]
    found = match(open_borrowed(folder), PICTURES, captions)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    cut, process = (
        one.from_pretrained(folder) for one in (transformers.AutoTokenizer, transformers.AutoImageProcessor)
    )
    is_sigmoid = "siglip" in folder.name
    told = cut(captions, padding="max_length" if is_sigmoid else "longest", return_tensors="pt")
    given = {name: told[name] for name in ("input_ids", *(() if is_sigmoid else ("attention_mask",)))}
    given["pixel_values"] = process([one.image for one in PICTURES], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        said = model(**given)
    assert torch.allclose(found.logits.float(), said.logits_per_image, atol=1e-4)
    assert torch.allclose(found.of_captions.float(), said.logits_per_image.softmax(1), atol=1e-5)
    assert (found.alone is not None) == ("siglip" in folder.name)
    assert found.told.tokens == ([7, 4] if "siglip" not in folder.name else [6, 3])


def test_a_truncated_caption_keeps_its_end_token_and_is_counted(folder):
    matcher = open_borrowed(folder)
    long = "a red cat a blue dog a red dog a cat"
    found = match(matcher, PICTURES[:1], [long])
    assert found.told.tokens[0] > matcher.limit == 8 and any("END is kept" in note for note in found.notes)
    kept = 6 if "siglip" not in folder.name else 7
    short = match(matcher, PICTURES[:1], [" ".join(long.split()[:kept])])
    assert short.told.tokens[0] == 8 and torch.allclose(found.cosines, short.cosines, atol=1e-6)


def test_unknown_words_are_counted(folder):
    found = match(open_borrowed(folder), PICTURES[:1], ["a green zebra"])
    assert found.told.unknown == [2] and any("unknown" in note for note in found.notes)


def test_unsupported_models_are_one_message(folder, tmp_path):
    def refused(said: str, **files: str):
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        place.mkdir()
        for name, content in files.items():
            (place / name.replace("__", ".")).write_text(content)
        with pytest.raises(UserError, match=said):
            open_borrowed(place)

    refused("no config.json")
    refused(r"config\.json cannot be read: it is not JSON", config__json="{")
    refused("is a bert", config__json=json.dumps({"model_type": "bert"}))
    refused("no weights", config__json=json.dumps({"model_type": "clip"}))
    refused("pickle", config__json=json.dumps({"model_type": "clip"}), pytorch_model__bin="x")
    refused("cannot be read", config__json=(folder / "config.json").read_text(), model__safetensors="broken")
