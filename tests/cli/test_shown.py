"""Control sequences in texts from elsewhere are shown, and not sent to the terminal."""

import os
import pty
import shutil
import subprocess
from pathlib import Path

from command_line import COMMAND
from tiny import reseal

from headway.cli.shown import ShownStream, shown

ORDERS = "\x1b]0;title\x07 \x1b[2J \x9b31m \x7f \x08"


def test_text_without_control_sequences_is_unchanged():
    for text in ("Zoë, 日本\t☃\n", "", "|".join(map(str, range(100)))):
        assert shown(text) == text
    assert shown(ORDERS).isprintable() and "\\u001b]0;title\\u0007" in shown(ORDERS)


def test_control_sequences_in_names_of_columns_and_runs_are_shown(home: Path, headway):
    (home / "table.csv").write_text(f"text,label{ORDERS}\na b c,{ORDERS}\n")
    shutil.copytree("runs/tiny", f"runs/evil{ORDERS}")
    recipe = Path(f"runs/evil{ORDERS}/recipe.yaml")
    recipe.write_text(
        recipe.read_text("utf-8").replace("width: 16", f'"wid{ORDERS.encode().hex()}\\e[2J": 16'), "utf-8"
    )
    reseal(recipe.parent)
    commands = (
        ["runs"],
        ["runs", "--json"],
        ["score", f"evil{ORDERS}"],
        ["score", f"none{ORDERS}"],
        ["recipe", "tiny.yaml", f"model.{ORDERS}=3"],
        ["train", "tiny.yaml", "--name", f"a\nb{ORDERS}"],
        ["audit", "--explain", ORDERS],
        [ORDERS],
    )
    for words in commands:
        answer = headway(*words)
        said = answer.out + answer.err
        assert not set(said) & set(map(chr, [*range(9), *range(11, 32), *range(127, 160)])), (words, said)
    assert len(headway("runs", "--json").json["runs"]) == 2


def test_on_a_terminal_colours_pass_and_other_control_sequences_do_not(tmp_path: Path):
    main, end = pty.openpty()
    with os.fdopen(end, "w") as terminal:
        stream = ShownStream(terminal)
        stream.write("\x1b[1;31mred\x1b[0m" + ORDERS)
        stream.flush()
        said = os.read(main, 1000).decode()
    os.close(main)
    assert said.startswith("\x1b[1;31mred\x1b[0m\\u001b]0;title") and "\x1b[2J" not in said and "\x07" not in said


def test_modules_in_the_current_folder_are_not_imported(tmp_path: Path):
    """Started with python -m, as torchrun does."""
    for module in ("yaml", "typer", "json"):
        (tmp_path / f"{module}.py").write_text("open('ran', 'w')")
    done = subprocess.run([*COMMAND, "recipes"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
