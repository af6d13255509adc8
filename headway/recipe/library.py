"""Find the text of packaged recipes and of the user's recipe files. Nothing here needs torch."""

from importlib import resources
from pathlib import Path

from headway.core.errors import UserError, did_you_mean
from headway.core.reading import UnreadableError
from headway.core.reading import read_text as read_file_text


def packaged() -> dict[str, str]:
    """The recipes that come with Headway: name → YAML text."""
    folder = resources.files("headway.recipe") / "packaged"
    return {f.name.removesuffix(".yaml"): f.read_text("utf-8") for f in folder.iterdir() if f.name.endswith(".yaml")}


def read_text(name: str) -> tuple[str, str]:
    """The YAML of a packaged recipe or of a file, and its title for messages."""
    recipes = packaged()
    if name in recipes:
        return recipes[name], name
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or "/" in name:
        try:
            return read_file_text(path, through_links=True), path.name
        except FileNotFoundError:
            beside = [str(file) for file in path.parent.glob("*.y*ml")]
            raise UserError(f"there is no recipe file {name}{did_you_mean(name, beside)}") from None
        except UnreadableError as error:
            raise UserError(f"cannot read the recipe {name}: {error.why}") from None
    if Path(f"{name}.yaml").is_file():
        raise UserError(f"there is no recipe '{name}'; did you mean '{name}.yaml'?")
    hint = did_you_mean(name, recipes)
    hint += "" if "did you mean" in hint else "; headway recipes lists them, and a file's name must end in .yaml"
    raise UserError(f"there is no recipe '{name}'{hint}")


def head_comment(text: str) -> str:
    """The comment at the head of a recipe file: what it is, its command, the expected result."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line + "\n")
    return "".join(lines)


def first_sentence(text: str) -> str:
    """The first line of the head comment."""
    return head_comment(text).partition("\n")[0].lstrip("# ")
