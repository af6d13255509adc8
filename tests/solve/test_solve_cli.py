"""`headway solve` on the command line."""

from functools import partial

import numpy as np
import pytest

from headway.cli.solve import app

VERBS = sorted((c.name or c.callback.__name__).replace("_", "-") for c in app.registered_commands if c.callback)
TRIANGLE = "1,0; 0,1; -1,-1"


@pytest.fixture
def solve(command_line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return partial(command_line, "solve")


def test_the_verbs():
    assert VERBS == ["convolution", "fixed-layer", "key", "matrix", "max-pool", "mean-pool", "query", "shift"]


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_shows_an_example_and_the_json_option(solve, verb):
    answer = solve(verb, "--help")
    assert answer.code == 0
    assert f"Example: headway solve {verb}" in answer.words
    assert "--json" in answer.out and "--plot" in answer.out


QUESTIONS = {
    "query": ["query", TRIANGLE, "--select", "0"],
    "impossible query": ["query", "1,0; 0,1; .5,.5", "--select", "2"],
    "mean": ["query", TRIANGLE, "--average", "all"],
    "subset": ["query", TRIANGLE, "--average", "0,2", "--scaled"],
    "distribution": ["query", TRIANGLE, "--weights", ".5,.3,.2"],
    "identity": ["query", TRIANGLE, "--identity"],
    "one key": ["query", "5,5", "--average", "all"],
    "zeros": ["query", "0,0; 0,0", "--select", "1"],
    "on a line": ["query", "1,1; 2,2; 3,3", "--average", "0,2"],
    "huge": ["query", "1e200,0; 0,1e200; -1e200,-1e200", "--select", "0"],
    "zero query": ["key", "0,0", "1,0; 0,1", "--replace", "0", "--select", "0"],
    "wide": ["query", "1,0,0; 0,1,0", "--select", "1"],
    "key": ["key", "2,1", TRIANGLE, "--replace", "2", "--select", "2"],
    "unit key": ["key", "2,1", TRIANGLE, "--replace", "2", "--select", "2", "--norm", "1"],
    "convolution": ["convolution", "2,0,1"],
    "signed": ["convolution", "-1,0,1", "--channels", "2"],
    "even": ["convolution", "1,1", "--centre", "0"],
    "shift": ["shift", "-2"],
    "mean-pool": ["mean-pool", "3"],
    "max-pool": ["max-pool", "3", "--within", "1e-2"],
    "matrix": ["matrix", ".5,.5; 0,1", "--width", "3"],
    "fixed-layer": ["fixed-layer", "--tokens", "3", "--width", "4", "--heads", "2"],
    "blind": ["fixed-layer", "--blind"],
    "own layer": ["fixed-layer", "--queries", "1,0; 0,0", "--keys", "-1,0; 0,1"],
    "digits": ["query", "0,0; 0.6e12,0.8e12; 0.8e-12,0.3e-12", "--weights", ".5,.3,.2"],
}


@pytest.mark.parametrize("words", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_every_answer_as_text_as_json_and_as_a_picture(solve, tmp_path, words):
    said = solve(*words)
    assert said.code == 0, said.err
    found = solve(*words, "--json", "--plot", "picture.svg").json
    assert found["plot"] == "picture.svg" and "<svg" in (tmp_path / "picture.svg").read_text()
    lines = found.get("derivation") or [line for a in found["answers"] for line in a["derivation"]]
    assert all(line in said.out for line in lines) or "answers" in found


def test_a_picture_with_the_text(solve, tmp_path):
    said = solve(*QUESTIONS["query"], "--plot", "picture.png")
    assert said.code == 0 and said.out.splitlines()[-1] == "drawn: picture.png"
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_a_query_that_selects(solve):
    found = solve("query", TRIANGLE, "--select", "0", "--json").json
    scores = np.array([[1, 0], [0, 1], [-1, -1]]) @ found["query"]
    assert np.exp(scores[0]) / np.exp(scores).sum() == pytest.approx(1, abs=1.1e-6)


def test_a_certificate(solve):
    answer = solve("query", "1,0; 0,1; .5,.5", "--select", "2")
    assert "Impossible: k2 = 0.5·k0 + 0.5·k1." in answer.out
    assert "The largest weight it can get or approach is exp(−H(μ)) = 0.3333." in answer.out


@pytest.mark.parametrize(
    "words",
    [
        ["query", TRIANGLE, "--weights", ".5,.3,.2"],
        ["key", "5,5", TRIANGLE, "--replace", "2", "--average", "0,1,2", "--norm", "1"],
        ["convolution", ".1,.2,.7"],
        ["mean-pool", "3"],
        ["matrix", ".3,.7; .2,.8", "--width", "3"],
        ["fixed-layer"],
        ["fixed-layer", "--tokens", "1"],
    ],
)
def test_rounding_errors_are_shown_as_zero(solve, words):
    said = solve(*words).out
    assert "rounding" in said
    assert not any(f"e−{power}" in said for power in range(13, 20))


@pytest.mark.parametrize(
    ("name", "text"),
    [("k.csv", "\ufeff1,0\n0,1\n-1,-1\n"), ("k.CSV", "1,0\n0,1\n-1,-1\n"), ("k.json", "[[1,0],[0,1],[-1,-1]]")],
)
def test_keys_from_a_file(solve, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    np.save(tmp_path / "k.npy", np.array([[1.0, 0], [0, 1], [-1, -1]]))
    typed = solve("query", TRIANGLE, "--select", "1", "--json").json
    assert solve("query", name, "--select", "1", "--json").json == typed
    assert solve("query", "k.npy", "--select", "1", "--json").json == typed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["query", TRIANGLE], "give one of --select, --average and --weights"),
        (["query", TRIANGLE, "--select", "0", "--average", "all"], "give one of --select, --average and --weights"),
        (["query", TRIANGLE, "--select", "7"], "there is no key 7; the 3 keys are numbered 0 to 2"),
        (["query", TRIANGLE, "--select", "0", "--identity"], "--identity cannot be combined"),
        (["query", TRIANGLE, "--average", "0,1.5"], "1.5 is not the index of a key"),
        (["query", TRIANGLE, "--weights", ".5,.4,0"], "the wanted weights sum to 0.9, not to 1"),
        (["query", TRIANGLE, "--select", "0", "--within", "0"], "within = 0: the allowed distance"),
        (["query", TRIANGLE, "--select", "0", "--plot", "x.bmp"], "the picture's name must end in .png, .svg or .pdf"),
        (["query", TRIANGLE, "--select", "0", "--plot", "no/x.png"], "there is no folder no"),
        (["query", "1,nan; 0,1", "--select", "0"], "key 0 has nan at index 1"),
        (["query", "1,0; 0", "--select", "0"], "keys: row 1 has 1 numbers, but row 0 has 2"),
        (["query", "1,x", "--select", "0"], "keys, row 0: 'x' is not a number"),
        (["query", TRIANGLE, "--average", "nan"], "nan is not the index of a key"),
        (["query", TRIANGLE, "--averag", "0"], "unknown option --averag; did you mean '--average'?"),
        (["convolution", "-1,0,1", "--chanels", "2"], "unknown option --chanels; did you mean '--channels'?"),
        (["query", "folder.csv", "--select", "0"], "keys: folder.csv cannot be read"),
        (["query", "none.csv", "--select", "0"], "keys: there is no file none.csv"),
        (["query", "broken.json", "--select", "0"], "keys: broken.json is not a table of numbers"),
        (["query", "broken.npy", "--select", "0"], "keys: broken.npy is not a table of numbers"),
        (["query", "empty.npy", "--select", "0"], "keys: empty.npy is not a table of numbers"),
        (
            ["query", "complex.npy", "--select", "0"],
            "complex.npy is not a table of numbers: it must be one array of",
        ),
        (["query", "keys", "--select", "0"], "keys: 'keys' is neither numbers such as '1,0; 0,1' nor a file"),
        (["query", TRIANGLE, "--average", "al"], "average (keys, or all): 'al' is not a number"),
        (["max-pool", "3", "--windw", "3"], "unknown option --windw; did you mean '--within'?"),
        (["matrix", "-1,2; 0,1"], "the weights of query 0 have -1 for key 0"),
        (["matrix", "1,0; 0,1", "--width", "100000"], "and M has as many rows and columns; at most 4,096"),
        (["fixed-layer", "--tokens", "100000"], "and M has as many rows and columns; at most 4,096"),
        (
            ["convolution", "1,2,1", "--channels", "100000"],
            "channels = 100000; it must be between 1 and 1,024",
        ),
        (["key", "2,1", TRIANGLE, "--replace", "3", "--select", "0"], "there is no key 3"),
        (["key", "2,1", TRIANGLE, "--replace", "2", "--select", "2", "--norm", "0"], "norm = 0; it must be above 0"),
        (["convolution", "1,2"], "a kernel of 2 taps has no middle one: set centre"),
        (["max-pool", "4"], "a window of 4 slots has no middle one"),
        (["matrix", ".5,.5"], "attention weights must be square"),
        (
            ["fixed-layer", "--queries", "1,0; 0,1", "--keys", "1"],
            "keys: a matrix of 1 × 1; each must consist of 2 × 2",
        ),
        (["fixed-layer", "--queries", "1,0; 0,1", "--blind"], "--blind needs a layer with random weights"),
        (["fixed-layer", "--values", "1", "--heads", "2"], "a width of 1 cannot be divided among 2 heads"),
        (["fixed-layer", "--width", "5"], "a width of 5 cannot be divided among 2 heads"),
    ],
)
def test_a_mistake_is_one_message(solve, tmp_path, words, message):
    (tmp_path / "broken.json").write_text('[[1, "a"]]')
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "broken.npy").write_bytes(b"nothing")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "complex.npy", np.eye(2) * 1j)
    answer = solve(*words)
    assert answer.code == 2
    assert answer.out == "" and answer.err.startswith("headway: ") and message in answer.err
    assert "Traceback" not in answer.err
