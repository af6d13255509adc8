"""The views look, change and solve in a real browser, as a person uses them. Skipped visibly without a browser."""

import asyncio
import json
import re
import time
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from bench_tools import TOKEN, AnsweringHere, served
from captioned import captioned_folder, clip_recipe
from PIL import Image
from tiny import cache_in, tiny_recipe

from headway.experiment.train import train
from headway.workbench.bench import Bench

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


@pytest.fixture(scope="module")
def folder(workshop, tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("bench")
    recipes = {
        "one": tiny_recipe(workshop.text, "model.layers=2"),
        "two": tiny_recipe(workshop.text, "model.layers=2", "model.positions=alibi", "seed=1"),
        "gru": tiny_recipe(workshop.text, "model.mixer=gru", "model.positions=none"),
    }
    with cache_in(workshop.cache):
        for name, recipe in recipes.items():
            train([recipe], [name], made / "runs")
    return made


@pytest.fixture
def bench(folder) -> Bench:
    return Bench(folder, models=AnsweringHere(), readers=AnsweringHere(), planners=AnsweringHere())


def complained(said, wrong: list[str]) -> None:
    if said.type == "error" and "status of 422" not in said.text:
        wrong.append(said.text)


@pytest.fixture
def page(chromium, bench):
    """Any error on the page, and any request to another server, fails the test, except refusals of the server, which
    the page shows."""
    with served(bench) as address:
        context = chromium.new_context(viewport={"width": 1280, "height": 900}, base_url=address)
        page, wrong = context.new_page(), []
        page.set_default_timeout(20_000)
        page.on("console", lambda said: complained(said, wrong))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append("a script ran"), dialog.dismiss()))
        page.on("request", lambda asked: asked.url.startswith((address, "data:", "blob:")) or wrong.append(asked.url))
        page.goto(f"/?token={TOKEN}")
        yield page
        assert wrong == []
        context.close()


def settings(page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


# --- look ------------------------------------------------------------------------------------------------------------


def test_a_sentence_is_typed_and_heads_are_shown_and_switched_off(page):
    page.goto("/look/runs/one")
    page.get_by_label("Sentence").fill("The lazy dog")
    expect(page.locator(".head")).to_have_count(4)
    expect(page.locator(".token")).to_have_count(12)
    page.get_by_role("button", name=re.compile("layer 1, head 1")).click()
    expect(page.locator(".side .under")).to_contain_text("layer 1, head 1")
    expect(page).to_have_url(re.compile(r"text=The\+lazy\+dog&head=self\.1\.1"))
    page.locator(".token").nth(8).hover()
    assert page.locator("svg.lines path").count() > 0, "lines go from the token to those it attends to"
    canvas = page.locator(".side .large canvas")
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] - 8, "y": box["height"] - 8})
    expect(page.locator(".side .under")).to_have_text(re.compile(r"g \(11\) attends to g \(11\): [01]\.\d+"))
    page.get_by_role("button", name=re.compile("layer 1, head 1")).press("x")
    expect(page.locator(".lost-on")).to_contain_text("without that head")
    expect(page.locator(".head.off")).to_have_count(1)
    page.get_by_role("button", name=re.compile("layer 1, head 1")).press("ArrowLeft")
    expect(page.locator(".side .under")).to_contain_text("layer 1, head 0")
    page.get_by_role("button", name="Measure each head's effect").click()
    expect(page.get_by_text("nats higher")).to_be_visible()
    page.reload()  # the address contains the whole state
    expect(page.locator(".head.off")).to_have_count(1)
    expect(page.locator(".side .under")).to_contain_text("layer 1, head 0")
    for show, words in (("rollout", "rollout to layer 1"), ("gradients", "gradients")):
        page.get_by_label("Large view").select_option(show)
        expect(page.locator(".side .under")).to_contain_text(words)
    page.get_by_role("button", name="Continue the text").click()
    expect(page.locator(".said")).to_contain_text("The lazy dog")


def test_two_runs_side_by_side_and_one_without_maps(page):
    page.goto("/look/runs/one?text=The+fox")
    page.get_by_label("Compare with").select_option("runs/two")
    expect(page.locator(".between .under")).to_contain_text("of the attention differs")
    assert page.locator(".side").count() == 2
    page.go_back()
    expect(page.locator(".side")).to_have_count(1)
    page.get_by_label("Run", exact=True).select_option("runs/gru")
    expect(page.get_by_text("gru has no attention, so there are no maps")).to_be_visible()
    expect(page.locator(".lost-on")).to_contain_text("nats each")


def test_unreadable_input_is_reported_as_text_and_a_dead_process_is_replaced(page, bench):
    page.goto(f"/look/runs/one?text={quote('<img src=x onerror=alert(1)>')}")
    expect(page.locator(".trouble")).to_contain_text("the first is '<'")
    assert page.locator("main img").count() == 0
    bench.models.fails = "the worker process was ended by signal 9"
    page.get_by_label("Sentence").fill("The")
    expect(page.locator(".trouble")).to_contain_text("signal 9")
    bench.models.fails = None
    page.get_by_label("Sentence").fill("The dog")
    expect(page.locator(".token")).to_have_count(7)
    expect(page.locator(".trouble")).to_have_count(0)


def test_a_slow_text_can_be_replaced_or_cancelled(page, bench, monkeypatch):
    asked, answer = [], bench.models.ask

    async def slow(function, about="", **given):
        asked.append((given["question"], given.get("text")))
        if given.get("text") == "The slow":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                asked.append("left")
                raise
        return await answer(function, about, **given)

    monkeypatch.setattr(bench.models, "ask", slow)
    page.goto("/look/runs/one?text=The")
    sentence = page.get_by_label("Sentence")
    expect(page.locator(".token")).to_have_count(3)
    for text, count in (("The dog", 7), ("The fox", 7)):
        sentence.fill("The slow")
        expect(page.get_by_text(re.compile("computing, . seconds"))).to_be_visible()
        if text == "The fox":
            page.get_by_role("button", name="cancel").click()
            expect(page.get_by_text("Cancelled.")).to_be_visible()
        sentence.fill(text)
        expect(page.locator(".token")).to_have_count(count)
        expect(page.get_by_text("computing")).to_have_count(0)
    for _ in range(100):  # the page does not wait until the server has noticed
        if asked.count("left") < 2:
            page.wait_for_timeout(50)
    assert asked.count("left") == 2, "the server must stop computing abandoned requests"


@pytest.mark.slow
def test_any_input_gives_a_message_or_maps(page):
    page.goto("/look/runs/one?text=The")
    expect(page.locator(".token")).to_have_count(3)
    for text in ("", "مرحبا", "😀👩", "The " * 300):  # empty, right-to-left, beyond 16 bits, long
        page.get_by_label("Sentence").fill(text)
        expect(page.locator(".trouble, .token:nth-child(1000)").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        page.get_by_label("Sentence").fill("The dog")
        expect(page.locator(".token")).to_have_count(7)


@pytest.fixture
def clip(workshop, folder, tmp_path) -> Path:
    """A briefly trained run that matches pictures with captions."""
    recipe = clip_recipe(captioned_folder(tmp_path), "training.duration=1 steps", "training.schedule.warmup=1 steps")
    with cache_in(workshop.cache):
        return train([recipe], ["clip"], folder / "runs")[0].folder


@pytest.mark.slow
def test_a_picture_of_the_data_and_one_of_the_user(page, clip, tmp_path):
    page.goto("/look/runs/clip")
    said = page.locator(".matched")
    expect(said).to_contain_text("The cosine of valid:0")
    caption = page.get_by_label("Sentence")
    of_the_data = caption.input_value()
    assert re.fullmatch(r"\w+ (left of|above) \w+", of_the_data), "the caption of the picture in the data"
    page.get_by_label("Next picture").click()
    expect(said).to_contain_text("The cosine of valid:1")
    expect(page).to_have_url(re.compile("image=valid%3A1"))
    said.get_by_role("button", name="use this caption").click()
    expect(caption).not_to_have_value(of_the_data)
    Image.new("RGB", (900, 700), "red").save(tmp_path / "<b>mine.png")
    page.get_by_label("Your own picture").set_input_files(tmp_path / "<b>mine.png")
    expect(said).to_contain_text("The cosine of <b>mine.png")
    first = page.get_by_label("the picture <b>mine.png").evaluate(
        "one => [...one.getContext('2d').getImageData(5, 5, 1, 1).data]"
    )
    assert first == [255, 0, 0, 255]
    (tmp_path / "no.png").write_text("no picture")
    page.get_by_label("Your own picture").set_input_files(tmp_path / "no.png")
    expect(page.locator(".trouble")).to_contain_text("cannot be read as a picture")
    facts = clip / "run.json"
    assert json.loads(facts.read_text())["test_scored"] == 1, "only training has scored test so far"
    page.goto("/look/runs/clip?image=test:0&text=red")
    for text in ("red left", "red left of blue"):
        caption.fill(text)
        expect(page.locator(".token")).to_have_count(len(text.split()) + 1)
    assert json.loads(facts.read_text())["test_scored"] == 2, "one look, whatever is typed"


# --- change ----------------------------------------------------------------------------------------------------------


def test_one_setting_is_changed_and_mistakes_are_shown_while_typing(page, bench, workshop, monkeypatch):
    started = []
    job = {"job": "1", "command": "", "process": 1, "started": 0.0, "running": True, "code": None, "said": ""}
    monkeypatch.setattr(bench.jobs, "start", lambda words: started.append(list(words)) or job)
    monkeypatch.setattr(bench.jobs, "told", lambda name: {**job, "running": False, "code": 0})
    with cache_in(workshop.cache):
        page.goto("/change?run=runs/one")
        page.get_by_label("model.positions", exact=True).select_option("alibi")
        expect(page.locator(".differs")).to_contain_text("model.positions.kind")
        expect(page.locator(".command code").first).to_have_text(
            "headway train runs/one/recipe.yaml model.positions=alibi"
        )
        page.get_by_label("model.width", exact=True).fill("15")
        expect(page.locator(".wrong")).to_contain_text("width 15 is not divisible by 2 heads")
        expect(page.locator(".bad-value")).not_to_have_count(0)
        assert page.get_by_role("button", name="Compare with the original").is_disabled()
        page.get_by_label("model.width", exact=True).fill("16")
        expect(page.locator(".wrong")).to_be_empty()
        expect(page.locator(".takes")).to_contain_text("parameters")
        assert settings(page) == {"run": ["runs/one"], "set": ["model.positions=alibi"]}
        page.reload()
        expect(page.get_by_label("model.positions", exact=True)).to_have_value("alibi")
        expect(page.locator(".differs")).to_contain_text("model.positions.kind")
        page.get_by_label("How many seeds").fill("3")
        page.get_by_role("button", name="Compare with the original").click()
        expect(page.get_by_role("link", name="studies/one-alibi")).to_be_visible()
    assert started == [["study", "run", "studies/one-alibi.yaml", "--studies", "studies"]]
    assert "seeds: 3" in (bench.folder / "studies" / "one-alibi.yaml").read_text()


@pytest.mark.slow
def test_a_change_is_compared_with_the_original_and_gets_a_verdict(page, bench, workshop):
    with cache_in(workshop.cache):
        page.goto("/change?run=runs/one&set=model.width%3D32")
        page.get_by_label("Name of the run or study").fill("wider")
        page.get_by_label("How many seeds").fill("2")
        page.get_by_role("button", name="Compare with the original").click()
        expect(page.locator(".started .verdict")).to_contain_text("width-32", timeout=240_000)
        expect(page.locator(".started")).to_contain_text("4 of 4 runs have ended", timeout=240_000)
        while any(job["running"] for job in bench.jobs.all()):  # it is still writing its report
            time.sleep(0.1)


# --- solve -----------------------------------------------------------------------------------------------------------


def test_keys_are_dragged_and_the_answer_follows(page):
    page.goto("/solve")
    plane = page.locator("svg.plane")
    expect(plane).to_have_attribute("data-verdict", "reached")
    box, key = plane.bounding_box(), page.get_by_role("button", name=re.compile("key 0 at")).bounding_box()
    page.mouse.move(key["x"] + key["width"] / 2, key["y"] + key["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 - 8, box["y"] + box["height"] / 2 + 6, steps=8)
    expect(plane).to_have_attribute("data-verdict", "impossible")
    assert page.locator(".mixture line").count() >= 3, "the mixture that proves it impossible"
    page.mouse.up()
    expect(page).to_have_url(re.compile("keys="))
    x, y = settings(page)["keys"][0].split(";")[0].split(",")
    assert abs(float(x)) < 0.3 and abs(float(y)) < 0.3
    for _ in range(5):
        page.get_by_role("button", name=re.compile("key 0 at")).press("Shift+ArrowRight")
    expect(plane).to_have_attribute("data-verdict", "reached")
    page.get_by_label("wanted weight of key 1").fill("1")
    expect(page.locator(".slider").nth(1)).to_contain_text("50 →")
    expect(page.locator(".derivation li")).not_to_have_count(0)
    page.reload()
    expect(page.locator(".slider").nth(1)).to_contain_text("50 →")


def test_a_key_a_convolution_and_a_matrix(page):
    page.goto("/solve/key?key=2")
    expect(page.locator(".verdict")).to_contain_text("A key exists")
    page.get_by_role("link", name="A convolution").click()
    page.get_by_label("Taps").fill("1, 0, -1")
    expect(page.locator(".matrix")).to_have_count(2)  # the negative tap has its own head
    page.get_by_label("Taps").fill("1, 2")
    expect(page.locator(".trouble")).to_contain_text("no middle")
    page.get_by_role("link", name="As a matrix").click()
    expect(page.locator(".matrix")).to_have_count(3)
    page.go_back()
    expect(page.get_by_label("Taps")).to_have_value("1, 2")


def test_on_a_phone_nothing_is_wider_than_the_screen(page):
    page.set_viewport_size({"width": 360, "height": 740})
    for address in ("/look/runs/one?text=The+fox", "/change?run=runs/one", "/solve", "/solve/convolution"):
        page.goto(address)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, address
