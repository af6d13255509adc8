"""Maps show what the model computed, under every kernel, without the padding."""

import pytest
import torch

from headway.core.errors import UserError
from headway.look.maps import attention_layers, maps_of
from headway.nn.backends import Backend
from headway.nn.heads import Reweight, Shift
from headway.nn.positions import T5, Alibi, Learned, NoPositions, Rotary
from headway.nn.taps import watch

SENTENCE = "the lazy fox jumps"


@pytest.mark.parametrize("positions", [NoPositions(), Learned(), Alibi(), Rotary(), T5()], ids=lambda p: p.kind)
@pytest.mark.parametrize("fusion", [Shift(), Reweight()], ids=lambda f: f.kind)
def test_maps_of_the_fused_kernel_equal_those_of_the_plain_one(decoder, words, positions, fusion):
    fused = decoder(words.size, positions, fusion, "sdpa")
    (maps,) = maps_of(fused, words, [SENTENCE])
    plain = decoder(words.size, positions, fusion, "plain")
    with watch(plain) as seen:
        plain(torch.tensor(words.encode(SENTENCE).ids, dtype=torch.int64)[None, None])
    assert list(maps.layers) == [0, 1]
    for layer in range(2):
        theirs = seen[f"layers.{layer}.attention.weights"][0, 0]
        torch.testing.assert_close(maps.layers[layer], theirs, rtol=0, atol=1e-5)
        torch.testing.assert_close(theirs.sum(-1), torch.ones(2, 4))
        assert torch.equal(maps.weights(layer, 1), maps.layers[layer][1])
        assert maps.layers[layer].triu(1).eq(0).all()
    assert maps.largest_difference < 1e-5
    assert maps.padding is not None and all(share.eq(0).all() for share in maps.padding.values())
    assert maps.tokens == ("the", "lazy", "fox", "jumps")


def test_a_kernel_with_another_result_is_noticed(decoder, words):
    model = decoder(words.size)
    true = model.layers[1].mixer.backend

    class Off(Backend):
        def attend(self, *given):
            return true.attend(*given) - 0.25

    model.layers[1].mixer.backend = Off()
    (maps,) = maps_of(model, words, [SENTENCE])
    assert maps.largest_difference == pytest.approx(0.25, abs=1e-5)
    assert "these maps do not show what the kernel computed" in maps.notes[0]
    assert "too much" not in maps_of(decoder(words.size), words, [SENTENCE])[0].notes[0]


def test_the_right_replica_is_shown(decoder, words):
    model = decoder(words.size, seeds=(0, 1, 2))
    maps = [maps_of(model, words, [SENTENCE], replica=r)[0] for r in range(3)]
    with watch(model) as seen:
        model(torch.tensor(words.encode(SENTENCE).ids, dtype=torch.int64).expand(3, 1, -1))
    for r in range(3):
        torch.testing.assert_close(maps[r].layers[1], seen["layers.1.attention.weights"][r, 0])
    assert not torch.allclose(maps[0].layers[1], maps[1].layers[1])


def test_sentences_of_an_encoder_are_batched_and_padding_is_removed(encoder, words):
    model = encoder(words.size)
    together = maps_of(model, words, [SENTENCE, "the dog", "fox"])
    for sentence, maps in zip([SENTENCE, "the dog", "fox"], together, strict=True):
        length = len(sentence.split())
        assert maps.layers[0].shape == (2, length, length)
        assert all(share.eq(0).all() for share in maps.padding.values())
        torch.testing.assert_close(maps.layers[1].sum(-1), torch.ones(2, length))
        ids = torch.tensor(words.encode(sentence).ids, dtype=torch.int64)[None, None]
        with watch(model, "layers.1.attention.weights") as seen:
            model(ids, torch.ones_like(ids, dtype=torch.bool))
        torch.testing.assert_close(maps.layers[1], seen["layers.1.attention.weights"][0, 0])
        assert maps.largest_difference < 1e-5
    assert "padding" in together[0].table().columns


def test_the_weight_on_padding_is_reported(encoder, words):
    (maps,) = maps_of(encoder(words.size, masks_padding=False), words, ["the dog"])
    lost = maps.padding[0]
    assert (lost > 0.1).all()
    torch.testing.assert_close(1 - maps.layers[0].sum(-1).double().mean(-1), lost)
    assert maps.as_json()["heads"][0]["on_padding"] == pytest.approx(float(lost[0]))


def test_a_sentence_as_long_as_the_positions_has_no_room_for_padding(encoder, words):
    (maps,) = maps_of(encoder(words.size, context=4), words, [SENTENCE])
    assert maps.padding is None


def test_only_some_layers_have_attention(decoder, words):
    model = decoder(words.size, layers=3)
    model.layers[1].mixer = torch.nn.Identity()
    assert attention_layers(model) == {0: "layers.0.attention", 2: "layers.2.attention"}


def test_statistics_and_rollout_are_computed_from_the_maps(decoder, words):
    (maps,) = maps_of(decoder(words.size), words, [SENTENCE])
    heads = maps.as_json()["heads"]
    assert [(h["layer"], h["head"]) for h in heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    rows = maps.weights(1, 0)[1:]
    assert heads[2]["on_first"] == pytest.approx(float(rows[:, 0].mean()))
    assert not torch.allclose(maps.rollout(0), maps.rollout()) and torch.equal(maps.rollout(1), maps.rollout())
    assert [row[:2] for row in maps.draw(1, 0).table.rows] == [["1", "0"]]
    assert len(maps.table().rows) == 4 and len(maps.table().columns) == len(maps.table().rows[0])


def test_one_token_has_maps_but_no_statistics(decoder, words):
    (maps,) = maps_of(decoder(words.size), words, ["fox"])
    assert maps.weights(0, 0).tolist() == [[1.0]]
    assert maps.as_json()["heads"][0]["entropy"] is None
    assert maps.table().rows[0][2] == "–"
    assert "<svg" in maps._repr_html_()


def test_invisible_characters_are_shown_as_symbols(decoder, letters):
    (maps,) = maps_of(decoder(letters.size), letters, ["fox \n"])
    assert maps.tokens == ("f", "o", "x", "␣", "↵")


# Mistakes


def test_a_model_without_attention_is_refused_with_a_hint_at_gradients(without_attention, words):
    with pytest.raises(UserError, match=r"tiny has no attention layers, .* --show gradients"):
        maps_of(without_attention(words.size), words, [SENTENCE], "tiny")


def test_an_empty_sentence(decoder, words):
    for text in ("", "   "):
        with pytest.raises(UserError, match="the sentence is empty"):
            maps_of(decoder(words.size), words, [text])


def test_unknown_words_are_shown_with_the_token_they_became(decoder, words):
    (maps,) = maps_of(decoder(words.size), words, ["the émigré  fox grumbles grumbles"])
    assert maps.tokens == ("the", "<unk> émigré", "fox", "<unk> grumbles", "<unk> grumbles")
    assert "3 of 5 words are unknown and read as <unk>: émigré, grumbles" in maps.notes
    assert maps.as_json()["unknown"] == ["émigré", "grumbles", "grumbles"]


def test_a_sentence_longer_than_the_learned_positions(decoder, encoder, words):
    with pytest.raises(UserError, match=r"17 tokens, but the learned positions end at 16"):
        maps_of(decoder(words.size), words, ["fox " * 17])


def test_layers_and_heads_that_do_not_exist(decoder, words):
    (maps,) = maps_of(decoder(words.size), words, [SENTENCE], "tiny")
    with pytest.raises(UserError, match=r"tiny has no attention in layer 2; layers with attention: 0, 1"):
        maps.grid(layer=2)
    with pytest.raises(UserError, match=r"tiny has no head 2 in layer 0: it has heads 0 to 1"):
        maps.grid(head=2)
    with pytest.raises(UserError, match=r"no head -1"):
        maps.weights(0, -1)
    with pytest.raises(UserError, match=r"layer -1"):
        maps.rollout(-1)
    (one,) = maps_of(decoder(words.size, heads=1), words, [SENTENCE])
    with pytest.raises(UserError, match=r"it has one head, head 0"):
        one.draw(0, 1)


def test_maps_too_large_to_draw_are_refused_before_anything_is_computed(decoder, words, monkeypatch):
    model = decoder(words.size)
    monkeypatch.setattr(type(model), "forward", lambda *_: pytest.fail("it was computed"))
    with pytest.raises(UserError, match=r"25,000 tokens are too many to look at: .*at most 8,192"):
        maps_of(model, words, ["fox " * 25_000])
    monkeypatch.setattr("headway.look.reading.MAX_WEIGHTS", 4 * 30**2)
    with pytest.raises(UserError, match=r"has 4 attention maps; for 31 tokens .* at most 30 tokens"):
        maps_of(model, words, ["fox " * 31])
