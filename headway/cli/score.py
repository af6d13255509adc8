"""`headway score`: perplexity or accuracy of splits, files and texts; also for ensembles and by segment length."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli.options import AsJson, RunsFolder, Strict, Trust, Which, With, print_json, run_argument, use_plugins
from headway.core.errors import UserError

if TYPE_CHECKING:
    from headway.audit.audit import Report
    from headway.experiment.ensemble import Ensemble
    from headway.experiment.lengths import LengthPage
    from headway.run.folder import Run
    from headway.tasks.abilities import GivenFile


def score(
    run: Annotated[
        list[str],
        run_argument("A run's name or folder; several with --ensemble or --lengths."),
    ],
    split: Annotated[list[str] | None, typer.Option(help="Which splits; default: as in the recipe.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Score a text file instead; for a classifier, a table with labels.")
    ] = None,
    column: Annotated[list[str] | None, typer.Option(help="With --file, for a table: the column of the text.")] = None,
    label: Annotated[str | None, typer.Option(help="With --file, for a table: the column of the label.")] = None,
    encoding: Annotated[str | None, typer.Option(help="With --file: its encoding, such as cp1252 or latin-1.")] = None,
    text: Annotated[str | None, typer.Option(help="Score this text, token by token.")] = None,
    segment: Annotated[int | None, typer.Option(help="Segment length: tokens read at once.", min=1)] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens by which the window moves.", min=1)] = None,
    state: Annotated[
        Literal["carried", "fresh"] | None,
        typer.Option(help="State between segments (recurrence, memory): carried over, or fresh in each."),
    ] = None,
    ensemble: Annotated[bool, typer.Option("--ensemble", help="Average the probabilities of the runs.")] = False,
    lengths: Annotated[
        str | None,
        typer.Option(help="Score with segments of these lengths: apart, sliding, carried.", metavar="10,20,…"),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="With --lengths: how many tokens of the split; default: 20000.", min=2)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="With --lengths: draw a .html, .svg or .png file.", metavar="FILE"),
    ] = None,
    checkpoint: Which = "auto",
    strict: Strict = False,
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Score a split, a file or a text, and say what the scores were measured on."""
    from headway.answers.run_summaries import run_as_json
    from headway.cli import printing
    from headway.experiment.ensemble import score_together
    from headway.experiment.evaluate import audited, score_file, score_sentence, score_splits_again, with_baselines_in
    from headway.run.folder import open_run
    from headway.tasks.abilities import ReadingWindow

    if sum(given is not None for given in (split, file, text)) > 1:
        raise UserError("give only one of --split, --file and --text")
    if file is None and (column or label or encoding):
        raise UserError("--column, --label and --encoding describe a file: give them with --file")
    use_plugins(with_, trust)
    opened, window = [open_run(name, runs) for name in run], ReadingWindow(segment, stride, state)
    if lengths is None and out is not None:
        raise UserError("--out draws the result of --lengths: give both")
    if lengths is None and tokens is not None:
        raise UserError("--tokens limits what --lengths reads: give both; without --lengths, the whole split is scored")
    if lengths is not None:
        if ensemble or any(window) or file is not None or text is not None:
            raise UserError("--lengths can only be combined with --split, --tokens and --out")
        reports = [audited(one) for one in opened]
        _show_lengths(_by_length(opened, lengths, split, tokens, checkpoint, out), out, as_json)
    elif ensemble:
        if file is not None or text is not None:
            raise UserError("an ensemble can be scored on splits of its data, not on a file or a text")
        reports = [audited(one) for one in opened]
        found = score_together(opened, split, window, checkpoint)
        reports[0] = with_baselines_in(opened[0], reports[0], window, checkpoint)
        _show_ensemble(found, reports, as_json)
    elif len(opened) > 1:
        raise UserError(f"{len(opened)} runs: add --ensemble to average them, or --lengths for a side-by-side table")
    else:
        (one,), shown = opened, None
        report = audited(one)  # before scoring, so that the scores are shown as soon as they are known
        if text is not None:
            shown, scores = score_sentence(one, text, window, checkpoint)
        elif file is not None:
            scores = score_file(one, _given(file, column or [], label, encoding), window, checkpoint)
        else:
            scores = score_splits_again(one, split, window, checkpoint)
            report = with_baselines_in(one, report, window, checkpoint)
        reports, weights = [report], one.weights(checkpoint)
        if as_json:
            typed = zip(shown.pieces, shown.nats, strict=True) if shown else ()
            by_token = {"tokens": [{"token": piece, "nats": nats} for piece, nats in typed]} if shown else {}
            print_json("score", {**run_as_json(one, scores, report, weights), **by_token})
        elif shown:
            printing.show_sentence(shown, scores, report, weights)
        else:
            printing.show_labelled(scores, report, weights)
    if strict and any(report.failures or not report.findings for report in reports):
        raise typer.Exit(1)


def _given(file: Path, columns: list[str], label: str | None, encoding: str | None) -> "GivenFile":
    from headway.data.running.sources import why_no_encoding
    from headway.data.tables import column_of
    from headway.tasks.abilities import GivenFile

    if why := why_no_encoding(encoding):
        raise UserError(f"--encoding: {why}")
    of_label = None if label is None else column_of(label)
    return GivenFile(file.expanduser(), encoding, tuple(map(column_of, columns)), of_label)


def _by_length(
    runs: "Sequence[Run]", lengths: str, splits: list[str] | None, tokens: int | None, which: str, out: Path | None
) -> "LengthPage":
    from headway.draw.save import check_place
    from headway.experiment.lengths import by_length
    from headway.scoring.length import TOKENS

    if out is not None:
        check_place(out)
    if len(splits or ()) > 1:
        raise UserError("--lengths reads one split: give --split once")
    try:
        asked = [int(length) for length in lengths.split(",")]
    except ValueError:
        raise UserError(f"--lengths: expected whole numbers such as 10,20,50, not '{lengths}'") from None
    return by_length(runs, asked, splits[0] if splits else "valid", tokens or TOKENS, which)


def _show_lengths(page: "LengthPage", out: Path | None, as_json: bool) -> None:
    from headway.cli import printing

    if out is not None:
        page.draw().save(out)
    if as_json:
        print_json("score", {**page.as_json(), "file": None if out is None else str(out)})
        return
    print(f"nats per token · the first {page.tokens:,} tokens of {page.split}, the same for every length")
    columns, rows = page.table.columns, page.table.rows
    if len(runs := {row[0] for row in rows}) == 1:  # print the only run's name once, instead of a column
        print(*runs)
        columns, rows = columns[1:], [row[1:] for row in rows]
    printing.show_table(columns, rows)
    printing.show_note(page.table.note)
    if out is not None:
        print(out)


def _show_ensemble(found: "Ensemble", reports: "Sequence[Report]", as_json: bool) -> None:
    from headway.audit.audit import Report
    from headway.cli import printing

    if as_json:
        answer = found.as_json()
        for member, report in zip(answer["members"], reports, strict=True):
            member["audits"] = report.as_json()
        print_json("score", answer)
        return
    printing.show_labelled(found.scores, Report(baselines=reports[0].baselines))
    print()
    columns = ["", "each run", "mean of runs", "ensemble", "gain over the mean"]
    printing.show_table(columns, [gain.told for gain in found.gains])
    units = ", ".join(f"{gain.name}: {gain.unit}, {gain.pieces:,} pieces" for gain in found.gains)
    print(f"95 % intervals from resampling pieces of the split, for these runs ({units})")
    printing.show_warnings_and_failures(reports)
