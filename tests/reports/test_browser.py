"""A report and a comparison in a browser: no console error, no network, readable in light, dark and on a phone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from algorithm.reports.comparison import compare
from algorithm.reports.comparison_page import write_page
from algorithm.reports.report_files import write_files
from tests.reports import compared_folders
from tests.reports.browser import DARK, DESKTOP, EXECUTABLE, LIGHT, PHONE, Browser, VisitedPage
from tests.reports.run_folders import write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="no browser: install Chromium, for example apt-get install chromium"),
]
VIEWS = {"light": (LIGHT, DESKTOP), "dark": (DARK, DESKTOP), "phone": (LIGHT, PHONE)}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """The folder of the screenshots, which pytest keeps for some runs."""
    return tmp_path_factory.mktemp("screenshots")


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
                compared_folders.write_run(
                    runs / environment / f"{rate}-{seed}",
                    {steps: rate * steps**0.5 * (9 + seed) for steps in range(0, 10_000, 500)},
                    environment=environment,
                    variant="a variant with a long name",
                    seed=seed,
                    settings={"acer_config": {"learning_rate": rate}},
                )
    return write_page(compare([str(runs)], None, pytest.fail), runs, "compare")


def visit(browser: Browser, page: Path, pictures: Path) -> dict[str, VisitedPage]:
    """Open a page in all views, and check that it loads nothing and fits; return what was recorded of each view."""
    visited = {}
    for name, (theme, window) in VIEWS.items():
        picture = pictures / f"{page.stem}-{name}.png"
        visited[name] = browser.visit(page, theme, window, picture)
        assert visited[name].errors == []
        assert visited[name].requests
        assert all(url.startswith(("file://", "data:")) for url in visited[name].requests)
        assert visited[name].size[0] <= window[0]  # no scrolling to the side
        with Image.open(picture) as image:
            assert image.size == (window[0], visited[name].size[1])
            pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
        is_background = (pixels == pixels[0]).all(1).mean()
        assert 0.6 < is_background < 0.995  # text and charts on a page
        assert (pixels[0].mean() < 60) == (name == "dark")
    print("screenshots:", *pictures.glob(f"{page.stem}-*.png"))
    assert visited["light"].background == visited["phone"].background == "rgb(255, 255, 255)"
    assert visited["dark"].background == "rgb(21, 24, 27)"
    return visited


def test_a_report_in_a_browser(run, pictures, tmp_path):
    with Browser(tmp_path) as browser:
        visit(browser, run / "report.html", pictures)
        (tmp_path / "broken.html").write_text("<script>missing()</script><img src='http://127.0.0.1:9/a.png'>")
        broken = browser.visit(tmp_path / "broken.html", LIGHT, DESKTOP, tmp_path / "broken.png")
        assert broken.errors and "http://127.0.0.1:9/a.png" in broken.requests


def test_a_comparison_in_a_browser(comparison, pictures, tmp_path):
    with Browser(tmp_path) as browser:
        visited = visit(browser, comparison, pictures)
    (url,) = visited["light"].requests  # the page alone
    assert url == comparison.resolve().as_uri()
