"""The page for visitors without the token: what to do, in words. It knows nothing of the folder that is served.

It brings its style with it, for the other files are behind the door as well; the policy names that style by its sum.
"""

import base64
import hashlib
from importlib.resources import files

NO_TOKEN = "this page needs the address that `headway open` printed, with its token"
WRONG_HOST = "this machine is not called that: open the address that `headway open` printed"

_FIELD = """<form method="get"><label for="token">{label}</label>
<input id="token" name="token" required autofocus autocomplete="off" spellcheck="false"><button>Open</button></form>"""
_WORDS = {
    NO_TOKEN: (
        "This workbench is locked",
        "<p>It opens with the address that <code>headway open</code> printed in a terminal: the one that ends in "
        "<code>?token=…</code>. If that terminal is gone, <code>headway open</code> in the same folder prints the same "
        "address again.</p>",
    ),
    WRONG_HOST: (
        "That is not this machine's name",
        "<p>Open the address that <code>headway open</code> printed in a terminal, as it stands there: other names, "
        "even if they lead here, are not answered.</p>",
    ),
}
_PAGE = (files("headway.workbench") / "static" / "door.html").read_text("utf-8")
_STYLE = _PAGE.partition("<style>")[2].partition("</style>")[0]
_SUM = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_SUM}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


def door(words: str, tried: bool) -> bytes | None:
    """The page that says so to a person; None where no person sees it. `tried`: with a token that is wrong."""
    if words not in _WORDS:
        return None
    heading, said = _WORDS[words]
    if words == NO_TOKEN:
        said += _FIELD.format(label="That token is not this workbench's. Another:" if tried else "Or the token alone:")
    return _PAGE.replace("{{heading}}", heading).replace("{{words}}", said).encode()
