"""`headway match`: rank captions for pictures, classify pictures by class names, and play the caption game."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import AsJson, RunsFolder, Trust, Which, With, print_json, use_plugins
from headway.core.errors import UserError

if TYPE_CHECKING:
    from headway.draw.match_page import MatchPage
    from headway.scoring.pictures.matching import Matched, Played, Zeroshot


def match(
    model: Annotated[
        str,
        typer.Argument(
            help="A run that matches pictures and captions, or a folder (or hub name) of a CLIP or SigLIP model.",
            metavar="MODEL",
        ),
    ],
    images: Annotated[
        list[str] | None,
        typer.Option(
            help="A picture, a folder, or pictures of the run's own data: test:3, test:0..15. May be repeated.",
            metavar="PATH",
        ),
    ] = None,
    captions: Annotated[
        list[str] | None,
        typer.Option(help="A caption, or a .txt file with one caption per line. May be repeated.", metavar="TEXT"),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(help="Instead of captions: class names, separated by commas. May be repeated."),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="With --classes: a prompt such as 'a photo of a {}'. Embeddings of several are averaged."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Play the caption game with this picture as the target: its name, or its number from 1."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many matches to show for each.", min=1)] = 5,
    page: Annotated[Path | None, typer.Option(help="Write a .html page with all pictures.")] = None,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Rank captions for pictures and pictures for captions; classify zero-shot; play the caption game."""
    from headway.core.files import write_whole
    from headway.experiment.match import captions_named, matcher_by_name, pictures_named
    from headway.formats.hub import fetch_model
    from headway.scoring.pictures import matching

    if not images:
        raise UserError("no pictures given: use --images PATH (a file, a folder, or test:0..15 of a run's data)")
    if bool(captions) == bool(classes):
        raise UserError("give either --captions or --classes")
    if prompt and not classes:
        raise UserError("--prompt needs --classes")
    if target is not None and classes:
        raise UserError("the caption game (--target) needs --captions, not --classes")
    if page is not None and page.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--page {page}: the page's name must end in .html")
    use_plugins(with_, trust)
    texts = captions_named(captions or [])
    on_hub = (
        model.count("/") == 1 and model[0] not in "./~" and not any((home / model).exists() for home in (runs, Path()))
    )
    matcher, run = matcher_by_name(str(fetch_model(model)) if on_hub else model, runs, checkpoint)
    pictures = pictures_named(images, run)
    answer: dict[str, Any] = {"page": None if page is None else str(page)}
    if classes:
        names = [name.strip() for one in classes for name in one.split(",") if name.strip()]
        found = matching.classify(matcher, pictures, names, prompt or ["a photo of a {}"])
        answer |= _classes_as_json(matcher.name, [one.name for one in pictures], found)
        drawn = None if page is None else _page_of_classes(matcher.name, pictures, found)
        show = partial(_show_classes, [one.name for one in pictures], found, top)
    else:
        place = None if target is None else _target(target, [one.name for one in pictures])
        matched = matching.match(matcher, pictures, texts)
        played = None if place is None else matching.play(matcher, pictures, place, texts)
        answer |= matched.as_json()
        if played is not None and place is not None:
            answer["game"] = {"target": pictures[place].name, "turns": [_turn_as_json(one) for one in played]}
        drawn = None if page is None else _page(matched, played, place)
        show = partial(_show, matched, top)
        if played is not None and place is not None:
            show = partial(_show_game, pictures[place].name, len(pictures), played)
    if page is not None and drawn is not None:
        write_whole(page, drawn.html())
    if as_json:
        print_json("match", answer)
        return
    show()
    for note in answer["notes"]:
        print(note, file=sys.stderr)
    if page is not None:
        print(page)


def _target(given: str, names: list[str]) -> int:
    """Find the target picture by its name, its file name, or its number from 1."""
    from headway.core.errors import did_you_mean

    if given in names:
        return names.index(given)
    ends = [k for k, name in enumerate(names) if Path(name).name == given]
    if len(ends) == 1:
        return ends[0]
    if given.isdecimal() and len(given) < 10 and 1 <= int(given) <= len(names):
        return int(given) - 1
    what = f"names {len(ends)} different pictures" if ends else f"is none of the {len(names)} pictures"
    raise UserError(f"--target {given} {what}{did_you_mean(given, names)}")


def _show(found: "Matched", top: int) -> None:
    from headway.cli import printing

    names = [one.name for one in found.pictures]
    columns = ["cosine", "softmax", *([] if found.alone is None else ["sigmoid"]), "CLIPScore"]

    def numbers(p: int, c: int, chances: Any) -> list[str]:
        alone = [] if found.alone is None else [f"{found.alone[p, c]:.3f}"]
        return [f"{found.cosines[p, c]:.3f}", f"{chances[p, c]:.3f}", *alone, f"{found.clip_scores[p, c]:.3f}"]

    rows = [
        [name if k == 0 else "", found.captions[c], *numbers(p, c, found.of_captions)]
        for p, name in enumerate(names)
        for k, c in enumerate(found.cosines[p].argsort(descending=True, stable=True)[:top].tolist())
    ]
    printing.show_table(["picture", "best captions", *columns], rows)
    print()
    rows = [
        [caption if k == 0 else "", names[p], *numbers(p, c, found.of_pictures)]
        for c, caption in enumerate(found.captions)
        for k, p in enumerate(found.cosines[:, c].argsort(descending=True, stable=True)[:top].tolist())
    ]
    printing.show_table(["caption", "best pictures", *columns], rows)
    printing.show_note(
        "softmax: the probability among all captions of a picture, or all pictures of a caption; "
        "CLIPScore: 2.5 · max(cosine, 0)"
    )


def _show_classes(names: list[str], found: "Zeroshot", top: int) -> None:
    from headway.cli import printing

    rows = [
        [name if k == 0 else "", found.classes[c], f"{found.cosines[p, c]:.3f}", f"{found.chances[p, c]:.3f}"]
        for p, name in enumerate(names)
        for k, c in enumerate(found.chances[p].argsort(descending=True, stable=True)[:top].tolist())
    ]
    printing.show_table(["picture", "class", "cosine", "softmax"], rows)


def _show_game(target: str, pictures: int, played: "list[Played]") -> None:
    from headway.cli import printing

    rows = [
        [
            one.caption,
            "picked" if one.wins else f"rank {one.rank} ({one.picked} first)",
            f"{one.chance:.3f}",
            f"{one.ahead:+.3f}",
            " ".join(f"{word.text} {word.share:+.2f}" for word in one.words),
        ]
        for one in played
    ]
    print(f"target, among {pictures} pictures: {target}")
    printing.show_table(["caption", "target", "probability", "margin", "nats lost without each word"], rows)


def _turn_as_json(one: "Played") -> dict[str, Any]:
    return {
        "caption": one.caption,
        "rank": one.rank,
        "wins": one.wins,
        "chance": one.chance,
        "ahead": one.ahead,
        "picked": one.picked,
        "words": [{"word": word.text, "share": word.share} for word in one.words],
    }


def _classes_as_json(model: str, names: list[str], found: "Zeroshot") -> dict[str, Any]:
    return {
        "model": model,
        "pictures": [{"name": name, "notes": []} for name in names],
        "classes": list(found.classes),
        "prompts": list(found.prompts),
        "cosine": found.cosines.tolist(),
        "of_classes": found.chances.tolist(),
        "notes": found.notes,
    }


def _page(found: "Matched", played: "list[Played] | None", target: int | None) -> "MatchPage":
    from headway.draw.match_page import Candidate, GameTurn, MatchPage, ShownPicture, as_uri

    def candidates(chances: Any, cosines: Any, scores: Any) -> list[Candidate]:
        order = cosines.argsort(descending=True, stable=True).tolist()
        return [
            Candidate(
                k,
                float(chances[k]),
                (f"cosine {cosines[k]:.3f}", f"softmax {chances[k]:.3f}", f"CLIPScore {scores[k]:.3f}"),
            )
            for k in order
        ]

    turns = [
        GameTurn(
            one.caption,
            one.wins,
            f"{'picked' if one.wins else f'rank {one.rank}, {one.picked} is picked'} · probability {one.chance:.3f} · "
            f"{one.ahead:+.3f} ahead of the best other picture",
            one.words,
        )
        for one in played or []
    ]
    P, C = found.cosines.shape
    how = f"{P} picture{'s' * (P > 1)}, {C} caption{'s' * (C > 1)} · softmax scale {found.matcher.scale:.3g}"
    how += " · CLIPScore = 2.5 · max(cosine, 0)"
    return MatchPage(
        f"Pictures and captions, matched by {found.matcher.name}",
        how,
        [ShownPicture(one.name, as_uri(one.image)) for one in found.pictures],
        found.captions,
        [candidates(found.of_pictures[:, c], found.cosines[:, c], found.clip_scores[:, c]) for c in range(C)],
        [candidates(found.of_captions[p], found.cosines[p], found.clip_scores[p]) for p in range(P)],
        target=target,
        turns=turns,
        notes=found.notes,
    )


def _page_of_classes(model: str, pictures: Any, found: "Zeroshot") -> "MatchPage":
    from headway.draw.match_page import Candidate, MatchPage, ShownPicture, as_uri

    by_picture = [
        [
            Candidate(k, float(chances[k]), (f"cosine {cosines[k]:.3f}", f"softmax {chances[k]:.3f}"))
            for k in chances.argsort(descending=True, stable=True).tolist()
        ]
        for chances, cosines in zip(found.chances, found.cosines, strict=True)
    ]
    prompts = ", ".join(f"“{one}”" for one in found.prompts)
    return MatchPage(
        f"Pictures and classes, by {model}",
        f"{len(pictures)} pictures, {len(found.classes)} classes, prompts {prompts}",
        [ShownPicture(one.name, as_uri(one.image)) for one in pictures],
        found.classes,
        [[] for _ in found.classes],
        by_picture,
        what="classes",
        notes=found.notes,
    )
