"""Draws docs/batching.svg: how a text becomes batches, and what goes from one to the next.

command: python docs/batching.py
"""

from pathlib import Path

ROWS, SEGMENT, STEPS, CELL = 3, 4, 3, 26
LEFT, STREAMS = 96, 122
FONT = "font-family=\"ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\""
COLOURS = ("#ddf4ff", "#fff8c5", "#dafbe1")
INK, FAINT, LINE, RED = "#1f2328", "#57606a", "#d0d7de", "#cf222e"


def text(x: float, y: float, words: str, size: float = 12.5, colour: str = FAINT, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


def _tip(name: str, colour: str) -> str:
    box = f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    return f'{box}<path d="M0 0 L10 5 L0 10 z" fill="{colour}"/></marker>'


def cell(x: float, y: float, number: int, colour: str) -> list[str]:
    box = f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{colour}" stroke="{LINE}"/>'
    return [box, text(x + CELL / 2, y + 17, str(number), 11.5, INK, "middle")]


def drawn() -> str:
    length = SEGMENT * STEPS + 1
    width, height = LEFT + ROWS * length * 14 + 60, 450
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" {FONT}>',
        "<title>Contiguous batches: streams, segments, and the state that goes on</title>",
        "<defs>" + _tip("tip", FAINT) + _tip("red", RED) + "</defs>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
        text(24, 34, f"the text, cut into as many streams as the batch has rows ({ROWS})", 14, INK),
    ]
    for row in range(ROWS):
        x = LEFT + row * length * 14
        parts.append(
            f'<rect x="{x}" y="48" width="{length * 14 - 4}" height="16" rx="3" fill="#f6f8fa" stroke="{LINE}"/>'
        )
        parts.append(
            text(x + length * 7, 60, f"tokens {row * length} … {row * length + length - 1}", 11, FAINT, "middle")
        )
    parts.append(text(24, 100, f"batches of {SEGMENT} tokens (data.segment): each row goes on where it ended", 14, INK))
    gap = 40
    for row in range(ROWS):
        y = STREAMS + row * 62
        parts.append(text(24, y + 17, f"row {row}"))
        for step in range(STEPS):
            x = LEFT + step * (SEGMENT * CELL + gap)
            for k in range(SEGMENT):
                parts += cell(x + k * CELL, y, row * length + step * SEGMENT + k, COLOURS[step])
            end = x + SEGMENT * CELL
            if step + 1 < STEPS:
                parts.append(
                    f'<path d="M{end + 3} {y + 13} H{end + gap - 4}" stroke="{FAINT}" stroke-width="1.5" '
                    'fill="none" marker-end="url(#tip)"/>'
                )
                parts.append(text(end + gap / 2, y + 6, "state", 10.5, FAINT, "middle"))
        last = LEFT + STEPS * (SEGMENT * CELL + gap) - gap
        parts.append(text(last + 12, y + 17, f"→ {row * length + length - 1} is only predicted", 11))
    below = STREAMS + ROWS * 62
    for step in range(STEPS):
        middle = LEFT + step * (SEGMENT * CELL + gap) + SEGMENT * CELL / 2
        parts.append(text(middle, below, f"step {step}", 12.5, INK, "middle"))
        width_of = SEGMENT * CELL
        parts.append(
            f'<path d="M{middle + width_of / 2} {below + 14} H{middle - width_of / 2 + 6}" stroke="{RED}" '
            'stroke-width="1.5" fill="none" marker-end="url(#red)"/>'
        )
        parts.append(text(middle, below + 30, "gradient", 11, RED, "middle"))
    notes = [
        "→  the state is carried on without its gradient: what is learnt reaches back to the beginning of a segment",
        f"step {STEPS}: a new pass over the text: all rows begin anew, from zeros or an empty memory",
        "contiguous-shifted: every pass leaves out another number of tokens at the beginning of the streams",
        "crops: rows come from anywhere, and all of them begin anew at every step",
    ]
    parts += [text(24, below + 62 + 18 * k, note) for k, note in enumerate(notes)]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("batching.svg").write_text(drawn(), "utf-8")
