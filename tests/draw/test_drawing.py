"""Pictures as files: complete, readable and harmless."""

import base64
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest

from headway.core.errors import UserError
from headway.draw import terminal
from headway.draw.colours import DIFFERENCES, WEIGHTS
from headway.draw.layout import arrange
from headway.draw.page import page
from headway.draw.picture import Grid, Panel, Picture
from headway.draw.svg import png, svg
from headway.look.gradients import gradients_of
from headway.look.maps import maps_of

HARM = "<b>fox</b> & \"dog\" 'x' $\\frac$"


def picture(tokens: int, rows: int, columns: int, name=lambda k: f"token{k}") -> Picture:
    names = tuple(name(k) for k in range(tokens))
    weights = np.tril(np.random.default_rng(0).random((tokens, tokens))) ** 3
    weights /= weights.sum(-1, keepdims=True)
    panels = [
        [Panel(f"layer {i} · head {j}", weights, names, names, ("entropy 1.00 (50 %)", "distance 2.00"))]
        for i in range(rows)
        for j in range(columns)
    ]
    grid = [[panel for (panel,) in panels[i * columns : (i + 1) * columns]] for i in range(rows)]
    return Picture("A title", "a sentence", "how to read it", [Grid("run", grid, WEIGHTS)], ["a note"])


# Layout


@pytest.mark.parametrize("tokens", [1, 5, 60, 200])
@pytest.mark.parametrize("shape", [(1, 1), (4, 2), (12, 12)])
def test_nothing_overlaps_and_nothing_is_outside(tokens, shape):
    layout = arrange(picture(tokens, *shape))
    assert len(layout.maps) == shape[0] * shape[1]
    for m in layout.maps:
        assert m.x >= 0 and m.x + m.width <= layout.width and m.y >= 0 and m.y + m.height <= layout.height
    for row in range(shape[0]):
        beside = layout.maps[row * shape[1] : (row + 1) * shape[1]]
        assert all(a.x + a.width < b.x for a, b in pairwise(beside))
    above = layout.maps[:: shape[1]]
    assert all(a.y + a.height < b.y for a, b in pairwise(above))
    assert all(0 <= text.x <= layout.width and 0 <= text.y <= layout.height for text in layout.texts)
    assert layout.width < 2200


@pytest.mark.parametrize("tokens", [5, 60])
@pytest.mark.parametrize("shape", [(1, 1), (3, 4), (12, 12)])
def test_names_do_not_touch(tokens, shape):
    layout = arrange(picture(tokens, *shape))
    first = layout.maps[0]
    beside = [t for t in layout.texts if t.anchor == "end" and first.y <= t.y <= first.y + first.height + 5]
    assert beside[0].text == "token0"
    assert all(b.y - a.y >= a.size for a, b in pairwise(beside))
    above = [t for t in layout.texts if t.turned and first.x <= t.x <= first.x + first.width + 5]
    assert all(b.x - a.x >= a.size for a, b in pairwise(above))
    thinned = any("one token in" in text.text for text in layout.texts)
    assert thinned == (len(beside) < tokens)


def test_single_letters_are_neither_rotated_nor_left_out():
    layout = arrange(picture(60, 3, 4, name=lambda k: "abc"[k % 3]))
    first = layout.maps[0]
    above = [t for t in layout.texts if t.anchor == "middle" and t.y < first.y and t.x < first.x + first.width]
    assert len(above) == 60


def test_numbers_are_shown_in_large_cells_only():
    assert ">.50</text>" in svg(arrange(halves(2)), "")
    assert ">.50</text>" not in svg(arrange(halves(60)), "")


def halves(tokens: int) -> Picture:
    names = ("x",) * tokens
    return Picture("", "", "", [Grid("", [[Panel("", np.full((tokens, tokens), 0.5), names, names, ())]], WEIGHTS)])


def test_too_much_for_one_picture():
    many = [Panel("", np.zeros((1000, 1000)), ("x",) * 1000, ("x",) * 1000, ())] * 11
    with pytest.raises(
        UserError, match="11 maps of 1000 tokens are too many for one picture: choose a layer or a head"
    ):
        arrange(Picture("", "", "", [Grid("", [many], WEIGHTS)]))


# Colours


def test_colours_grow_darker_evenly():
    grey = WEIGHTS.colours @ np.array([0.2126, 0.7152, 0.0722])
    steps = -np.diff(grey[::16])
    assert (steps > 0).all() and steps.max() < 2 * steps.min()
    assert len(np.unique(DIFFERENCES.colours, axis=0)) > 200


def test_only_zero_is_blank():
    painted = WEIGHTS.paint(np.array([0.0, 1e-6, 1.0]))
    assert painted[0].tolist() == [255, 255, 255] and painted[1].tolist() != [255, 255, 255]
    assert painted[2].tolist() == WEIGHTS.colours[-1].tolist()
    assert DIFFERENCES.paint(np.array([-0.7, -0.5])).tolist() == [DIFFERENCES.colours[0].tolist()] * 2


@pytest.mark.parametrize("scale", [WEIGHTS, DIFFERENCES], ids=["weights", "differences"])
@pytest.mark.parametrize("value", np.linspace(-1, 1, 21))
def test_numbers_can_be_read_on_their_colour(scale, value):
    def light(colour) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in np.asarray(colour) / 255]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722])) + 0.05

    ink = light([int(scale.ink(value)[k : k + 2], 16) for k in (1, 3, 5)])
    paper = light(scale.paint(np.array(value)))
    assert max(ink, paper) / min(ink, paper) > 4.0


def test_the_png_is_valid():
    from matplotlib.image import imread

    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 3)).astype(np.uint8)
    assert np.array_equal(np.rint(imread(io.BytesIO(png(pixels)), format="png") * 255), pixels)


# Files


@pytest.fixture
def maps(decoder, letters):
    return maps_of(decoder(letters.size), letters, ["<b>fox</b>"], "<i>run</i>")[0]


def test_html_is_complete_and_self_contained(maps, tmp_path):
    path = maps.draw().save(tmp_path / "maps.html")
    html = path.read_text("utf-8")
    assert "http" not in html and "//" not in re.sub(r'"data:[^"]*"|"data": "[^"]*"|^\s*// .*$', "", html, flags=re.M)
    assert "<b>" not in html and "<i>" not in html and "&lt;i&gt;run&lt;/i&gt;" in html
    values = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1])
    assert values["tokens"] == [list(maps.tokens)]
    first = np.frombuffer(base64.b64decode(values["maps"][0]["data"]), "<i2").reshape(10, 10) / 32767
    np.testing.assert_allclose(first, maps.weights(0, 0), atol=2e-5)
    assert html.count("data-map=") == 4
    for text in ("layer 1 · head 1", "entropy ", "All numbers"):
        assert text in html


def test_a_sentence_of_special_characters_is_shown_unchanged(decoder, words, tmp_path):
    from headway.data.vocabularies import Word

    tokenizer = Word().learn(HARM)
    (maps,) = maps_of(decoder(tokenizer.size), tokenizer, [HARM])
    gradients = gradients_of(decoder(tokenizer.size), tokenizer, HARM)
    for html in (page(maps.draw()), page(gradients.draw())):
        assert "<b>fox" not in html and "&lt;b&gt;fox&lt;/b&gt;" in html
    maps.draw().save(tmp_path / "harm.png")  # text between dollar signs is not read as a formula
    drawn = ElementTree.fromstring(maps.draw().save(tmp_path / "harm.svg").read_text("utf-8"))
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert set(maps.tokens) <= set(texts)


def test_the_end_of_a_script_in_a_token_does_not_end_the_script(decoder):
    from headway.data.vocabularies import Word

    tokenizer = Word().learn("</script><script>alert(1)</script> x")
    (maps,) = maps_of(decoder(tokenizer.size), tokenizer, ["</script><script>alert(1)</script> x"])
    html = page(maps.draw())
    assert html.count("</script>") == 2 and "<script>alert" not in html


def test_png_and_svg(maps, tmp_path):
    from matplotlib.image import imread

    image = imread(maps.draw().save(tmp_path / "maps.png"))
    assert image.shape[0] > 200 and image.shape[1] > 400 and image.std() > 0.01
    drawn = ElementTree.fromstring(maps.draw(1, 0).save(tmp_path / "one.svg").read_text("utf-8"))
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "layer 1 · head 0" in texts and "Attention of <i>run</i>" in texts and set(maps.tokens) <= set(texts)
    assert not [e for e in drawn.iter() for v in e.attrib.values() if "http" in v]


def test_scripts_that_the_font_lacks_do_not_stop_a_png(tmp_path):
    shown = picture(3, 1, 1, name=lambda k: "注意力"[k])
    assert shown.save(tmp_path / "cjk.png").stat().st_size > 1000


def test_two_pages_in_one_notebook_do_not_conflict(maps):
    one, two = maps.draw(0)._repr_html_(), maps.draw(1)._repr_html_()
    names = [re.search(r'<div id="(look-\w+)">', html)[1] for html in (one, two)]
    assert names[0] != names[1] and names[0] not in two
    assert maps._repr_html_() == maps.draw()._repr_html_()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("maps.pdf", r"maps\.pdf: unknown picture format '\.pdf'; there are: \.html, \.png, \.svg"),
        ("maps.htm", r"did you mean '\.html'\?"),
        ("maps", r"maps: the file name has no ending; there are"),
        ("nowhere/maps.html", r"nowhere/maps\.html: there is no folder .*nowhere"),
        ("folder.html", r"folder\.html is a folder; give a file in it"),
    ],
)
def test_places_where_no_picture_can_be_written(maps, tmp_path, name, said):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(UserError, match=said):
        maps.draw().save(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["folder.html"]


def test_an_ending_in_capitals_is_the_same(maps, tmp_path):
    assert maps.draw().save(tmp_path / "MAPS.PNG").exists()


# Terminal


def test_a_terminal_shows_every_head(maps, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    terminal.show(maps.draw())
    out = capsys.readouterr().out
    for layer in range(2):
        for head in range(2):
            assert f"layer {layer} · head {head}" in out
    assert all(len(line) <= 60 for line in out.splitlines())
    assert "█" in out and "<i>run</i>" in out


def test_a_terminal_without_colours_distinguishes_less_from_more(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    names = ("a", "b")
    shown = []
    for sign in (1, -1):
        panel = Panel("layer 0 · head 0", sign * np.array([[0.5, -0.5], [0.9, -0.9]]), names, names, ())
        terminal.show(Picture("A title", "a sentence", "", [Grid("b − a", [[panel]], DIFFERENCES)]))
        shown.append([line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith(names)])
    for more, less in zip(*shown, strict=True):
        half = len(more) // 2
        assert more == less[half:] + less[:half]
        assert not {*more[:half]} & {*more[half:]}


def test_a_narrow_terminal_has_panels_one_below_the_other(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    terminal.show(picture(5, 1, 3))
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines if "head" in line] == [f"layer 0 · head {h}" for h in range(3)]
