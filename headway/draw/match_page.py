"""Pictures and captions on one page: for each caption the best matching pictures, for each picture its captions, and
the results of the caption game. One self-contained file, readable in light and dark mode and in print."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

SIDE = 144
"""The largest size of a picture on the page, in pixels."""
MAX_SHOWN = 24
"""The maximal number of pictures shown for a caption."""


@dataclass(frozen=True)
class ShownPicture:
    name: str
    image: str
    """The image as a data URI."""


@dataclass(frozen=True)
class Candidate:
    """A picture of a caption, or a caption of a picture."""

    place: int
    chance: float
    numbers: tuple[str, ...]
    """The numbers shown below it."""


@dataclass(frozen=True)
class GameTurn:
    caption: str
    wins: bool
    outcome: str
    """The outcome as text."""
    words: Sequence[tuple[str, float]]
    """Each word with its contribution in nats."""


@dataclass(frozen=True)
class MatchPage:
    title: str
    subtitle: str
    pictures: Sequence[ShownPicture]
    captions: Sequence[str]
    by_caption: Sequence[Sequence[Candidate]]
    """For each caption, the pictures, best first."""
    by_picture: Sequence[Sequence[Candidate]]
    """For each picture, the captions (or classes), best first."""
    what: str = "captions"
    target: int | None = None
    turns: Sequence[GameTurn] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    def html(self) -> str:
        parts = [f"<h1>{escape(self.title)}</h1>", f"<p class='how'>{escape(self.subtitle)}</p>"]
        if self.turns:
            parts += [f"<h2>The game: pick {escape(self._target.name)}</h2>", self._game()]
        if any(self.by_caption):
            parts.append("<h2>The best matching pictures of each caption</h2>")
            parts += [self._row(caption, found) for caption, found in zip(self.captions, self.by_caption, strict=True)]
        parts.append(f"<h2>The best matching {escape(self.what)} of each picture</h2><div class='cards'>")
        parts += [self._card(k, found) for k, found in enumerate(self.by_picture)]
        parts.append("</div>")
        if self.notes:
            parts.append("<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in self.notes) + "</ul>")
        body = "\n".join(parts)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width">\n<title>{escape(self.title)}</title>\n'
            f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
        )

    @property
    def _target(self) -> ShownPicture:
        assert self.target is not None
        return self.pictures[self.target]

    def _game(self) -> str:
        turns = "".join(
            f"<li class='{'won' if turn.wins else 'lost'}'>"
            f"<p class='said'>{_words(turn.words) or escape(turn.caption)}</p>"
            f"<p class='outcome'>{escape(turn.outcome)}</p></li>"
            for turn in self.turns
        )
        key = "Green words raise the target's probability (stronger: by more); red words lower it."
        return f"<div class='game'>{self._image(self.target or 0)}<ol>{turns}</ol></div><p class='how'>{key}</p>"

    def _image(self, place: int) -> str:
        one = self.pictures[place]
        return (
            f"<img class='{'target' if place == self.target else ''}' src='{one.image}' alt='{escape(one.name, True)}'>"
        )

    def _row(self, caption: str, found: Sequence[Candidate]) -> str:
        figures = "".join(
            f"<figure>{self._image(one.place)}<div class='bar'><div style='width:{100 * one.chance:.1f}%'></div></div>"
            f"<figcaption><b>{escape(self.pictures[one.place].name)}</b><br>{'<br>'.join(map(escape, one.numbers))}"
            "</figcaption></figure>"
            for one in found[:MAX_SHOWN]
        )
        more = f"<p class='how'>and {len(found) - MAX_SHOWN:,} more pictures</p>" if len(found) > MAX_SHOWN else ""
        return f"<section><h3>“{escape(caption)}”</h3><div class='row'>{figures}</div>{more}</section>"

    def _card(self, place: int, found: Sequence[Candidate]) -> str:
        lines = "".join(
            f"<li><div class='bar'><div style='width:{100 * one.chance:.1f}%'></div></div>"
            f"{escape(self.captions[one.place])} <span>{escape(' · '.join(one.numbers))}</span></li>"
            for one in found[:5]
        )
        name = escape(self.pictures[place].name)
        said = f"<figcaption><b>{name}</b><ol>{lines}</ol></figcaption>"
        return f"<figure class='card'>{self._image(place)}{said}</figure>"


def _words(words: Sequence[tuple[str, float]]) -> str:
    largest = max((abs(share) for _, share in words), default=0.0) or 1.0
    made = []
    for word, share in words:
        strength = round(70 * min(abs(share) / max(largest, 0.05), 1))
        colour = "--good" if share >= 0 else "--bad"
        style = f"background: color-mix(in srgb, var({colour}) {strength}%, transparent)"
        made.append(f"<span class='word' style='{style}' title='{share:+.2f} nats'>{escape(word)}</span>")
    return " ".join(made)


def as_uri(image: Any, side: int = SIDE) -> str:
    """A Pillow image as a data URI, scaled down to twice the displayed size."""
    small = image.copy()
    small.thumbnail((2 * side, 2 * side))
    content = io.BytesIO()
    small.save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


_STYLE = f"""
:root {{ color-scheme: light dark; --ink: #1a1a1a; --faint: #5c5c5c; --paper: #ffffff; --line: #d8dbe0; --bar: #2a78b5;
  --good: #2f9e57; --bad: #d0453b; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e8e8e8; --faint: #a8adb6; --paper: #16181d; --line: #343a45;
  --bar: #6fb1ec; --good: #3fbf73; --bad: #ef6a5e; }} }}
body {{ font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 1.5rem auto;
  max-width: 76rem; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; margin: 0; }} h2 {{ font-size: 1.1rem; margin: 2rem 0 .5rem; }}
h3 {{ font-size: 1rem; margin: 1rem 0 .4rem; }}
.how, .outcome, figcaption, .card span {{ color: var(--faint); font-size: .82rem; }} .how {{ margin: .3rem 0; }}
figcaption b {{ color: var(--ink); font-weight: 600; overflow-wrap: anywhere; }}
.row {{ display: flex; flex-wrap: wrap; gap: .8rem; }} figure {{ margin: 0; width: 9.2rem; }}
img {{ width: 100%; max-width: {SIDE}px; aspect-ratio: 1; object-fit: cover; image-rendering: pixelated; display: block;
  border: 2px solid var(--line); border-radius: 4px; box-sizing: border-box; }}
img.target {{ border: 4px solid var(--good); }}
.bar {{ height: 5px; background: var(--line); border-radius: 3px; margin: .25rem 0; overflow: hidden; }}
.bar div {{ height: 100%; background: var(--bar); }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(23rem, 1fr)); gap: 1rem; }}
.card {{ width: auto; display: flex; gap: .8rem; }} .card img {{ width: 7rem; height: 7rem; flex: none; }}
.card figcaption {{ flex: 1; min-width: 0; }} .card ol {{ margin: .2rem 0; padding-left: 1.2rem; color: var(--ink); }}
.game {{ display: flex; gap: 1.2rem; align-items: flex-start; }} .game img {{ flex: none; }}
.game ol {{ margin: 0; padding-left: 1.4rem; flex: 1; }} .game p {{ margin: .1rem 0; }}
.said {{ font-size: 1.05rem; }} .word {{ padding: 0 .15em; border-radius: 3px; }}
.won .outcome::before {{ content: "✓ "; color: var(--good); }}
.lost .outcome::before {{ content: "✗ "; color: var(--bad); }}
@media print {{ .bar div {{ print-color-adjust: exact; }} }}
"""
