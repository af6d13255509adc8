"""The command line: verbs that parse, call and print. No logic lives here, and nothing heavy is imported at the top."""

import errno
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.errors import EndedElsewhereError, UserError
from headway.solve.cli import app as solve
from headway.study.case_cli import case, cases
from headway.study.cli import app as study
from headway.study.tune_cli import tune

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="A laboratory for attention models: change one thing, and know whether it mattered.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(solve, name="solve")
app.add_typer(study, name="study")

RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder that holds run folders.", metavar="DIR")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
Changes = Annotated[
    list[str] | None, typer.Argument(help="Changes, such as model.positions=alibi seed=3.", metavar="KEY=VALUE")
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if an audit fails.")]
Which = Annotated[str, typer.Option("--checkpoint", help="auto, best, last, or a step.", metavar="WHICH")]


@app.command(epilog="Example: headway train shakespeare-char-cpu model.positions=alibi --vary seed=0..3")
def train(
    recipe: Annotated[
        str, typer.Argument(help="A packaged recipe (see `headway recipes`) or a YAML file.", metavar="RECIPE")
    ],
    changes: Changes = None,
    name: Annotated[str | None, typer.Option(help="The run's name; default: the recipe's.")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="Train one replica per value, all as one: seed=0..7, training.optimizer.learning_rate=1e-3,3e-3. "
            "Given twice: every combination.",
            metavar="KEY=VALUES",
        ),
    ] = None,
    together: Annotated[
        int | None, typer.Option(help="At most this many replicas at once; default: as many as fit.", min=1)
    ] = None,
    runs: RunsFolder = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Show the curves in tensorboard, trackio or mlflow too. May be repeated.", metavar="TRACKER"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model, or a population of them, and score it."""
    from headway import printing, progress
    from headway.packing import train_in_turns
    from headway.recipe import load
    from headway.trackers import Tracking
    from headway.training.processes import started
    from headway.variation import varied

    with started() as processes:  # several under torchrun, else just us
        with processes.together():
            base = load(recipe, changes or [])
            names, recipes = varied(base, name or Path(recipe).stem, vary or [])
            observers = [Tracking(track, runs)] if track and processes.is_writer else []
        made = train_in_turns(recipes, names, runs, resume, progress.for_this_terminal(), together, observers)
    if not processes.is_writer:
        return
    if as_json:
        _print_json(printing.runs_as_json(made))
    else:
        printing.show_scores(made)
    interrupted = [run for run in made if str(run.facts["status"]).startswith("interrupted")]
    if interrupted:
        words = [*processes.command, *(w for w in sys.argv[1:] if w not in ("--resume", "--json")), "--resume"]
        again = shlex.join(words)
        print(f"stopped at step {interrupted[0].facts['step']:,} and saved; to go on: {again}", file=sys.stderr)
        raise typer.Exit(130)


@app.command(epilog='Example: headway score shakespeare-char-cpu --text "To be, or not to be"')
def score(
    run: Annotated[str, typer.Argument(help="A run's name or folder.", metavar="RUN")],
    split: Annotated[list[str] | None, typer.Option(help="Which splits; default: those of the recipe.")] = None,
    file: Annotated[Path | None, typer.Option(help="Score a text file instead.")] = None,
    text: Annotated[str | None, typer.Option(help="Score this text, token by token.")] = None,
    segment: Annotated[int | None, typer.Option(help="Tokens seen at once.", min=1)] = None,
    stride: Annotated[int | None, typer.Option(help="How far the window moves.", min=1)] = None,
    checkpoint: Which = "auto",
    strict: Strict = False,
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Perplexity or accuracy of a split, perplexity of a file or a sentence, with what it was measured on."""
    from headway import printing
    from headway.rescore import audited, score_file, score_sentence, score_splits_again
    from headway.run import open_run

    if sum(given is not None for given in (split, file, text)) > 1:
        raise UserError("--split, --file and --text are three different things to score: give one of them")
    opened = open_run(run, runs)
    if text is not None:
        scored, scores = score_sentence(opened, text, segment, stride, checkpoint)
        report = audited(opened)
        if as_json:
            tokens = [{"token": p, "nats": n} for p, n in zip(scored.pieces, scored.nats, strict=True)]
            _print_json({**printing.run_as_json(opened, scores, report), "tokens": tokens})
        else:
            printing.show_sentence(scored, scores, report)
    else:
        if file is not None:
            scores = score_file(opened, file, segment, stride, checkpoint)
        else:
            scores = score_splits_again(opened, split, segment, stride, checkpoint)
        report = audited(opened)
        if as_json:
            _print_json(printing.run_as_json(opened, scores, report))
        else:
            printing.show_labelled(scores, report)
    if strict and (report.failures or not report.findings):
        raise typer.Exit(1)


@app.command(epilog="Example: headway audit shakespeare-char-cpu, or headway audit --explain causality")
def audit(
    name: Annotated[
        str | None, typer.Argument(help="A run; or a recipe, before it is trained.", metavar="RUN|RECIPE")
    ] = None,
    changes: Changes = None,
    explain: Annotated[
        str | None, typer.Option(help="Say what this audit does, why, and what to do when it fails.", metavar="AUDIT")
    ] = None,
    strict: Strict = False,
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Check what a score rests on: the model, the data, the training."""
    from headway import printing
    from headway.audit.audit import find_audit
    from headway.audit.report import ALL_AUDITS, audit_by_name

    if explain is not None:
        found = find_audit(explain, ALL_AUDITS)
        if as_json:
            _print_json({"audit": found.name, "about": found.about, "explanation": found.explanation})
        else:
            printing.show_explanation(found)
        return
    if name is None:
        raise UserError("give a run or a recipe to audit, or --explain AUDIT")
    report = audit_by_name(name, changes or [], runs)
    if as_json:
        _print_json(report.as_json())
    else:
        printing.show_report(report)
    if strict and report.failures:
        raise typer.Exit(1)


@app.command(epilog='Example: headway sample shakespeare-char-cpu --prompt "ROMEO:" --tokens 200')
def sample(
    run: Annotated[str, typer.Argument(help="A run's name or folder.", metavar="RUN")],
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "\n",
    tokens: Annotated[int, typer.Option(help="How many tokens to draw.", min=1)] = 200,
    temperature: Annotated[float, typer.Option(help="0 = always the likeliest, 1 = as learnt.", min=0)] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Only among the k likeliest.", min=1)] = None,
    top_p: Annotated[float | None, typer.Option(help="Only the likeliest that reach this sum.", min=0, max=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.", min=0)] = 0,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Let a model write."""
    from headway.rescore import sample_text
    from headway.run import open_run

    opened = open_run(run, runs)
    show: Callable[[str], Any] = (lambda piece: None) if as_json else _print_now
    text, note = sample_text(opened, prompt, tokens, temperature, top_k, top_p, seed, checkpoint, show)
    if as_json:
        _print_json({"run": str(opened.folder), "prompt": prompt, "text": text, "note": note})
    else:
        print()
        if note:
            print(note, file=sys.stderr)


@app.command(epilog='Example: headway look speeches-lm "We are at war." -o maps.html')
def look(
    run: Annotated[str, typer.Argument(help="A run's name or folder.", metavar="RUN")],
    sentence: Annotated[str, typer.Argument(help="What the model is to read.", metavar="SENTENCE")],
    other: Annotated[
        str | None, typer.Option("--with", help="A second run, to be set beside the first.", metavar="RUN")
    ] = None,
    show: Annotated[
        str, typer.Option(help="heads: every map; rollout: all layers multiplied; gradients: for any model.")
    ] = "heads",
    layer: Annotated[int | None, typer.Option(help="Only this layer, counted from 0; where rollout ends.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head, counted from 0.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw it: a .html, .svg or .png file.", metavar="FILE")
    ] = None,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Attention maps of a sentence, with numbers for every head; drawn to a file, or in the terminal."""
    from headway import printing
    from headway.look import terminal
    from headway.look.drawing import check_place
    from headway.looking import look as look_into
    from headway.run import open_run

    if out is not None:
        check_place(out)
    opened = [open_run(name, runs) for name in (run, other) if name is not None]
    picture, numbers = look_into(opened, sentence, show, layer, head, checkpoint)
    if out is not None:
        picture.save(out)
    if as_json:
        _print_json({**numbers, "file": None if out is None else str(out)})
        return
    if out is None:
        terminal.show(picture)
        if picture.table is not None:
            printing.show_table(picture.table.columns, picture.table.rows)
    else:
        for note in picture.notes:
            print(note, file=sys.stderr)
        print(out)


@app.command(epilog='Example: headway classify python-modules "Run the event loop until the future is done."')
def classify(
    run: Annotated[str, typer.Argument(help="A classifier's run: its name or folder.", metavar="RUN")],
    text: Annotated[str, typer.Argument(help="The text.", metavar="TEXT")],
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Which class a text is of, by a classifier: the probability of each."""
    from headway import printing
    from headway.rescore import classify_text
    from headway.run import open_run

    opened = open_run(run, runs)
    found = classify_text(opened, text, checkpoint)
    if as_json:
        _print_json({"run": str(opened.folder), "text": text, **found.as_json()})
        return
    printing.show_chances(found.chances)
    for note in found.notes:
        print(note, file=sys.stderr)


@app.command(epilog="Example: headway export shakespeare-char-cpu --to gpt2 -o shakespeare-gpt2")
def export(
    run: Annotated[str, typer.Argument(help="A run's name or folder.", metavar="RUN")],
    to: Annotated[str, typer.Option(help="The format: gpt2.", metavar="FORMAT")] = "gpt2",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to make; default: RUN-gpt2.", metavar="FOLDER")
    ] = None,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a run's model and tokenizer as a folder that transformers loads."""
    from headway.exchange.export import export_run
    from headway.run import open_run

    made = export_run(open_run(run, runs), to, out, checkpoint)
    if as_json:
        _print_json(made.as_json())
    else:
        print(f"{made.folder}/: {', '.join(made.files)}")
        print(f'AutoModelForCausalLM and AutoTokenizer load it: .from_pretrained("{made.folder}")')


@app.command("import", epilog="Example: headway import gpt2/ --name gpt2 data.source=files data.path=corpus.txt")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="A GPT-2: a folder with config.json, model.safetensors, tokenizer.json; or hub:owner/name.",
            metavar="FOLDER",
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to the rest of the recipe, such as data.source=wikitext-2.", metavar="KEY=VALUE"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run's name; default: the folder's.")] = None,
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Make a run of a GPT-2 folder, to score it, let it write, or train it on."""
    from headway.exchange.arrival import import_folder, located

    made = import_folder(*located(source, name), runs, changes or [])
    if as_json:
        _print_json(made.as_json())
    else:
        for note in made.notes:
            print(note, file=sys.stderr)
        print(f"{made.run.folder}/: {made.parameters:,} parameters, {made.vocabulary:,} tokens")
        print(f"to let it write: {shlex.join(['headway', 'sample', str(made.run.folder)])}")


@app.command(epilog="Example: headway recipe shakespeare-char-cpu model.positions=t5")
def recipe(
    name: Annotated[str, typer.Argument(help="A packaged recipe or a YAML file.", metavar="RECIPE")],
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Print a whole recipe, annotated key by key. The output is itself a recipe."""
    from headway.recipe import load, read_text
    from headway.recipe_text import annotated, head_comment

    made = load(name, changes or [])
    if as_json:
        _print_json({"name": name, "hash": made.hash, "recipe": made.model_dump(mode="json")})
    else:
        print(head_comment(read_text(name)[0]) + f"# hash: {made.hash}\n\n" + annotated(made), end="")


@app.command(epilog="Example: headway recipes --json")
def recipes(as_json: AsJson = False) -> None:
    """List the recipes that come with Headway."""
    from headway import printing
    from headway.recipe import packaged
    from headway.recipe_text import first_sentence

    lines = {name: first_sentence(text) for name, text in sorted(packaged().items())}
    if as_json:
        _print_json({"recipes": lines})
    else:
        printing.show_table(["recipe", "what it is"], [[name, line] for name, line in lines.items()])


@app.command(epilog="Example: headway runs --runs demo")
def runs(runs: RunsFolder = Path("runs"), as_json: AsJson = False) -> None:
    """List the runs in a folder, with how they ended and what they scored."""
    from headway import printing
    from headway.run import all_runs

    found = all_runs(runs)
    if as_json:
        _print_json(
            {
                "runs": [
                    printing.run_as_json(run, run.scores(), printing.kept(run)) | {"facts": run.facts} for run in found
                ]
            }
        )
    elif not found:
        print(f"there are no runs in {runs} yet; headway train RECIPE makes one", file=sys.stderr)
    else:
        printing.show_runs(found)


@app.command(epilog="Example: headway bench --size tiny --size small")
def bench(
    size: Annotated[list[str] | None, typer.Option(help="tiny, small, medium, gpt2; default: what suits.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure each figure.", min=0.1)] = 1.5,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda …")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure this machine: training speed and memory, alone and for populations."""
    from headway.bench import bars
    from headway.bench import bench as measure_all

    figures: list[dict[str, Any]] = []
    for figure in measure_all(size, seconds, device):
        print(f"measuring {figure['size']}, R = {figure['replicas']} …", file=sys.stderr)
        figures.append(figure)
    if as_json:
        _print_json({"figures": figures})
    else:
        for name in dict.fromkeys(f["size"] for f in figures):
            print("\n".join([name, *bars([f for f in figures if f["size"] == name])]))


app.command(epilog="Example: headway cases --json")(cases)
app.command(epilog="Example: headway case B7 --quick")(case)
app.command(epilog="Example: headway tune demo --over training.optimizer.learning_rate=1e-4..1e-1:log")(tune)


def main() -> None:
    """Run a verb. A user's mistake is one message and exit code 2; only our own mistakes show a traceback."""
    # Threads that wait by spinning cost nothing on an idle machine, and a factor of ten where other programs want the
    # cores too (docs/log.md). To be said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except EndedElsewhereError:
        sys.exit(2)
    except UserError as error:
        print(f"headway: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone away, as `headway … | head` does
        sys.exit(0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        place = f" ({error.filename})" if error.filename else ""
        print(f"headway: {error.strerror}{place}; what was saved before is whole", file=sys.stderr)
        sys.exit(2)


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _print_now(piece: str) -> None:
    print(piece, end="", flush=True)


if __name__ == "__main__":
    main()
