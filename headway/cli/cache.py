"""`headway cache`: show or delete what is cached between runs."""

import time
from typing import Annotated

import typer

from headway.cli.options import AsJson, print_json
from headway.core.errors import UserError


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete it; it is made again when needed.")] = False,
    older_than: Annotated[
        float | None, typer.Option(help="Only entries that were not used for this many days.", metavar="DAYS", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is cached between runs (prepared data, pretrained models), where, and how large; or clear it."""
    from headway.cli import printing
    from headway.core.format import byte_size
    from headway.data import cache as kept

    now = time.time()
    try:
        where = str(kept.folder())
    except RuntimeError:
        raise UserError("this user has no home folder: set HEADWAY_CACHE to a folder for the cache") from None
    some = [one for one in kept.entries() if older_than is None or now - one.used > older_than * 86400]
    freed = kept.clear(some) if clear else 0
    if as_json:
        told = [{"name": one.path.name, "bytes": one.size, "current": one.is_current} for one in some]
        for entry, one in zip(told, some, strict=True):
            entry["days"] = round((now - one.used) / 86400, 3)
        whole = sum(one.size for one in some)
        print_json("cache", {"folder": where, "bytes": whole, "cleared": clear, "entries": told})
    elif clear:
        print(f"{len(some):,} entries removed from {where}: {byte_size(freed)}")
    else:
        kinds: dict[str, list[kept.Entry]] = {}
        for one in some:
            kinds.setdefault(one.kind, []).append(one)
        sizes = {kind: sum(one.size for one in same) for kind, same in kinds.items()}
        rows = [
            [
                kind,
                f"{len(kinds[kind]):,}",
                byte_size(sizes[kind]),
                f"{(now - max(o.used for o in kinds[kind])) / 86400:.1f}",
            ]
            for kind in sorted(kinds, key=lambda kind: -sizes[kind])
        ]
        if rows:
            printing.show_table(["what", "entries", "size", "days unused"], rows)
        print(f"{len(some):,} entries, {byte_size(sum(one.size for one in some))} in {where}")
