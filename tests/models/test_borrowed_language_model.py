"""Language models that transformers runs, behind Headway's interface: logits, caches, sampling, padding, maps."""

import json

import pytest
import torch

from headway.core.errors import UserError
from headway.exchange.export import export_run
from headway.exchange.importer import import_folder
from headway.experiment.load import load_model
from headway.look.maps import maps_of
from headway.nn.taps import intervene
from headway.scoring.decoding import samples

FEW = {"num_key_value_heads": 2, "head_dim": 8}
KINDS = {
    "gpt_neox": ("GPTNeoXConfig", {}),
    "opt": ("OPTConfig", {"ffn_dim": 24, "word_embed_proj_dim": 8}),
    "phi": ("PhiConfig", {}),
    "gemma2": ("Gemma2Config", {**FEW, "sliding_window": 5, "attn_logit_softcapping": 1.0}),
    "qwen3": ("Qwen3Config", FEW),
    "gpt_oss": ("GptOssConfig", {**FEW, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4}),
    "bloom": ("BloomConfig", {"n_head": 4, "n_layer": 2}),
    "falcon": ("FalconConfig", {}),
    "mamba": ("MambaConfig", {}),
}
WITHOUT_ATTENTION = ("mamba",)


def all_kinds(*quick):
    return [kind if kind in quick else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@pytest.fixture
def causal_folder(tmp_path, gpt2_library):
    import transformers

    def make(kind, **more):
        name, given = KINDS[kind]
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
        places = {"vocab_size": gpt2_library.get_vocab_size(), "max_position_embeddings": 32}
        ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        config = getattr(transformers, name)(**{**shape, **places, **ends, **given, **more})
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(tmp_path / kind)
        gpt2_library.save(str(tmp_path / kind / "tokenizer.json"))
        return tmp_path / kind, model

    return make


@pytest.mark.parametrize("kind", all_kinds("gpt_neox", "opt", "gemma2", "gpt_oss", "bloom", "mamba"))
@torch.no_grad()
def test_logits_equal_those_of_transformers_at_once_padded_and_in_pieces(causal_folder, tmp_path, kind):
    folder, theirs = causal_folder(kind)
    run = import_folder(folder, None, tmp_path / "runs").run
    (folder / "model.safetensors").unlink()  # a run needs only its own folder
    model, _ = load_model(run)
    ids = torch.randint(1, 300, (1, 2, 12), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids[0]).logits
    assert torch.allclose(model(ids)[0][0], expected, atol=1e-5)
    told = torch.ones_like(ids, dtype=torch.bool)
    told[0, 0, :3], told[0, 1, 9:] = False, False
    padded = model(ids, padding_mask=told)[0][0]
    assert torch.allclose(padded[1, :9], expected[1, :9], atol=1e-5)
    assert torch.allclose(padded[0, 3:], theirs(ids[0, :1, 3:]).logits[0], atol=1e-5)
    if model.why_no_cache is None:
        state, pieces = None, []
        for part in ids.split([4, 1, 7], 2):
            logits, after = model(part, state)
            assert torch.equal(model(part, state)[0], logits), "continuing from a state must not change it"
            pieces.append(logits)
            state = after
        assert torch.allclose(torch.cat(pieces, 2)[0], expected, atol=1e-5)
    assert (model.why_no_cache is None) == (kind not in WITHOUT_ATTENTION)
    drawn = []
    for cached in (True, False):
        noise = [torch.Generator().manual_seed(k) for k in range(3)]
        drawn.append(list(samples(model, ids[0, 0, :4], 30, 1.0, noise=noise, cached=cached)))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("kind", all_kinds("gemma2", "bloom", "mamba"))
@torch.no_grad()
def test_their_maps_are_shown(causal_folder, tmp_path, kind):
    folder, theirs = causal_folder(kind)
    run = import_folder(folder, None, tmp_path / "runs").run
    model, _ = load_model(run)
    if kind in WITHOUT_ATTENTION:
        with pytest.raises(UserError, match="no attention layers"):
            maps_of(model, run.tokenizer, ["The quick brown"])
    else:
        (shown,) = maps_of(model, run.tokenizer, ["The quick brown fox jumps over"])
        assert shown.largest_difference < 1e-5 and set(shown.layers) == {0, 1}
        plain = theirs(torch.tensor([shown.sentence.ids]), output_attentions=True).attentions
        for n, weights in shown.layers.items():
            assert torch.allclose(weights, plain[n][0], atol=1e-5)
    ids = torch.tensor([[[3, 4, 5]]])
    with intervene(model, {"layers.1.stream": torch.zeros_like}):
        assert not torch.allclose(model(ids)[0], theirs(ids[0]).logits[None], atol=1e-3)


def test_it_is_scored_and_trained_further_like_any_run(causal_folder, tmp_path, workshop):
    from tiny import cache_in

    from headway.experiment.evaluate import score_sentence
    from headway.experiment.train import train

    folder, theirs = causal_folder("opt", dropout=0.1)
    changes = ["data.source=files", f"data.path={workshop.text}", "training.duration=2 steps", "training.batch=2"]
    changes += ["data.segment=8", "training.evaluate_tokens=64", "scoring.splits=[valid]"]
    runs = [import_folder(folder, name, tmp_path / "runs", changes).run for name in ("one", "other")]
    nats = score_sentence(runs[0], "The quick brown fox")[0].surprise.nats
    ids = torch.tensor([[runs[0].tokenizer.line_end, *runs[0].tokenizer.encode("The quick brown fox").ids.tolist()]])
    with torch.no_grad():
        assert nats == pytest.approx(theirs(ids, labels=ids).loss.item() * (ids.shape[1] - 1), rel=1e-5)
    with cache_in(workshop.cache):
        trained = [train([run.recipe], [run.name], tmp_path / "runs", resume=True)[0] for run in runs]
    weights = [run.checkpoint("last").weights for run in trained]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    before = dict(theirs.named_parameters())
    assert any(not torch.equal(tensor, before[name.removeprefix("body.")]) for name, tensor in weights[0].items())
    with pytest.raises(UserError, match="that runs in transformers"):
        export_run(trained[0], None, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt-imaginary"}, "'gpt-imaginary' model"),
        ({"model_type": "deberta-v2"}, "is not a causal language model"),
        ({"num_hidden_layers": 100_000}, "100,000 layers"),
        ({"hidden_size": 4096, "intermediate_size": 4096}, "describes"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised .gptq"),
        ({"intermediate_size": 25}, "do not fit config.json"),
        ({"num_hidden_layers": 3}, "weights are missing"),
        ({"num_hidden_layers": 1}, "do not belong to the model"),
        ({"num_attention_heads": 3}, "config.json"),
        ({"hidden_act": "no-such"}, "transformers cannot build"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_unreadable_models_are_one_message(causal_folder, tmp_path, change, said):
    folder, _ = causal_folder("gpt_neox")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=said):
        import_folder(folder, None, tmp_path / "runs")
    assert not (tmp_path / "runs" / "gpt_neox").exists()


def test_several_replicas_are_refused(causal_folder, tmp_path):
    folder, _ = causal_folder("qwen3")
    spec = import_folder(folder, None, tmp_path / "runs").run.recipe.model
    with pytest.raises(UserError, match="one replica at a time"):
        spec.build(300, [0, 1])
