"""The commands of `headway solve`: attention by construction."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from headway.cli.options import AsJson, print_json
from headway.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import numpy as np

    from headway.solve.construction import Construction

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Construct attention: find the query, key or weights that do what you want, or a proof that there are none.",
)


class NumbersCommand(TyperCommand):
    """A command whose arguments may begin with one minus. Words with two are options, and must be known."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = [name for parameter in self.get_params(ctx) for name in parameter.opts if name.startswith("--")]
        for word in args:
            name = word.split("=")[0]
            if name.startswith("--") and name != "--" and name not in known:
                raise UserError(f"unknown option {name}{did_you_mean(name, known)}")
        return super().parse_args(ctx, args)


def verb(example: str) -> Callable[[Callable], Callable]:
    settings = {"ignore_unknown_options": True}  # '-1,0,1' is a kernel, not an option
    return app.command(epilog=f"Example: headway solve {example}", context_settings=settings, cls=NumbersCommand)


Plot = Annotated[Path | None, typer.Option(help="Draw the answer to a .png, .svg or .pdf file.", metavar="FILE")]
KeysText = Annotated[str, typer.Argument(help="'1,0; 0,1; -1,-1', or a .csv, .json or .npy file.", metavar="KEYS")]
Select = Annotated[int | None, typer.Option(help="Put all attention on this key, counted from 0.", metavar="KEY")]
Average = Annotated[str | None, typer.Option(help="Spread attention equally over keys: 0,2 or all.", metavar="KEYS")]
Weights = Annotated[str | None, typer.Option(help="Any attention distribution: 0.5,0.3,0.2.", metavar="WEIGHTS")]
Within = Annotated[float, typer.Option(help="The tolerance: the largest share of attention in the wrong place.")]
Scaled = Annotated[bool, typer.Option("--scaled", help="Scores are q·k/√d, as in Headway's own layers; default: q·k.")]
Centre = Annotated[
    int | None, typer.Option(help="Which slot, from 0, is at the position itself; default: the middle one.")
]
Channels = Annotated[int, typer.Option(help="Channels of the sequence.")]


@verb("query '1,0; 0,1; -1,-1' --select 0 --plot query.png")
def query(
    keys: KeysText,
    select: Select = None,
    average: Average = None,
    weights: Weights = None,
    identity: Annotated[bool, typer.Option("--identity", help="Find a query matrix: row i selects key i.")] = False,
    within: Within = 1e-6,
    scaled: Scaled = False,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Find a query that gives the wanted attention over these keys, or a certificate that there is none."""
    from headway.solve import draw
    from headway.solve.derivation import query_matrix_derivation
    from headway.solve.inputs import checked_keys
    from headway.solve.queries import find_queries, find_query
    from headway.solve.reading import read_table

    K = checked_keys(read_table("keys", keys))
    if identity:
        if select is not None or average is not None or weights is not None:
            raise UserError("--identity cannot be combined with --select, --average or --weights")
        answers = find_queries(K, within=within, scale=_scale(scaled, K))
        drawn = draw.draw_queries(answers, plot) if plot else None
        found = {
            "queries": [a.query.tolist() for a in answers],
            "weights": [a.weights.tolist() for a in answers],
            "answers": [a.as_json() for a in answers],
        }
        _show("query", found, query_matrix_derivation(answers), drawn, as_json)
        return
    answer = find_query(K, _wanted(select, average, weights, len(K)), within, _scale(scaled, K))
    drawn = draw.draw_query(answer, plot) if plot else None
    _show("query", answer.as_json(), answer.derivation, drawn, as_json)


@verb("key '2,1' '1,0; 0,1; -1,-1' --replace 2 --select 2 --norm 1")
def key(
    query: Annotated[str, typer.Argument(help="'2,1'", metavar="QUERY")],
    keys: KeysText,
    replace: Annotated[int, typer.Option(help="The key to replace, counted from 0.", metavar="KEY")],
    select: Select = None,
    average: Average = None,
    weights: Weights = None,
    norm: Annotated[float | None, typer.Option(help="Search only keys of this norm.")] = None,
    within: Within = 1e-6,
    scaled: Scaled = False,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Find a key to replace another, so that this query has the wanted attention, or the best there is."""
    from headway.solve import draw
    from headway.solve.inputs import checked_keys
    from headway.solve.keys import find_key
    from headway.solve.reading import read_list, read_table

    K = checked_keys(read_table("keys", keys))
    wanted = _wanted(select, average, weights, len(K))
    answer = find_key(read_list("query", query), K, replace, wanted, norm, within, _scale(scaled, K))
    drawn = draw.draw_key(answer, K[replace], plot) if plot else None
    _show("key", answer.as_json(), answer.derivation, drawn, as_json)


@verb("convolution 2,0,1 --centre 1")
def convolution(
    taps: Annotated[str, typer.Argument(help="The kernel: 2,0,1", metavar="TAPS")],
    centre: Centre = None,
    channels: Channels = 1,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Build an attention layer with relative biases that computes a 1-D convolution."""
    from headway.solve.reading import read_list
    from headway.solve.relative import convolution

    _show_construction("convolution", convolution(read_list("taps", taps), centre, channels), plot, as_json)


@verb("shift 1")
def shift(
    by: Annotated[
        int, typer.Argument(help="Positions towards the end; negative: towards the start.", metavar="PLACES")
    ],
    channels: Channels = 1,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Build an attention layer that shifts the sequence."""
    from headway.solve.relative import shift

    _show_construction("shift", shift(by, channels), plot, as_json)


@verb("mean-pool 3")
def mean_pool(
    window: Annotated[int, typer.Argument(help="Slots in the window.")],
    centre: Centre = None,
    channels: Channels = 1,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Build an attention layer that takes the mean over a window."""
    from headway.solve.relative import mean_pool

    _show_construction("mean-pool", mean_pool(window, centre, channels), plot, as_json)


@verb("max-pool 3 --within 1e-3")
def max_pool(
    window: Annotated[int, typer.Argument(help="Slots in the window.")],
    centre: Centre = None,
    channels: Channels = 1,
    within: Annotated[float, typer.Option(help="How far below the maximum the result may be, for any input.")] = 1e-3,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Build an attention layer that takes the maximum over a window, for negative inputs too."""
    from headway.solve.relative import max_pool

    _show_construction("max-pool", max_pool(window, centre, channels, within), plot, as_json)


@verb("matrix '0.5,0.5; 0.2,0.8' --width 3 --plot matrix.png")
def matrix(
    weights: Annotated[str, typer.Argument(help="Attention weights A, one row per query.", metavar="WEIGHTS")],
    width: Annotated[int, typer.Option(help="Channels of X.")] = 2,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Write Y = AX as vec(Y) = M·vec(X), for both ways to stack X into a vector."""
    from headway.solve import draw
    from headway.solve.kronecker import stacked, stacked_derivation
    from headway.solve.reading import read_table

    A = read_table("weights", weights)
    rows, columns = stacked(A, width, "rows"), stacked(A, width, "columns")
    drawn = None
    if plot:
        drawn = draw.draw_matrices({"A": A, "tokens stacked: A ⊗ I": rows, "channels stacked: I ⊗ A": columns}, plot)
    found = {"width": width, "rows": rows.tolist(), "columns": columns.tolist()}
    derivation = stacked_derivation(A, width)
    _show("matrix", found | {"derivation": derivation}, derivation, drawn, as_json)


@verb("fixed-layer --queries '1,0; 0,0' --keys '0,0; 0,1' --tokens 4")
def fixed_layer(
    tokens: Annotated[int, typer.Option(help="Length of the sequence.")] = 4,
    width: Annotated[int, typer.Option(help="Width (channels) of a layer with random weights.")] = 4,
    heads: Annotated[int, typer.Option(help="Heads.")] = 2,
    queries: Annotated[str | None, typer.Option(help="W_Q: '1,0; 0,1' or a file.", metavar="MATRIX")] = None,
    keys: Annotated[str | None, typer.Option(help="W_K.", metavar="MATRIX")] = None,
    values: Annotated[str | None, typer.Option(help="W_V.", metavar="MATRIX")] = None,
    output: Annotated[str | None, typer.Option(help="W_O.", metavar="MATRIX")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the layer's weights and of the inputs.", min=0)] = 0,
    blind: Annotated[bool, typer.Option("--blind", help="Set W_Q = 0: the attention ignores the input.")] = False,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Could a fully connected layer replace an attention layer? Answers with its matrix, or with counterexamples.

    The layer has random weights, or the matrices you give; matrices you leave out are then the identity.
    """
    from headway.solve import draw
    from headway.solve.reading import read_table
    from headway.solve.replacement import fixed_layer, layer_of, random_layer

    texts = {"queries": queries, "keys": keys, "values": values, "output": output}
    given = {name: read_table(name, text) for name, text in texts.items() if text is not None}
    if given and blind:
        raise UserError("--blind needs a layer with random weights; for your own matrices, give --queries zeros")
    layer = layer_of(given, heads) if given else random_layer(width, heads, seed, blind)
    answer = fixed_layer(layer, tokens, seed=seed)
    drawn = draw.draw_fixed_layer(answer, plot) if plot else None
    _show("fixed-layer", answer.as_json(), answer.derivation, drawn, as_json)


def _wanted(select: int | None, average: str | None, weights: str | None, n: int) -> "np.ndarray":
    from headway.solve import inputs
    from headway.solve.reading import read_indices, read_list

    if sum(goal is not None for goal in (select, average, weights)) != 1:
        raise UserError("say what the attention should do: give one of --select, --average and --weights")
    if select is not None:
        return inputs.select(select, n)
    if average is not None:
        return inputs.average(None if average == "all" else read_indices("average (keys, or all)", average), n)
    return inputs.checked_distribution(read_list("weights", weights or ""), n)


def _scale(scaled: bool, keys: "np.ndarray") -> float:
    return keys.shape[1] ** -0.5 if scaled else 1.0


def _show_construction(verb: str, made: "Construction", plot: Path | None, as_json: bool) -> None:
    from headway.solve import draw

    drawn = draw.draw_construction(made, plot) if plot else None
    _show(verb, made.as_json(), made.derivation, drawn, as_json)


def _show(verb: str, found: dict[str, Any], derivation: list[str], drawn: Path | None, as_json: bool) -> None:
    if as_json:
        print_json(f"solve {verb}", found | ({"plot": str(drawn)} if drawn else {}))
        return
    print("\n".join(derivation))
    if drawn:
        print(f"drawn: {drawn}")
