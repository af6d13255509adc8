"""GPT-2: the same logits as Hugging Face's, weights converted in both directions, and what has no counterpart."""

import re

import pytest
import torch

from headway.core.errors import UserError
from headway.formats.gpt2 import config_of, from_gpt2, model_tree, to_gpt2, weight_names, why_not
from headway.recipe.recipe import Recipe, from_tree

V, TOLERANCE = 37, 1e-5
SHAPES = [
    {},
    {"n_inner": 20, "activation_function": "relu"},
    {"activation_function": "gelu", "tie_word_embeddings": False},
    {"n_head": 1, "n_layer": 1},
]


def theirs(**settings):
    from transformers import GPT2Config, GPT2LMHeadModel

    given = {"n_positions": 16, "n_embd": 12, "n_layer": 3, "n_head": 3, "bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=V, **{**given, **settings})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def spec_of(model) -> Recipe:
    tree, _ = model_tree(model.config.to_dict())
    return from_tree({"model": tree}, "config.json")


def saved(model) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def our_logits(model, ids):
    with torch.no_grad():
        return model.eval()(ids[None])[0][0]


@pytest.mark.parametrize("settings", SHAPES)
def test_logits_of_imported_weights_equal_those_of_transformers(settings):
    from headway.training.population import load_weights

    reference = theirs(**settings)
    spec = spec_of(reference).model
    ours = spec.build(V)
    load_weights(ours, 0, from_gpt2(saved(reference), spec, V))
    ids = torch.randint(V, (2, 16))
    with torch.no_grad():
        torch.testing.assert_close(our_logits(ours, ids), reference(ids).logits, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("settings", SHAPES)
def test_logits_of_exported_weights_are_unchanged(settings):
    reference = theirs(**settings)
    spec = spec_of(reference).model
    ours = spec.build(V, [5])
    for p in ours.parameters():
        torch.nn.init.normal_(p, std=0.3)
    weights = to_gpt2({name: p[0].detach() for name, p in ours.named_parameters()}, spec)
    if spec.tied:
        weights["lm_head.weight"] = weights["transformer.wte.weight"]
    reference.load_state_dict(weights, strict=True)
    ids = torch.randint(V, (2, 16))
    with torch.no_grad():
        torch.testing.assert_close(our_logits(ours, ids), reference(ids).logits, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_round_trip_is_bit_identical():
    reference = theirs(tie_word_embeddings=False)
    spec = spec_of(reference).model
    back = to_gpt2(from_gpt2(saved(reference), spec, V), spec)
    assert set(back) == set(saved(reference))
    assert all(torch.equal(back[name], tensor) for name, tensor in saved(reference).items())


def test_the_exported_config_equals_the_imported_one():
    for settings in SHAPES:
        config = theirs(**settings).config.to_dict()
        written = config_of(spec_of(theirs(**settings)).model, V, 0)
        assert {key: config[key] for key in written if key not in ("dtype", "architectures")} == {
            key: value for key, value in written.items() if key not in ("dtype", "architectures")
        }


def test_an_empty_config_is_gpt2_itself():
    model = from_tree({"model": model_tree({"model_type": "gpt2"})[0]}, "config.json").model
    assert (model.layers, model.width, model.context, model.mixer.heads) == (12, 768, 1024, 12)
    assert (model.feedforward.kind, model.tied, model.dropout) == ("gelu-tanh", True, 0.1)


def test_every_parameter_has_exactly_one_counterpart():
    for changes in ([], ["model.tied=false"]):
        spec = Recipe().with_changes(changes).model
        found = weight_names(spec)
        assert {p.ours for p in found} == {name for name, _ in spec.build(9).named_parameters()}
        assert len({p.theirs for p in found}) == len(found)


# --- what has no counterpart -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((f"model.positions={kind}", f"model.positions: .* has no {kind}") for kind in ("none", "sinusoidal", "t5")),
        *((f"model.positions={kind}", f"model.positions: .* has no {kind}") for kind in ("alibi", "rotary")),
        *((f"model.mixer.fusion={kind}", f"model.mixer.fusion: .* no {kind}") for kind in ("shuffle", "shift")),
        *((f"model.mixer.fusion={kind}", f"no {kind}") for kind in ("reweight", "reweight-causal")),
        ("model.mixer.window=3", "model.mixer.window: .* not only 3 slots"),
        ("model.mixer.bias=false", "model.mixer.bias: .* have biases"),
        ("model.feedforward={kind: swiglu}", "model.feedforward.kind: .* not swiglu"),
        ("model.feedforward.bias=false", "model.feedforward.bias: .* have biases"),
        ("model.norm={kind: rms}", "model.norm.kind: GPT-2 has LayerNorm, not rms"),
        ("model.norm.placement=post", "model.norm.placement: .* before each sublayer"),
        ("model.norm.eps=1e-3", "model.norm.eps: .* 1e-05"),
        ("model.norm.of_embeddings=true", "model.norm.of_embeddings"),
        ("model.output_bias=true", "model.output_bias: GPT-2's output has no bias"),
    ],
)
def test_a_recipe_without_a_gpt2_form_is_refused_with_the_reason(change, words):
    recipe = Recipe().with_changes([change])
    (misfit,) = why_not(recipe.model)
    assert re.search(words, str(misfit))
    assert misfit.change is not None and why_not(recipe.with_changes([misfit.change]).model) == []


@pytest.mark.parametrize(
    "change", ["model.feedforward={kind: relu}", "model.feedforward={kind: gelu-tanh}", "model.tied=false"]
)
def test_nothing_is_reported_for_a_recipe_with_a_gpt2_form(change):
    assert why_not(Recipe().model) == []
    assert why_not(Recipe().with_changes([change, "model.dropout=0.2", "model.mixer.dropout=0.1"]).model) == []


def test_all_reasons_are_reported_at_once():
    changes = ["model.positions=t5", "model.mixer.window=4", "model.norm={kind: rms}"]
    assert len(why_not(Recipe().with_changes(changes).model)) == 3


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: True; only False"),
        ({"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn: True; only False"),
        ({"add_cross_attention": True}, "add_cross_attention: True; only False"),
        ({"scale_attn_weights": False}, "scale_attn_weights: False; only True"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon: 1e-06; only 1e-05"),
        ({"activation_function": "gelu_nwe"}, "'gelu_nwe' is not supported; did you mean 'gelu_new'"),
        (
            {"activation_function": "tanh"},
            "'tanh' is not supported; there are: gelu, gelu_new, gelu_pytorch_tanh, relu",
        ),
    ],
)
def test_a_config_without_a_counterpart_is_refused(config, words):
    with pytest.raises(UserError, match=words):
        model_tree({"model_type": "gpt2", **config})


def test_two_rates_of_dropout_that_headway_has_as_one_are_reported():
    tree, (note,) = model_tree({"model_type": "gpt2", "embd_pdrop": 0.0, "resid_pdrop": 0.2})
    assert tree["dropout"] == 0.2 and "embd_pdrop is 0.0 and resid_pdrop 0.2" in note


# --- weights that do not fit -----------------------------------------------------------------------------------------


def test_prefixes_and_buffers_make_no_difference():
    reference = theirs()
    spec, tensors = spec_of(reference).model, saved(reference)
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old |= {"h.0.attn.bias": torch.ones(1, 1, 16, 16).bool(), "h.2.attn.masked_bias": torch.tensor(-1e4)}
    old["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    expected, found = from_gpt2(tensors, spec, V), from_gpt2(old, spec, V)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def broken(**changes):
    reference = theirs()
    return {**saved(reference), **changes}, spec_of(reference).model


def test_unknown_keys_are_named_five_at_most():
    tensors, spec = broken(**{f"transformer.h.{n}.ln_1.weight": torch.ones(12) for n in range(3, 10)})
    with pytest.raises(
        UserError, match=r"do not belong to a GPT-2 of 3 layers: .*h\.3\.ln_1.*h\.7\.ln_1\S+ and 2 more$"
    ):
        from_gpt2(tensors, spec, V)


def test_missing_keys_are_named():
    tensors, spec = broken()
    del tensors["transformer.h.1.mlp.c_fc.bias"]
    with pytest.raises(UserError, match=r"missing: transformer\.h\.1\.mlp\.c_fc\.bias$"):
        from_gpt2(tensors, spec, V)


def test_shapes_that_do_not_fit_are_named():
    tensors, spec = broken(**{"transformer.h.0.attn.c_attn.weight": torch.ones(36, 12)})
    with pytest.raises(UserError, match=r"c_attn\.weight is \[36, 12\], config\.json says \[12, 36\]$"):
        from_gpt2(tensors, spec, V)


def test_a_separate_output_that_should_be_tied_is_refused():
    tensors, spec = broken(**{"lm_head.weight": torch.ones(V, 12)})
    with pytest.raises(UserError, match=r"differs from wte\.weight, but config\.json says tie_word_embeddings: true"):
        from_gpt2(tensors, spec, V)


def test_quantised_weights_are_refused():
    tensors, spec = broken(**{"transformer.ln_f.bias": torch.ones(12, dtype=torch.int8)})
    with pytest.raises(UserError, match=r"not floating-point numbers \(quantized\?\): transformer\.ln_f\.bias"):
        from_gpt2(tensors, spec, V)
