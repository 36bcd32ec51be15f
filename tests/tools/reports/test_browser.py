"""Pages in a browser: a report and a comparison. No console error, no network, light, dark and phone width."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from algorithm.tools.reports.comparison import compare
from algorithm.tools.reports.comparison_output import write_files as write_comparison
from algorithm.tools.reports.report_files import write_files
from tests.tools.reports.run_folders import write_curve, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: install Chromium, for example apt-get install chromium"),
]
# Chromium as root needs --no-sandbox; the pages are those of this project.
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr")
DOCS = Path(__file__).resolve().parents[3] / "docs"
DARK, LIGHT = 0, 1  # values of the preferred theme
VIEWS = {"light": (LIGHT, 1200), "dark": (DARK, 1200), "phone": (LIGHT, 390)}  # theme, and width in pixels
HEIGHT = 900
# A page that shows another one in a frame of a given width, and then writes what it finds there.
FRAME = """<!DOCTYPE html>
<body style="margin: 0"><iframe src="URL" width="WIDTH" height="HEIGHT" style="border: 0"></iframe><pre></pre>
<script>
onload = () => {
    const view = document.querySelector("iframe").contentWindow, page = view.document;
    document.querySelector("pre").textContent = JSON.stringify({
        requests: view.performance.getEntriesByType("resource").map(each => each.name),
        images: [...page.images].filter(each => each.naturalWidth).map(each => each.src),
        width: page.documentElement.scrollWidth,
        background: view.getComputedStyle(page.body).backgroundColor,
    });
};
</script></body>
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "gym/cartpole/first")
    write_files(folder, pytest.fail)
    for video in (folder / "videos").glob("*.mp4"):  # these are no videos that a browser could play
        video.unlink()
    for picture in (folder / "videos").glob("*.gif"):
        Image.fromarray(np.zeros((60, 80, 3), np.uint8)).save(picture)
    write_files(folder, pytest.fail)
    return folder


@pytest.fixture(scope="module")
def comparison(tmp_path_factory) -> Path:
    """The page of a comparison in two environments, whose labels are long."""
    runs = tmp_path_factory.mktemp("compared")
    for environment in ("mine/x", "mine/y"):
        for rate in (0.002, 0.00002):
            for seed in range(5):
                write_curve(
                    runs / environment / f"{rate}-{seed}",
                    {steps: rate * steps**0.5 * (9 + seed) for steps in range(0, 10_000, 500)},
                    environment=environment,
                    variant="a variant with a long name",
                    seed=seed,
                    settings={"acer_config": {"learning_rate": rate}},
                )
    return write_comparison(compare([str(runs)], None, pytest.fail), runs, "compare")[0]


def visit(page: Path, folder: Path, view: str = "light") -> dict[str, Any]:
    """Open a page, and return what was found.

    `requests` to a network, `images` that it shows, its `width`, its `background`, `errors` of the console, and its
    `pixels` [height, width, 3].
    """
    theme, width = VIEWS[view]
    values = {"URL": page.resolve().as_uri(), "WIDTH": str(width), "HEIGHT": str(HEIGHT)}
    (folder / "frame.html").write_text(re.sub("URL|WIDTH|HEIGHT", lambda match: values[match[0]], FRAME))
    options = [f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={theme}", "--dump-dom"]
    options += [
        f"--window-size={width},{HEIGHT}",
        f"--screenshot={folder / view}.png",
        "--allow-file-access-from-files",
    ]
    command = [str(CHROMIUM), *ARGUMENTS, *options, (folder / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    print("screenshot:", folder / f"{view}.png")
    with Image.open(folder / f"{view}.png") as image:
        pixels = np.asarray(image.convert("RGB"))[:HEIGHT, :width].astype(int)
    found = json.loads(unescape(re.search("<pre>(.*?)</pre>", done.stdout)[1]))
    return {**found, "errors": re.findall("CONSOLE.*", done.stderr), "pixels": pixels}


def visit_all(page: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Open a page in all views, and check that it loads nothing from a network, fits, and follows the theme."""
    visited = {view: visit(page, folder, view) for view in VIEWS}
    for view, found in visited.items():
        assert found["errors"] == []
        assert all(url.startswith(("file://", "data:")) for url in found["requests"])
        assert found["width"] <= VIEWS[view][1]  # no scrolling to the side
        _, counts = np.unique(found["pixels"].reshape(-1, 3) @ (1 << 16, 1 << 8, 1), return_counts=True)
        assert 0.5 < counts.max() / counts.sum() < 0.995  # text and charts on a page
        assert found["background"] == ("rgb(21, 24, 27)" if view == "dark" else "rgb(255, 255, 255)")
    return visited


def test_a_report_in_a_browser(run, tmp_path):
    visit_all(run / "report.html", tmp_path)
    (tmp_path / "broken.html").write_text("<script>missing()</script><img src='http://127.0.0.1:9/a.png'>")
    broken = visit(tmp_path / "broken.html", tmp_path)
    assert broken["errors"] and "http://127.0.0.1:9/a.png" in broken["requests"]


def test_a_comparison_in_a_browser(comparison, tmp_path):
    visited = visit_all(comparison, tmp_path)
    assert visited["light"]["requests"] == visited["light"]["images"] == []  # the page alone
