"""Debian's chromium without a window, for tests of pages and for the screenshots of the documentation."""

import shutil
import subprocess
import tempfile
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--enable-logging=stderr"),
    "--disable-dev-shm-usage",
)


def loaded(page: Path) -> tuple[str, list[str]]:
    """The document of a page once its scripts have run, and what was said on the console meanwhile: errors, and what
    the page's Content-Security-Policy refuses."""
    done = _run(page, "--dump-dom")
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def screenshot(page: Path, image: Path, width: int, height: int) -> None:
    """A picture of the page from its top, as PNG."""
    _run(page, f"--window-size={width},{height}", f"--screenshot={image}")


def _run(page: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    if CHROMIUM is None:
        raise FileNotFoundError("there is no chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [CHROMIUM, *QUIET, f"--user-data-dir={profile}", *arguments, page.resolve().as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
