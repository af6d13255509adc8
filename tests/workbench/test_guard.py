"""Which requests are answered and which are refused, with the attack that each refusal prevents."""

import asyncio

import pytest
from bench_tools import HOST, TOKEN, asker, make_run

from headway.workbench import guard
from headway.workbench.bench import Bench

PATHS = ["/", "/runs", "/static/main.js", "/api/table", "/api/openapi.json", "/api/events?topic=runs", "/nothing"]


@pytest.fixture
def bench(tmp_path):
    make_run(tmp_path / "home" / "runs" / "one")
    make_run(tmp_path / "elsewhere" / "secret")
    return Bench(tmp_path / "home")


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x"])
def test_without_the_token_nothing_is_answered(bench, token):
    api, given = asker(bench, token), {"token": token} if token else {}
    for answer in (answer for path in PATHS for answer in (api.get(path), api.get(path, params=given), api.post(path))):
        assert answer.status_code == 401 and "headway" in answer.json()["error"]
        assert "set-cookie" not in answer.headers and "one" not in answer.text


def test_a_person_without_the_token_is_told_what_to_do(bench):
    browser = asker(bench, None)
    browser.headers["accept"] = "text/html,application/xhtml+xml,*/*;q=0.8"
    for path, said in (("/run/runs/one", "token alone"), ("/?token=wrong", "This token is wrong")):
        answer = browser.get(path)
        assert answer.status_code == 401 and answer.headers["content-type"].startswith("text/html")
        assert "headway open" in answer.text and said in answer.text and "set-cookie" not in answer.headers
        assert "<script" not in answer.text and "unsafe" not in answer.headers["content-security-policy"]
        assert str(bench.folder) not in answer.text and "demo" not in answer.text
    assert browser.get("/", headers={"host": "evil.example"}).headers["content-type"].startswith("text/html")
    pasted = f" http://{HOST}/?token={TOKEN}"  # the whole address, pasted into the field
    landed = browser.get("/studies", params={"token": pasted})
    assert landed.status_code == 303 and landed.headers["location"] == "/studies"


def test_opening_the_address_sets_a_cookie_that_suffices_afterwards(bench):
    browser = asker(bench, None)
    answer = browser.get("/run/runs/one", params={"token": TOKEN, "smooth": "3"})
    assert answer.status_code == 303 and answer.headers["location"] == "/run/runs/one?smooth=3"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert browser.get("/api/table").status_code == 200
    of_another_folder = asker(Bench(bench.folder.parent), None)
    of_another_folder.cookies.update(browser.cookies)
    assert of_another_folder.get("/api/table").status_code == 401


def test_redirects_never_lead_to_another_host(bench):
    answer = asker(bench, None).get("//evil.example/runs", params={"token": TOKEN})
    assert answer.headers.get("location", "/").startswith("/") and "//" not in answer.headers.get("location", "")
    asked = {
        "method": "GET",
        "query_string": f"token={TOKEN}".encode(),
        "path": "",
        "raw_path": b"/\\evil.example/runs",
    }
    assert guard.Guard(None, TOKEN, bench.cookie, {HOST})._landing(asked) == "/evil.example/runs"  # as browsers read it


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost:8765.evil.example", ""])
def test_a_wrong_host_is_refused(bench, host):
    assert asker(bench).get("/api/table", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("origin", ["http://evil.example", f"https://{HOST}", "http://127.0.0.1:1", "null"])
def test_a_wrong_origin_is_refused(bench, origin):
    assert asker(bench).get("/api/table", headers={"origin": origin}).status_code == 403


def test_a_change_by_cookie_must_have_an_origin(bench):
    browser = asker(bench, None)
    browser.get("/", params={"token": TOKEN})
    assert browser.post("/api/stop/run/runs/one").status_code == 403
    answer = browser.post("/api/stop/run/runs/one", headers={"origin": f"http://{HOST}"})
    assert answer.status_code == 422 and "nothing to stop" in answer.json()["error"]


@pytest.mark.parametrize(
    "name",
    [
        "../elsewhere/secret",
        "runs/../../elsewhere/secret",
        "/etc",
        "runs//one",
        ".",
        "runs/one\0",
        "",
        "x" * 5000,
        "link",
        "runs/link",
        "%2e%2e/elsewhere/secret",
        "runs/..%2f..%2felsewhere%2fsecret",
        "runs/chain/x",
    ],
)
def test_paths_and_links_to_outside_are_not_found(bench, name):
    outside = bench.folder.parent / "elsewhere" / "secret"
    for link in (bench.folder / "link", bench.folder / "runs" / "link"):
        link.symlink_to(outside)
    (bench.folder / "runs" / "chain").symlink_to(bench.folder / "runs" / "chain")
    api = asker(bench)
    for kind in ("run", "metrics", "study", "report", "conclusion"):
        answer = api.get(f"/api/{kind}/{name}".replace("\0", "%00"))
        assert answer.status_code == 404 and "perplexity" not in answer.text, kind


def test_links_to_outside_are_not_listed(bench):
    (bench.folder / "runs" / "link").symlink_to(bench.folder.parent / "elsewhere" / "secret")
    (bench.folder / "all").symlink_to(bench.folder.parent / "elsewhere")
    assert [row["name"] for row in asker(bench).get("/api/table").json()["runs"]] == ["runs/one"]


@pytest.mark.parametrize("file", ["recipe.yaml", "environment.json", "report.html", "metrics.jsonl", "run.json"])
def test_a_file_of_a_run_that_links_to_outside_is_not_read(bench, file):
    """A received folder may contain a recipe.yaml that is a link to a secret key."""
    path, secret = bench.folder / "runs" / "one" / file, bench.folder.parent / "key"
    if not path.exists():
        path.write_text("{}")
    secret.write_text(path.read_text("utf-8").replace("demo", "PRIVATE").replace("layers", "PRIVATE") + "\n")
    api = asker(bench)
    for link in (False, True):
        if link:
            path.unlink()
            path.symlink_to(secret)
        answers = [api.get(f"/api/{kind}/runs/one") for kind in ("run", "report", "metrics")]
        assert link == all(answer.status_code == 404 for answer in answers)
        assert "PRIVATE" not in "".join(a.text for a in (*answers, api.get("/api/table"), api.get("/api/runs")))


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/step-20/model.safetensors", "deep/er/tokenizer.json"])
def test_a_link_to_outside_in_a_run_or_study_is_not_followed(bench, place):
    """Weights and tokenizers are read by other code than the table; links among them are not followed either."""
    study = bench.folder / "studies" / "s"
    within = make_run(study / "runs" / "a.seed-0")
    (study / "study.yaml").write_text("title: s\n")
    outside = bench.folder.parent / "elsewhere" / "secret"
    (inside := bench.folder / "weights").write_text("ours")
    for run, names in ((bench.folder / "runs" / "one", ["run/runs/one"]), (within, ["study/studies/s"])):
        link = run / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(inside)
        api = asker(bench)
        assert all(api.get(f"/api/{name}").status_code == 200 for name in names), "a link to a file inside"
        link.unlink()
        link.symlink_to(outside)
        for name in names:
            answer = api.get(f"/api/{name}")
            assert answer.status_code == 404 and f"{place} in it is a link" in answer.json()["error"]
        asked = {"run": names[0].partition("/")[2], "text": "x"}
        assert api.post("/api/ask/look/maps", json=asked).status_code == 404


def test_no_link_to_outside_is_read_through_studies_cases_or_jobs(bench):
    outside = bench.folder.parent / "elsewhere"
    (outside / "private.yaml").write_text("title: PRIVATE\n")
    (outside / "said.log").write_text("PRIVATE")
    linked, case = bench.folder / "studies" / "s", bench.folder / "studies" / "B7-quick"
    linked.mkdir(parents=True)
    (linked / "study.yaml").symlink_to(outside / "private.yaml")
    case.symlink_to(outside)
    jobs = bench.folder / ".headway" / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "j.json").write_text('{"command": "", "process": 1, "started": 0}')
    (jobs / "j.log").symlink_to(outside / "said.log")
    (jobs / "half.json").write_text("{}")
    (jobs / "half.log").write_text("")
    api = asker(bench)
    assert api.get("/api/studies").json() == {"studies": []}
    assert api.get("/api/jobs").json() == {"jobs": []} and api.get("/api/job/j").status_code == 422
    answer = api.get("/api/case/B7")
    assert answer.status_code == 404 and "leads out" in answer.json()["error"]


def test_nothing_is_started_through_a_link_to_outside(bench):
    (bench.folder / ".headway").symlink_to(bench.folder.parent / "elsewhere")
    assert asker(bench).post("/api/train", json={"recipe": "demo"}).status_code == 422
    assert not list((bench.folder.parent / "elsewhere" / "jobs").glob("*"))


def test_only_headways_static_files_are_served(bench):
    api = asker(bench)
    assert api.get("/static/main.js").status_code == 200
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/nothing.js", "/static/views"):
        assert "def create_app" not in api.get(path).text
    assert api.get("/static/nothing.js").status_code == 404


def test_every_answer_has_a_content_security_policy(bench):
    api = asker(bench)
    for path in PATHS[:-2]:
        policy = api.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert api.get(path).headers["x-content-type-options"] == "nosniff"


def test_a_report_cannot_run_scripts(bench):
    (bench.folder / "runs" / "one" / "report.html").write_text("<script>alert(1)</script>")
    policy = asker(bench).get("/api/report/runs/one").headers["content-security-policy"]
    assert policy.startswith("sandbox;") and "allow-scripts" not in policy and "default-src 'none'" in policy


def test_with_read_only_nothing_is_started_or_stopped(bench, monkeypatch):
    read_only = Bench(bench.folder, read_only=True)
    monkeypatch.setattr(read_only.jobs, "start", lambda words: pytest.fail("something was started"))
    api = asker(read_only)
    described = api.get("/api/openapi.json").json()["paths"]
    changes = [path for path, methods in described.items() if "post" in methods and "/ask/" not in path]
    assert len(changes) > 5
    for path in changes:
        answer = api.post(path.replace("{name}", "runs/one"), json={"recipe": "demo"})
        assert answer.status_code == 403 and "--read-only" in answer.json()["error"], path
    assert api.get("/api/table").status_code == 200 and api.delete("/api/table").status_code == 403


def test_a_body_declared_too_long_is_refused(bench):
    answer = asker(bench).post("/api/train", content=b"x" * (guard.LARGEST_BODY + 1))
    assert answer.status_code == 413


def asked(bench, receive, headers=()):
    """A request whose body the test sends piece by piece."""
    from headway.workbench.app import create_app

    sent = []
    given = [(b"host", HOST.encode()), (b"authorization", f"Bearer {TOKEN}".encode()), *headers]
    scope = {"type": "http", "method": "POST", "path": "/api/train", "query_string": b"", "headers": given}

    async def send(message):
        sent.append(message)

    asyncio.run(create_app(bench, TOKEN, {HOST})(scope, receive, send))
    return sent[0]["status"]


def test_an_endless_body_is_cut_off(bench):
    read = 0

    async def endless():
        nonlocal read
        read += 1 << 16
        return {"type": "http.request", "body": b"x" * (1 << 16), "more_body": True}

    assert asked(bench, endless) == 413 and read <= guard.LARGEST_BODY + (2 << 16)


def test_a_body_that_never_arrives_times_out(bench, monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.05)

    async def silent():
        await asyncio.sleep(60)

    assert asked(bench, silent, [(b"content-length", b"10")]) == 408


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'{"recipe": 3}', b'{"recipe": "../../etc/passwd"}', b'{"recipe": "nothing"}'),
        *(b'{"recipe": "demo", "changes": ["--runs=/tmp"]}', b'{"recipe": "demo", "name": "../x"}'),
        *(b'{"recipe": "--help"}', b"[" * 100_000),
    ],
)
def test_invalid_requests_start_nothing(bench, monkeypatch, body):
    monkeypatch.setattr(bench.jobs, "start", lambda words: pytest.fail(f"started {words}"))
    answer = asker(bench).post("/api/train", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 404, 422) and answer.json()["error"]


def test_names_and_texts_are_sent_as_json_and_never_as_html(bench):
    wicked = "<img src=x onerror=alert(1)>"
    make_run(bench.folder / "runs" / wicked, reason=wicked)
    api = asker(bench)
    for path in ("/api/table", f"/api/run/runs/{wicked}", f"/api/run/{wicked}", f"/runs?filter={wicked}"):
        answer = api.get(path)
        assert answer.headers["content-type"].startswith("application/json") or wicked not in answer.text
