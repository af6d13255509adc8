"""Imported Llama models: the same logits with and without shared keys, from folders and from GGUF, at once and token by
token."""

import json

import pytest
import torch

from headway.core.errors import UserError
from headway.exchange.importer import import_folder
from headway.experiment.load import load_model

KINDS = {
    "llama": ("LlamaConfig", {}),
    "untied": ("LlamaConfig", {"tie_word_embeddings": False, "num_key_value_heads": 4}),
    "mistral": ("MistralConfig", {"sliding_window": 5}),
    "qwen2": ("Qwen2Config", {}),
}


@pytest.fixture
def llama_folder(tmp_path, gpt2_library):
    import transformers

    def make(kind="llama", **settings):
        config_class, given = KINDS[kind]
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        more = {"intermediate_size": 24, "max_position_embeddings": 32, "tie_word_embeddings": True}
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        vocabulary = {"vocab_size": gpt2_library.get_vocab_size()}
        config = getattr(transformers, config_class)(**{**shape, **more, **ends, **vocabulary, **given, **settings})
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(tmp_path / kind)
        gpt2_library.save(str(tmp_path / kind / "tokenizer.json"))
        return tmp_path / kind, model

    return make


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_logits_equal_those_of_transformers_at_once_and_token_by_token(llama_folder, tmp_path, kind):
    folder, theirs = llama_folder(kind)
    made = import_folder(folder, None, tmp_path / "runs")
    model, _ = load_model(made.run)
    ids = torch.randint(0, 300, (1, 2, 12), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids[0]).logits
    assert torch.allclose(model(ids)[0][0], expected, atol=1e-4)
    state, pieces = None, []
    for part in ids.split([4, 1, 7], 2):
        logits, state = model(part, state)
        pieces.append(logits)
    assert torch.allclose(torch.cat(pieces, 2)[0], expected, atol=1e-4)


def test_it_samples_as_transformers_scores_and_shows_maps(llama_folder, tmp_path):
    from headway.experiment.evaluate import sample_texts, score_sentence
    from headway.experiment.inspect import look_at
    from headway.tasks.abilities import Draw

    folder, theirs = llama_folder()
    run = import_folder(folder, None, tmp_path / "runs").run
    ids = torch.tensor([run.tokenizer.encode("The quick").ids.tolist()])
    found, _ = sample_texts(run, "The quick", Draw(tokens=6, temperature=0.0), "auto", 2)
    expected = theirs.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)[0]
    assert found == run.tokenizer.decode(expected.tolist())
    text = "The quick brown fox"
    nats = score_sentence(run, text)[0].surprise.nats
    ids = torch.tensor([run.tokenizer.encode(text).ids.tolist()])
    with torch.no_grad():
        assert nats >= theirs(ids, labels=ids).loss.item() * (ids.shape[1] - 1) - 1e-3
    shown = look_at(run, text)
    assert shown.largest_difference < 1e-5 and set(shown.layers) == {0, 1}
    assert len(shown.layers[0]) == 4


def test_it_can_be_trained_further(llama_folder, tmp_path, workshop):
    from tiny import cache_in

    from headway.experiment.train import train

    folder, _ = llama_folder()
    steps = ["training.duration=2 steps", "training.batch=2", "training.evaluate_tokens=64", "data.segment=8"]
    averaged = "training.averaging={kind: moving}"
    run = import_folder(
        folder, None, tmp_path / "runs", ["data.source=files", f"data.path={workshop.text}", averaged, *steps]
    ).run
    with cache_in(workshop.cache):
        (run,) = train([run.recipe], [run.name], tmp_path / "runs", resume=True)
    assert run.checkpoint().step == 2


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "rope_scaling"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"head_dim": 8}, "head_dim"),
    ],
)
@torch.no_grad()
def test_variants_that_headway_lacks_are_run_by_transformers(llama_folder, tmp_path, change, because):
    folder, theirs = llama_folder(**change)
    made = import_folder(folder, None, tmp_path / "runs")
    assert because in made.notes[0] and "in transformers" in made.notes[1]
    ids = torch.randint(0, 300, (1, 2, 12), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(load_model(made.run)[0](ids)[0][0], theirs(ids[0]).logits, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head_dim": 8}, "do not fit config.json"),
        ({"num_key_value_heads": 3}, "do not fit config.json"),
        ({"intermediate_size": 25}, "config.json says"),
        ({"vocab_size": 301}, "config.json says"),
        ({"model_type": "gpt-imaginary"}, "describes a 'gpt-imaginary' model"),
    ],
)
def test_an_inconsistent_config_is_one_message(llama_folder, tmp_path, change, said):
    folder, _ = llama_folder()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=said):
        import_folder(folder, None, tmp_path / "runs")
    assert not (tmp_path / "runs" / "llama").exists()


def test_a_gguf_file_gives_the_same_model(llama_folder, gpt2_library, tmp_path):
    gguf = pytest.importorskip("gguf")
    from headway.formats.gguf import NAMES
    from headway.formats.llama import paired

    _, theirs = llama_folder()
    path, config = tmp_path / "one.gguf", theirs.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(24)
    writer.add_context_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tree = json.loads(gpt2_library.to_str())["model"]
    names = sorted(tree["vocab"], key=tree["vocab"].__getitem__)
    writer.add_token_list(names)
    writer.add_token_types([3] + [1] * (len(names) - 1))
    writer.add_token_merges([" ".join(pair) for pair in tree["merges"]])
    short = {theirs_: ours for ours, theirs_ in NAMES.items()}
    for name, tensor in theirs.state_dict().items():
        if name == "lm_head.weight":
            continue
        if name.startswith("model.layers."):
            _, _, n, *rest, kind = name.split(".")
            part = ".".join(rest)
            heads = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}.get(part)
            tensor = tensor if heads is None else paired(tensor, heads)
            name = f"blk.{n}.{short[part]}.{kind}"
        else:
            name = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made = import_folder(path, None, tmp_path / "runs")
    model, _ = load_model(made.run)
    ids = torch.tensor([[made.run.tokenizer.encode("The quick brown fox").ids.tolist()]])
    with torch.no_grad():
        assert torch.allclose(model(ids)[0][0], theirs(ids[0]).logits, atol=1e-4)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"one\.gguf"):
        import_folder(path, "other", tmp_path / "runs")


def test_a_vocabulary_that_lacks_bytes_refuses_texts_that_need_them(gpt2_library):
    import tokenizers

    from headway.data.library import adopted

    tree = json.loads(gpt2_library.to_str())
    lost = next(sign for sign in tree["model"]["vocab"] if sign == "Ā")  # the byte 0
    number = tree["model"]["vocab"].pop(lost)
    tree["model"]["vocab"] = {name: k - (k > number) for name, k in tree["model"]["vocab"].items()}
    library = tokenizers.Tokenizer.from_str(json.dumps(tree))
    made, notes = adopted(library, "theirs")
    assert "lacks 1 of the 256" in " ".join(notes)
    assert made.decode(made.encode("naïve").ids) == "naïve"
    with pytest.raises(UserError, match=r"lacks bytes of '\\x00', in line 2"):
        made.encode("a\nb\x00")
