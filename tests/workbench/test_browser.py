"""The workbench in a real browser (`conftest.py`), as a person uses it.

`make test` runs the most important of these tests; `make test-browser` runs all.
"""

import json
import shutil
import socket
import threading
import time

import pytest
from bench_tools import TOKEN, AnsweringHere, add_lines, make_run, served

from headway.core.files import locked, write_json
from headway.workbench.app import create_app
from headway.workbench.bench import Bench
from headway.workbench.serve import server_of

WICKED = "<img src=x onerror=alert(1)>"


@pytest.fixture
def folder(tmp_path):
    for k, name in enumerate(("alpha", "beta", "gamma")):
        make_run(tmp_path / "runs" / name, layers=2 + k)
    home = tmp_path / "studies" / "s"
    for arm in ("one", "two"):
        for seed in range(2):
            make_run(home / "runs" / f"{arm}.seed-{seed}", seed=seed)
    (home / "study.yaml").write_text("title: Does two help?\n")
    of = {f"{arm}.seed-{seed}": arm for arm in ("one", "two") for seed in range(3)}
    told = {"event": "opened", "of": ["s"], "time": "2026-01-01T00:00:00+00:00", "arm_of": of, "done": []}
    (home / "events.jsonl").write_text(json.dumps(told) + "\n")
    return tmp_path


@pytest.fixture
def wrong():
    """The errors that the browser reported."""
    return []


@pytest.fixture
def page(chromium, folder, wrong):
    """A page opened with the token; any error on it, and any request to another server, fails the test."""
    with served(Bench(folder, readers=AnsweringHere())) as address:
        context = chromium.new_context(viewport={"width": 1280, "height": 800}, base_url=address)
        page = context.new_page()
        page.set_default_timeout(15_000)
        left = []
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append("a script ran"), dialog.dismiss()))
        page.on("request", lambda asked: asked.url.startswith((address, "data:", "blob:")) or left.append(asked.url))
        page.goto(f"/?token={TOKEN}")
        page.wait_for_selector(".row")
        assert "token" not in page.url
        yield page
        assert left == [] and wrong == []
        context.close()


def rows(page):
    return page.eval_on_selector_all(".row a.name", "all => all.map((one) => one.textContent)")


def test_runs_are_filtered_sorted_grouped_and_opened(page):
    assert len(rows(page)) == 7
    page.get_by_label("Filter runs").fill("alpha")
    assert rows(page) == ["alpha"] and "filter=alpha" in page.url
    page.get_by_label("Filter runs").fill("")
    page.get_by_role("button", name="run", exact=True).click()
    assert rows(page)[:3] == ["alpha", "beta", "gamma"]
    page.get_by_label("Group by").select_option("study")
    assert page.locator(".group").count() == 2 and "group=study" in page.url
    page.locator(".row a.name", has_text="alpha").click()
    page.wait_for_url("**/run/runs/alpha")
    page.go_back()
    page.wait_for_selector(".group")  # the view is as it was left


@pytest.mark.slow
def test_by_keyboard_alone(page):
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.locator(".row").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    assert page.locator(".row.picked").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_selector("h1 .status")
    assert page.url.endswith(page.locator(".kicker").inner_text().split(" / ")[1])


@pytest.mark.slow
def test_several_runs_are_shown_together(page):
    for name in ("runs/alpha", "runs/beta"):
        page.get_by_label(f"Select {name}").check()
    page.get_by_role("link", name="compare curves and recipes").click()
    page.wait_for_selector("th:has-text('model.layers')")
    assert page.locator("tbody tr").inner_text().split() == ["model.layers", "2", "3"]
    assert page.locator(".legend li").count() == 2


@pytest.mark.slow
def test_a_run_is_shown_completely(page):
    page.goto("/run/runs/alpha")
    page.wait_for_selector(".recipe")
    text = page.inner_text("main")
    for said in ("12.50", "perplexity per token (char) · valid", "it sees the future", "How many blocks are stacked."):
        assert said in text
    assert "headway train demo --name alpha" in text and "cpu" in text


def test_a_run_is_shown_while_it_trains(page, folder):
    run = make_run(folder / "runs" / "live", status="started", steps=10)
    (run / "scores.json").unlink()
    with locked(run):  # as locked by a training process, here by this one
        page.goto("/run/runs/live")
        page.wait_for_selector("h1:has-text('running')")
        took = []
        for step in range(11, 14):
            began = time.monotonic()
            add_lines(run, {"step": step, "loss": 1.0})
            page.wait_for_selector(f"dd:has-text('{step}')")
            took.append(time.monotonic() - began)
        assert min(took) < 2.0  # benchmarks.workbench measures it; here the machine may be busy
    write_json(run / "run.json", {**json.loads((run / "run.json").read_text()), "status": "finished", "step": 13})
    write_json(run / "scores.json", {"valid.perplexity": {"value": 7.25, "label": "at last"}})
    page.wait_for_selector("dd:has-text('at last')")
    page.wait_for_selector("h1:has-text('finished')")


@pytest.mark.slow
def test_a_new_run_appears_and_a_deleted_one_disappears(page, folder):
    make_run(folder / "runs" / "delta")
    page.wait_for_selector("a.name:has-text('delta')")
    shutil.rmtree(folder / "runs" / "delta")
    page.wait_for_selector("a.name:has-text('delta')", state="detached")


def test_a_deleted_folder_and_a_half_written_run_are_reported(page, folder):
    (folder / "runs" / "alpha" / "run.json").write_text('{"format"')
    page.wait_for_selector(".row:has-text('cannot be read')")
    folder.rename(folder.with_name("away"))
    page.wait_for_selector(".empty:has-text('no longer exists')")
    folder.with_name("away").rename(folder)
    page.wait_for_selector("a.name:has-text('beta')")


@pytest.mark.slow
def test_a_study_fills_and_a_broken_one_is_reported(page, folder, wrong):
    page.goto("/studies")
    page.get_by_role("link", name="Does two help?").click()
    page.wait_for_selector(".cells")
    assert page.locator(".cells tbody td").all_inner_texts() == ["12.50!", "12.50!", "·", "12.50!", "12.50!", "·"]
    page.wait_for_selector("section .trouble")  # this study has no recipe, and the page shows the error of reading it
    make_run(folder / "studies" / "s" / "runs" / "two.seed-2", seed=2)
    page.wait_for_selector(".cells tr:nth-child(2) td:nth-child(4) a:has-text('12.50')")
    assert all("422" in one for one in wrong)
    wrong.clear()


@pytest.mark.slow
def test_cases_are_listed_with_their_reports(page):
    page.get_by_role("link", name="Cases").click()
    page.wait_for_selector("tr:has-text('B7')")
    assert page.locator("tbody tr").count() >= 31


def test_runs_to_look_at_can_be_searched_newest_first(page, folder):
    make_run(folder / "runs" / "delta", created="2026-02-02T03:04:05+00:00")
    page.get_by_role("link", name="Look").click()
    page.wait_for_selector(".choices tr:has-text('delta')")
    assert page.locator(".choices tbody th").first.inner_text() == "runs/delta"
    page.get_by_label("Filter runs").fill("BETA finished")
    assert page.locator(".choices tbody th").all_inner_texts() == ["runs/beta"]
    assert "filter=BETA" in page.url and page.locator(".choices a").get_attribute("href") == "/look/runs/beta"


@pytest.mark.slow
def test_a_deleted_run_is_not_reported_as_a_missing_server(page, folder, wrong):
    page.goto("/run/runs/beta")
    page.wait_for_selector(".recipe")
    shutil.rmtree(folder / "runs" / "beta")
    page.wait_for_selector(".status:has-text('cannot be read')")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # starts watching again
    page.wait_for_timeout(1500)
    assert page.locator(".lost").is_hidden()
    wrong.clear()


def test_scripts_in_names_and_texts_are_shown_as_text(page, folder):
    wicked = make_run(folder / "runs" / WICKED, reason=WICKED, status="diverged", headline="perplexity")
    score = {"value": 0.5, "label": WICKED, "confusion": {"classes": [WICKED, "b"], "counts": [[1, 2], [3, 4]]}}
    write_json(wicked / "scores.json", {"valid.accuracy": score, f"valid.precision.{WICKED}": score})
    text = (wicked / "recipe.yaml").read_text().replace("python-docs", WICKED).replace("Which text.", WICKED)
    (wicked / "recipe.yaml").write_text(text)
    page.wait_for_selector(f"a.name:text-is('{WICKED}')")
    page.locator("a.name", has_text="onerror").click()
    page.wait_for_selector(".recipe")
    assert page.locator("main img").count() == 0
    assert page.inner_text("main").count(WICKED) >= 6


def test_many_classes_and_right_to_left_names_are_shown(page, folder):
    """For more than 32 classes the mistakes are listed instead of a matrix; a right-to-left name affects only its own
    direction, and a long one is truncated."""
    odd = "\u202eevil مرحبا 😀"
    run = make_run(folder / "runs" / odd, headline="accuracy")
    make_run(folder / "runs" / ("long-" * 45))
    names = [f"class {k}" for k in range(2000)]
    cells = [[k, k, 5] for k in range(2000)] + [[7, 8, 3], [9, 1, 4]]
    scores = {"valid.accuracy": {"value": 0.5, "label": "", "confusion": {"classes": names, "cells": cells}}}
    write_json(run / "scores.json", scores | {f"valid.precision.{one}": {"value": 0.25, "label": ""} for one in names})
    page.wait_for_selector("a.name:has-text('long-')")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.locator("a.name", has_text="evil").click()
    page.wait_for_selector(".mistakes")
    assert page.locator(".mistakes tbody tr").all_inner_texts() == ["class 9\tclass 1\t4", "class 7\tclass 8\t3"]
    assert page.locator(".classes tbody tr").count() == 40
    page.get_by_label("Filter classes").fill("1234")
    assert page.locator(".classes tbody th").all_inner_texts() == ["class 1234"]
    boxes = "['bdi', '.status'].map((one) => document.querySelector(`h1 ${one}`).getBoundingClientRect().toJSON())"
    name, status = page.evaluate(boxes)  # in one call, since the status is redrawn when the run changes
    assert name["x"] + name["width"] <= status["x"], "the status must be to the right of the name"


@pytest.mark.slow
def test_markup_cannot_run_scripts(page, wrong):
    """The content security policy protects even if text were ever inserted as markup."""
    ran = page.evaluate(
        """async () => {
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = 1'>");
            const script = document.createElement("script");
            script.textContent = "window.ran = 2";
            document.body.append(script);
            await new Promise((done) => setTimeout(done, 200));
            return window.ran ?? 0;
        }"""
    )
    assert ran == 0 and any("Content Security Policy" in one for one in wrong)
    wrong.clear()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/runs", "/run/runs/alpha", "/compare?run=runs/alpha", "/studies", "/jobs"])
def test_on_a_phone_nothing_is_cut_off(page, path):
    page.set_viewport_size({"width": 360, "height": 700})
    page.goto(path)
    page.wait_for_selector("h1")
    page.wait_for_load_state()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    views = page.locator("header nav a")
    assert all(views.nth(k).bounding_box()["x"] + views.nth(k).bounding_box()["width"] <= 360 for k in range(8))


@pytest.mark.slow
def test_dark_and_light_mode_by_the_system_and_by_the_button(page):
    colour = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(colour)
    assert light != dark
    page.get_by_label("Light or dark").click()
    assert page.evaluate(colour) == light
    page.reload()
    page.wait_for_selector(".row")
    assert page.evaluate(colour) == light  # as chosen
    page.emulate_media(color_scheme="light")


@pytest.mark.slow
def test_controls_have_names(page):
    for path in ("/runs", "/run/runs/alpha", "/studies", "/compare?run=runs/alpha"):
        page.goto(path)
        page.wait_for_selector("h1")
        nameless = page.eval_on_selector_all(
            "button, a[href], input, select, canvas:not([aria-hidden])",
            """all => all.filter((one) => !(one.ariaLabel || one.textContent.trim() || one.labels?.length))
                .map((one) => one.outerHTML)""",
        )
        assert nameless == [], path


def test_the_server_goes_away_and_comes_back(chromium, folder):
    """The page reports that the server does not answer, and continues by itself."""

    def start(port):
        listening = socket.create_server(("127.0.0.1", port), reuse_port=False)
        port = listening.getsockname()[1]
        server = server_of(create_app(Bench(folder), TOKEN, {f"127.0.0.1:{port}"}))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        return server, thread, port

    server, thread, port = start(0)
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
    page.wait_for_selector(".row")
    server.should_exit = server.force_exit = True
    thread.join(10)
    page.wait_for_selector(".lost:visible")
    make_run(folder / "runs" / "meanwhile")
    server, thread, _ = start(port)
    page.wait_for_selector("a.name:has-text('meanwhile')", timeout=15_000)
    page.wait_for_selector(".lost", state="hidden")
    server.should_exit = True
    context.close()
    thread.join(10)


def test_the_first_page_is_light(page):
    asked = []
    page.on("requestfinished", lambda one: asked.append(one))
    page.goto("/runs")
    page.wait_for_selector(".row canvas")
    sizes = [one.sizes()["responseBodySize"] for one in asked if "/api/" not in one.url]
    sizes += [len(one.response().body()) for one in asked if "/api/table" in one.url]
    assert sum(sizes) < 300_000
