"""Short derivations of the answers, with the numbers of the instance."""

import math
from typing import TYPE_CHECKING

import numpy as np

from headway.solve.geometry import entropy

if TYPE_CHECKING:
    from headway.solve.keys import KeyAnswer
    from headway.solve.queries import QueryAnswer


ROUNDING = 1e-13
"""Weights and differences below this count as rounding of 0."""


def number(value: float) -> str:
    """Format with four significant digits, without trailing zeros."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value + 0.0:.4g}".replace("-", "−").replace("e−0", "e−").replace("e+0", "e").replace("e+", "e")


def at_most(difference: float) -> str:
    """`at most 0.001`, or a note that it is only rounding."""
    return "only rounding" if difference <= ROUNDING else f"at most {number(difference)}"


def vector(values: np.ndarray, at_most: int = 8) -> str:
    shown = [number(float(v)) for v in values[:at_most]]
    return f"({', '.join(shown)}{f', … {len(values)} in all' if len(values) > at_most else ''})"


def mixture(weights: np.ndarray, keys: np.ndarray, at_most: int = 5) -> str:
    """`0.5·k0 + 0.5·k3`, largest weights first; small weights only for keys large enough to matter."""
    counts = weights * np.abs(keys).max(1)
    seen = (weights > 1e-12) | (counts > 1e-12 * counts.max())
    order = [int(j) for j in np.argsort(-weights, kind="stable") if seen[j]]
    parts = [f"k{j}" if weights[j] > 1 - 1e-9 else f"{number(float(weights[j]))}·k{j}" for j in order[:at_most]]
    return " + ".join(parts) + (f" + {len(order) - at_most} more" if len(order) > at_most else "")


def names(indices: np.ndarray) -> str:
    listed = [str(int(i)) for i in indices]
    shown = listed if len(listed) <= 8 else [*listed[:7], f"… {len(listed)} in all"]
    return f"key {shown[0]}" if len(listed) == 1 else f"keys {', '.join(shown)}"


def misplaced(a: "QueryAnswer | KeyAnswer") -> str:
    """The error as a sentence. 1e-16 is rounding next to a weight of 0.3, but can be meaningful next to 1."""
    if a.error <= ROUNDING and a.wanted.max() < 1:
        return "No attention is in the wrong place, except for rounding"
    return f"{number(a.error)} of the attention is in the wrong place"


def query_derivation(a: "QueryAnswer") -> list[str]:
    scores = "q·k_j" if a.scale == 1 else f"{number(a.scale)}·q·k_j"
    lines = [f"Wanted: weights {vector(a.wanted)} from softmax({scores}), to within {number(a.within)}."]
    if a.verdict == "reached":
        lines += {"proportions": _proportions, "margin": _margin, "angle": _angle, "nearest": _nearest}[a.method](a)
        lines.append(f"q = {vector(a.query)}, of norm {number(a.norm)}, gives {vector(a.weights)}.")
        lines.append(f"{misplaced(a)} (total variation).")
        if a.rounding > a.within:
            near = np.abs(a.keys - a.keys.mean(0)).max() < 1e-3 * np.abs(a.keys).max()
            why = (
                "the keys are far from 0 and close to each other. Subtract their mean first; the weights do not change."
                if near
                else "large parts of the scores cancel. The error above is for scores without rounding."
            )
            lines.append(f"In float64 the plain formula may differ by {number(a.rounding)}: {why}")
        return lines
    why = {"impossible": _impossible, "unrepresentable": _unrepresentable, "undecided": _undecided}
    return lines + why[a.verdict](a)


def _proportions(a: "QueryAnswer") -> list[str]:
    if a.margin is not None:
        return [
            "The scores of the wanted keys must be log w_i + c. No direction separates all others, but a query with "
            "these scores leaves them little enough weight."
        ]
    if not a.query.any():
        return ["All keys must have the same score: the query 0 does that for any keys."]
    n, d = a.keys.shape
    return [
        f"Every key is wanted, so the scores must be log w_j + c: {n} equations for the {d} numbers of q and "
        "the constant c.",
        "They have a solution, so the answer is exact; this is the shortest solution.",
    ]


def _margin(a: "QueryAnswer") -> list[str]:
    wanted, margin = np.flatnonzero(a.wanted), a.margin or 0.0
    lines = []
    if len(wanted) > 1:
        lines.append(f"The scores of {names(wanted)} must be log w_i + c: a q₀ that does so exists.")
        lines.append(
            f"Some direction gives them equal scores and the others lower ones; the widest margin is {number(margin)}, "
            "for a direction of length 1."
        )
    else:
        lines.append(
            f"{names(wanted).capitalize()} is outside the hull of the others: a direction of length 1 gives it a lead "
            f"of {number(margin)} over them, and none gives more."
        )
    lines.append(
        f"q goes only as far in this direction as needed for {number(a.within)}; a longer query would come closer."
    )
    if len(wanted) == 1 and a.within < 0.5:
        least = (math.log1p(-a.within) - math.log(a.within)) / (margin * a.scale)
        lines.append(f"No query shorter than log((1 − ε)/ε)/margin = {number(least)} can do it.")
    return lines


def _angle(a: "QueryAnswer") -> list[str]:
    wanted = np.flatnonzero(a.wanted)
    return [
        f"Some direction of length 1 gives {names(wanted)} a lead of at least {number(a.margin or 0.0)} over all "
        "others.",
        "The others are at such different distances that the direction was chosen by its angle to them, not by the "
        "widest margin: a shorter query may exist.",
    ]


def _nearest(a: "QueryAnswer") -> list[str]:
    return [
        "These weights cannot be reached exactly, or only by a query of enormous length;",
        "the query below, on the path to the one with the least KL(w ‖ p), is close enough.",
    ]


def _impossible(a: "QueryAnswer") -> list[str]:
    c = a.certificate
    assert c is not None
    wanted = np.flatnonzero(a.wanted)
    more, less = np.maximum(c.change, 0), np.maximum(-c.change, 0)
    one_side, other = mixture(less / less.sum(), a.keys), mixture(more / more.sum(), a.keys)
    lines = [f"Impossible: {one_side} = {other}."]
    if len(wanted) == 1:
        lines.append(
            f"So for every query the score of key {wanted[0]} is this mixture of the others' scores, and never "
            "above the best of them."
        )
        most = "is" if a.error <= c.floor + 2 * a.within else "is at most"
        lines.append(f"The largest weight it can get or approach {most} exp(−H(μ)) = {number(math.exp(-c.gap))}.")
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(more + less > 0, np.log(a.wanted), 0.0)
            ahead = float((less / less.sum() - more / more.sum()) @ np.where(more + less > 0, logs, 0.0))
        lines.append(
            "For every query both sides have the same score; for the wanted weights the left side's would have to be "
            f"higher by {number(ahead)}."
        )
    lines.append(
        f"Certificate: μ = {vector(c.mixture)} has the same mean key as the wanted w, and higher entropy: "
        f"H(μ) = {number(entropy(c.mixture))} > H(w) = {number(entropy(a.wanted))}."
    )
    lines.append(
        f"So KL(w ‖ p) ≥ {number(c.gap)} for every query, and at least {number(c.floor)} of the attention is in "
        "the wrong place."
    )
    if math.isfinite(c.up_to_norm) and c.up_to_norm * _nearest_key(a) < 1e12:
        lines.append(
            f"(The two means differ by {number(c.distance)}, which is rounding: at most {number(c.rounding)} of "
            f"the keys' largest entries. For the exact keys the proof holds for queries with norms up to "
            f"{number(c.up_to_norm)}.)"
        )
    best = "The best query" if len(wanted) == 1 else "The query of least KL(w ‖ p)"
    lines.append(f"{best} found, {vector(a.query)}, gives {vector(a.weights)}: {number(a.error)} in the wrong place.")
    return lines


def _unrepresentable(a: "QueryAnswer") -> list[str]:
    assert a.digits is not None
    shown = ", ".join(a.digits[:3]) + (f", … {len(a.digits)} in all" if len(a.digits) > 3 else "")
    return [
        f"There is such a query, but float64 has too few digits to represent it: ({shown}).",
        f"The keys are at such different distances that large parts of the scores must cancel. Rounded to float64, "
        f"{vector(a.query)}, it has {number(a.error)} in the wrong place.",
    ]


def _undecided(a: "QueryAnswer") -> list[str]:
    found = (
        f"Neither reached nor proved impossible: the best query found, {vector(a.query)}, has {number(a.error)} in the "
        "wrong place"
    )
    if a.certificate is None:
        return [f"{found}; the keys' distances differ so much that neither a better query nor a proof was found."]
    return [f"{found}; it is proved that less than {number(a.certificate.floor)} is impossible."]


def _nearest_key(a: "QueryAnswer") -> float:
    """The score difference between the largest wanted key and its nearest neighbour, for a query of length one."""
    away = np.abs(a.keys - a.keys[a.wanted.argmax()]).max(1)
    return a.scale * float(away[away > 0].min(initial=np.inf))


def key_derivation(a: "KeyAnswer") -> list[str]:
    j = a.replaced
    scores = "q·k" if a.scale == 1 else f"{number(a.scale)}·q·k"
    length = float(np.linalg.norm(a.query)) * a.scale
    lines = [
        f"Wanted: weights {vector(a.wanted)}, to within {number(a.within)}, by a new key {j}.",
        f"Only its score t = {scores} matters. It gets the weight σ(t − log Z) with log Z = {number(a.log_rest)}, "
        f"and the others share the rest in the fixed proportions {vector(a.proportions)}.",
    ]
    if a.norm is not None:
        low, high = a.weight_range
        lines.append(
            f"The score of a key of norm {number(a.norm)} is {'' if a.norm == 1 else number(a.norm) + '·'}‖q‖ = "
            f"{number(a.norm * length)} {'or' if len(a.query) == 1 else 'at most, and at least'} "
            f"{number(-a.norm * length)}: weights {'of' if len(a.query) == 1 else 'from'} {number(low)} "
            f"{'or' if len(a.query) == 1 else 'to'} {number(high)}."
        )
    if a.verdict == "reached":
        lines.append(f"k = {vector(a.key)} has the score {number(a.score)} and gives {vector(a.weights)}.")
        lines.append(f"{misplaced(a)}.")
    elif a.verdict == "unrepresentable":
        lines.append(
            f"There is such a key, but float64 has too few digits to represent it: rounded, k = {vector(a.key)} has "
            f"{number(a.error)} in the wrong place."
        )
    elif a.verdict == "undecided":
        lines.append(
            f"Undecided: k = {vector(a.key)} has {number(a.error)} in the wrong place, and the scores are so large "
            "that rounding decides."
        )
    else:
        of_norm = "" if a.norm is None else f" of norm {number(a.norm)}"
        lines.append(
            f"Impossible: no key{of_norm} has an error below {number(a.least_error)}. The best, k = "
            f"{vector(a.key)}, has the score {number(a.score)}, gets the weight "
            f"{number(float(a.weights[j]))} and gives {vector(a.weights)}."
        )
    if a.norms is None:
        why = (
            "the others' proportions are not the wanted ones" if a.query.any() else "with the query 0 all scores are 0"
        )
        lines.append(f"It is impossible with any norm: {why}.")
    elif math.isinf(a.norms[1]):
        lines.append(
            f"Possible with any norm from {number(a.norms[0])} on." if a.norms[0] else "Possible with any norm."
        )
    else:
        lines.append(f"Possible with norms from {number(a.norms[0])} to {number(a.norms[1])}.")
    return lines


def query_matrix_derivation(answers: "list[QueryAnswer]") -> list[str]:
    """The derivation of a query matrix for the identity, row by row."""
    reached = sum(a.verdict == "reached" for a in answers)
    lines = [f"Row i of Q should select key i: {reached} of {len(answers)} rows can."]
    for i, a in enumerate(answers):
        if a.verdict == "reached":
            lines.append(f"  row {i}: q = {vector(a.query)}, error {number(a.error)}")
        else:
            best = f"; the most it can get is {number(float(a.weights[i]))}" if a.verdict == "impossible" else ""
            lines.append(f"  row {i}: {a.derivation[1].removesuffix('.')}{best}")
    return lines
