"""A real browser, for tests that use the workbench like a person."""

import shutil

import pytest


@pytest.fixture(scope="module")
def chromium():
    """One browser for all tests of a file. Skipped visibly if playwright or Chromium is not installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium is installed")
    with playwright.sync_playwright() as tool:
        playwright.expect.set_options(timeout=20_000)  # the first answer about a model waits for the import of torch
        browser = tool.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
