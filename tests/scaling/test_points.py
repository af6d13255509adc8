"""Tables of scaling points: names of columns, units, and everything that can be wrong."""

from pathlib import Path

import numpy as np
import pytest

from headway.core.errors import UserError
from headway.scaling.points import Choice, read_points
from headway.stats.scaling import Law

LAW = Law(E=1.7, A=400.0, B=410.0, alpha=0.34, beta=0.28)


def rows(budgets: int = 3, sizes: int = 4) -> list[dict[str, float]]:
    found = []
    for flops in np.geomspace(1e14, 1e16, budgets):
        for n in np.geomspace(3e5, 3e6, sizes) * (flops / 1e14) ** 0.5:
            d = flops / 6 / n
            found.append({"parameters": n, "tokens": d, "flops": flops, "loss": float(LAW.loss(n, d))})
    return found


def written(tmp_path: Path, rows, names=None, separator=",") -> Path:
    names = names or {key: key for key in rows[0]}
    lines = [separator.join(names.values())]
    lines += [separator.join(str(row[key]) for key in names) for row in rows]
    path = tmp_path / "points.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def complaint(path: Path, choice: Choice | None = None) -> str:
    with pytest.raises(UserError) as found:
        read_points(path, choice)
    return str(found.value)


@pytest.mark.parametrize("separator", [",", "\t", ";"])
@pytest.mark.parametrize(
    "names",
    [
        {"parameters": "Model Size", "tokens": "Training Tokens", "flops": "Training FLOP", "loss": "loss"},
        {"loss": "val_loss", "parameters": "n_params", "flops": "compute"},
        {"loss": "L", "parameters": "N", "tokens": "D"},
        {"parameters": "params", "tokens": "tokens", "loss": "final loss"},
    ],
)
def test_columns_are_recognised_by_their_usual_names(tmp_path, names, separator):
    found = read_points(written(tmp_path, rows(), names, separator))
    np.testing.assert_allclose(found.points.tokens, [row["tokens"] for row in rows()])
    np.testing.assert_allclose(found.points.flops, [row["flops"] for row in rows()])
    assert len(found.groups) == 3
    assert any("6·N·D" in note for note in found.notes()) == ("flops" not in names)


def test_losses_that_are_not_finite_are_counted_and_left_out(tmp_path):
    given = rows(4)
    for k, value in enumerate(("nan", "", "inf", "NA")):
        given[3 * k]["loss"] = value  # pyright: ignore[reportArgumentType]
    found = read_points(written(tmp_path, given))
    assert (found.not_finite, len(found.points)) == (4, 12)
    assert "4 rows have no finite loss" in found.notes()[0]


def test_repeated_rows_count_once_and_seeds_are_no_repetition(tmp_path):
    given = rows()
    seeds = [{**row, "loss": row["loss"] * 1.001} for row in given]
    found = read_points(written(tmp_path, [*given, *seeds, *given[:2]]))
    assert (found.repeated, len(found.points)) == (2, 24)


def test_other_counts_of_parameters_are_read_too(tmp_path):
    given = [{**row, "parameters_without_embeddings": 0.8 * row["parameters"], "seed": 1} for row in rows()]
    found = read_points(written(tmp_path, given))
    assert list(found.conventions) == ["parameters_without_embeddings"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: row.pop("loss"), "has no column named 'loss'"),
        (lambda row: row.update(validation_los=row.pop("loss")), "has no column named 'loss'"),
        (lambda row: (row.pop("tokens"), row.pop("flops")), "neither a column of tokens nor of FLOPs"),
        (lambda row: row.update(parameters=-1), "expected more than 0"),
        (lambda row: row.update(parameters="12M"), "'12M' in column 'parameters' is not a number"),
        (lambda row: row.update(loss=np.exp(30)), "look like perplexities"),
        (lambda row: row.update(loss=-row["loss"]), "above 0"),
        (lambda row: row.update(flops=1e15, tokens=1e15 / row["parameters"] / 6), "at least two budgets"),
        (
            lambda row: row.update(tokens=row["tokens"] / 1e6),
            "to 555.6 seem to be in millions; if so, give --unit tokens=1e+06",
        ),
        (lambda row: row.update(tokens=row["tokens"] / 1e9), "--unit tokens=1e+09"),
        (lambda row: row.update(parameters=row["parameters"] / 1e6), "--unit parameters=1e+06"),
        (lambda row: row.update(flops=row["flops"] / 1e15), "--unit flops=1e+15"),
        (lambda row: row.update(flops=np.log10(row["flops"])), "logarithms"),
        (lambda row: row.update(tokens=row["tokens"] * 1e3), "do not fit together"),
    ],
)
def test_mistakes_are_clear_messages(tmp_path, change, words):
    given = rows()
    for row in given:
        change(row)
    assert words in complaint(written(tmp_path, given))


def test_tokens_in_millions_without_flops_to_check_them(tmp_path):
    given = [{**row, "tokens": row["tokens"] / 1e6} for row in rows()]
    names = {"parameters": "parameters", "tokens": "tokens", "loss": "loss"}
    path = written(tmp_path, given, names)
    assert "--unit tokens=1e+06" in complaint(path)
    found = read_points(path, Choice(units={"tokens": 1e6}))
    np.testing.assert_allclose(found.points.flops, [row["flops"] for row in rows()])


def test_a_near_miss_names_the_column(tmp_path):
    names = {"parameters": "parameters", "tokens": "tokens", "loss": "smoothed loss value"}
    assert "--loss 'smoothed loss value'" in complaint(written(tmp_path, rows(), names))
    asked = complaint(written(tmp_path, rows()), Choice(columns={"tokens": "token"}))
    assert "no column 'token' (--tokens); did you mean 'tokens'?" in asked
    assert "did you mean 'tokens'" in complaint(written(tmp_path, rows()), Choice(units={"token": 1.0}))


def test_files_that_are_no_tables(tmp_path):
    (tmp_path / "empty.csv").write_text("\n")
    assert "is empty" in complaint(tmp_path / "empty.csv")
    assert "is a folder" in complaint(tmp_path)
    assert "cannot read" in complaint(tmp_path / "none.csv")
    (tmp_path / "numbers.csv").write_text("1,2,3\n4,5,6\n")
    assert "name the columns" in complaint(tmp_path / "numbers.csv")
    assert "too few" in complaint(written(tmp_path, rows(2, 2)))
    (tmp_path / "short.csv").write_text("parameters,tokens,loss\n1e6,1e7\n")
    assert "row 1: only 2 cells" in complaint(tmp_path / "short.csv")


def test_rows_in_other_units_than_the_rest_are_refused(tmp_path):
    given = rows()
    given[5]["tokens"] /= 1e6
    assert "rows in different units" in complaint(written(tmp_path, given))
    names = {"parameters": "N", "tokens": "D", "loss": "loss"}
    given[5]["tokens"] /= 10
    assert "rows in different units" in complaint(written(tmp_path, given, names))
    assert "--unit tokens=1e+09" in complaint(
        written(tmp_path, [{**row, "tokens": row["tokens"] / 1e9} for row in rows()], names)
    )


def test_losses_that_are_not_in_nats(tmp_path):
    names = {"parameters": "N", "tokens": "D", "loss": "bits_per_token"}
    columns = {"loss": "bits_per_token"}
    path = written(tmp_path, [{**row, "loss": row["loss"] / np.log(2)} for row in rows()], names)
    assert "--unit loss=0.693147" in complaint(path, Choice(columns))
    found = read_points(path, Choice(columns, {"loss": np.log(2)}))
    np.testing.assert_allclose(found.points.loss, [row["loss"] for row in rows()])
    given = [{**row, "loss": float(np.exp(row["loss"]))} for row in rows()]
    assert "look like perplexities" in complaint(written(tmp_path, given))  # some are below 25
    assert "looks like a perplexity" in complaint(
        written(tmp_path, given, {**names, "loss": "PPL"}), Choice({"loss": "PPL"})
    )


def test_tables_that_are_empty_or_ambiguous(tmp_path):
    assert "all losses are 3" in complaint(written(tmp_path, [{**row, "loss": 3.0} for row in rows()]))
    assert "two columns are named" in complaint(
        written(tmp_path, rows(), {"parameters": "N", "tokens": "N", "flops": "C", "loss": "loss"})
    )
