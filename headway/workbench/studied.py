"""Conclusions of studies, and results of cases. Runs in a worker, which can parse recipes."""

from functools import partial
from pathlib import Path
from typing import Any

from headway.workbench.paths import check_links

_KNOWN: dict[tuple[str, str], tuple[Any, Any]] = {}
"""Cached answers, with the modification times of the files they were made from."""


def conclusion(folder: str) -> dict[str, Any]:
    """The answer of `headway study results --json`, with a drawing of every interval and the figures of the report."""
    return _kept("conclusion", Path(folder), _conclusion)


def _conclusion(folder: Path) -> dict[str, Any]:
    from headway.draw.charts import interval_mark
    from headway.study.conclude import so_far
    from headway.study.report.figures import figures
    from headway.study.report.tables import reported_table, scores_table

    found = so_far(folder)
    results, told = found.results, found.as_json()
    marks = [
        interval_mark(v.effect, *v.interval) if v.effect is not None and v.interval else "" for v in found.verdicts
    ]
    tables = [scores_table(results), reported_table(results)] if results.runs else []
    return {
        "told": told,
        "about": results.study.about,
        "seeds": list(results.study.seeds),
        "early": bool(results.missing),
        "marks": marks,
        "tables": [_table(table) for table in tables if table is not None],
        "figures": [{"picture": f.picture, "caption": f.caption} for f in (figures(results) if results.runs else [])],
        "questions": [str(question) for question in results.study.asked],
    }


def plan(folder: str) -> dict[str, Any]:
    """What the whole study takes, by measuring each shape briefly: `headway study plan --json`."""
    from headway.study.execution.execute import suited
    from headway.study.execution.plan import plan as plan_study
    from headway.study.folder import StudyFolder

    home = StudyFolder(Path(folder))
    return plan_study(home.study, suited(home.study).workforce, home.budgets).as_json()


def case(studies: str, name: str) -> dict[str, Any]:
    """One case: what was reported, and the results of each of its sizes here."""
    from headway.cases.catalogue import conclusion_of, folder_of, takes, title_of
    from headway.cases.table import carried_out

    sizes = []
    for quick in (True, False):
        done = carried_out(Path(studies), name, quick)
        size: dict[str, Any] = {"quick": quick, "takes": takes(name, quick), "folder": folder_of(name, quick)}
        if done is not None:
            size |= {"status": done.status, "where": done.where, "measured": _table(done.measured), "said": done.said}
        sizes.append(size)
    return {"case": name, "title": title_of(name), "reported": conclusion_of(name), "sizes": sizes}


def standings(studies: str, home: str) -> dict[str, dict[str, Any]]:
    """For every case: the reported conclusion, and whether it holds in the studies below `home`, the served folder."""
    from headway.cases.catalogue import conclusion_of, folder_of, packaged

    found = {}
    for name in packaged():
        sizes = {}
        for size, quick in (("quick", True), ("full", False)):
            folder = Path(studies) / folder_of(name, quick)
            if folder.is_dir():
                sizes[size] = _kept(f"case {name}", folder, partial(_status, Path(home), name, quick))
        found[name] = {"reported": conclusion_of(name), **sizes}
    return found


def _status(home: Path, name: str, quick: bool, folder: Path) -> str:
    from headway.cases.table import carried_out
    from headway.core.errors import UserError

    try:
        check_links(home, folder)
        done = carried_out(folder.parent, name, quick)
    except UserError as error:
        return f"cannot be read: {error}"
    return done.status if done else "begun"


def _table(table: Any) -> dict[str, Any]:
    rows = [
        {"name": r.name, "cells": list(map(str, r.cells)), "remark": r.remark, "beside": r.beside} for r in table.rows
    ]
    notes = list(table.notes)
    return {"caption": table.caption, "columns": list(table.columns), "rows": rows, "notes": notes}


def _kept(what: str, folder: Path, made: Any) -> Any:
    """The previous answer, if none of its files has changed."""
    mark = _mark(folder)
    key = (what, str(folder))
    if key not in _KNOWN or _KNOWN[key][0] != mark:
        _KNOWN[key] = mark, made(folder)
    return _KNOWN[key][1]


def _mark(folder: Path) -> list[tuple[str, int]]:
    files = [folder / name for name in ("study.yaml", "looks.json", "ensembles.json", "verdicts.json")]
    runs = [folder / "failures", *sorted((folder / "runs").glob("*"))]
    return [(str(path), path.stat().st_mtime_ns) for path in (*files, *runs) if path.exists()]
