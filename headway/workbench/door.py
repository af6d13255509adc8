"""The page for visitors without the token: it says what to do. It reveals nothing about the served folder.

Its style is inline, since all other files need the token; the security policy allows that style by its hash.
"""

import base64
import hashlib
from importlib.resources import files

NO_TOKEN = "this page needs the address that `headway open` printed, with its token"
WRONG_HOST = "unknown host name: open the address that `headway open` printed"

_FIELD = """<form method="get"><label for="token">{label}</label>
<input id="token" name="token" required autofocus autocomplete="off" spellcheck="false"><button>Open</button></form>"""
_WORDS = {
    NO_TOKEN: (
        "This workbench is locked",
        "<p>Open the address that <code>headway open</code> printed in a terminal; it ends in "
        "<code>?token=…</code>. If you no longer have it, run <code>headway open</code> in the same folder: it prints "
        "the same address again.</p>",
    ),
    WRONG_HOST: (
        "Unknown host name",
        "<p>Open exactly the address that <code>headway open</code> printed in a terminal. Requests with other host "
        "names are not answered, even if they reach this machine.</p>",
    ),
}
_PAGE = (files("headway.workbench") / "static" / "door.html").read_text("utf-8")
_STYLE = _PAGE.partition("<style>")[2].partition("</style>")[0]
_SUM = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_SUM}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


def door(words: str, tried: bool) -> bytes | None:
    """The page with these instructions, or None for other messages. `tried`: a wrong token was given."""
    if words not in _WORDS:
        return None
    heading, said = _WORDS[words]
    if words == NO_TOKEN:
        said += _FIELD.format(label="This token is wrong. Try another:" if tried else "Or enter the token alone:")
    return _PAGE.replace("{{heading}}", heading).replace("{{words}}", said).encode()
