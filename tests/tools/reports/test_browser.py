"""Pages in a browser: a report, a comparison, a gallery. No console error, no network, light, dark and phone width."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from algorithm.tools.reports.comparison import compare
from algorithm.tools.reports.comparison_output import write_page
from algorithm.tools.reports.gallery import Gallery, make_entry, write_gallery
from algorithm.tools.reports.report_files import write_files
from algorithm.tools.reports.run_data import read_run
from tests.tools.reports.browser import DARK, DESKTOP, EXECUTABLE, LIGHT, PHONE, Browser, VisitedPage
from tests.tools.reports.run_folders import write_curve, write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="no browser: install Chromium, for example apt-get install chromium"),
]
DOCS = Path(__file__).resolve().parents[3] / "docs"
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
                write_curve(
                    runs / environment / f"{rate}-{seed}",
                    {steps: rate * steps**0.5 * (9 + seed) for steps in range(0, 10_000, 500)},
                    environment=environment,
                    variant="a variant with a long name",
                    seed=seed,
                    settings={"acer_config": {"learning_rate": rate}},
                )
    return write_page(compare([str(runs)], None, pytest.fail), runs, "compare")


@pytest.fixture(scope="module")
def gallery(run, tmp_path_factory) -> Path:
    """The page of a gallery in a site that is built as the documentation is."""
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package)
    source = tmp_path_factory.mktemp("site")
    entry = make_entry(source / "gallery", read_run(run), 300)
    left_out = {"unity/roller": "its config.yaml has no goal"}
    write_gallery(source / "gallery", Gallery(entries={entry.environment: entry}, left_out=left_out))
    (source / "index.md").write_text("# Site\n\n```{toctree}\ngallery/index\n```\n")
    shutil.copy(DOCS / "conf.py", source)
    subprocess.run(
        [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", ".", "built"], cwd=source, check=True
    )
    return source / "built/gallery/index.html"


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
        colors, counts = np.unique(pixels.astype(int) @ (1 << 16, 1 << 8, 1), return_counts=True)
        assert 0.5 < counts.max() / len(pixels) < 0.995  # text and charts on a page
        assert (colors[counts.argmax()] < 0x404040) == (name == "dark")
    print("screenshots:", *pictures.glob(f"{page.stem}-*.png"))
    return visited


def check_backgrounds(visited: dict[str, VisitedPage]) -> None:
    """Check that a page of the project's own style follows the theme of the browser."""
    assert visited["light"].background == visited["phone"].background == "rgb(255, 255, 255)"
    assert visited["dark"].background == "rgb(21, 24, 27)"


def test_a_report_in_a_browser(run, pictures, tmp_path):
    with Browser(tmp_path) as browser:
        check_backgrounds(visit(browser, run / "report.html", pictures))
        (tmp_path / "broken.html").write_text("<script>missing()</script><img src='http://127.0.0.1:9/a.png'>")
        broken = browser.visit(tmp_path / "broken.html", LIGHT, DESKTOP, tmp_path / "broken.png")
        assert broken.errors and "http://127.0.0.1:9/a.png" in broken.requests


def test_a_comparison_in_a_browser(comparison, pictures, tmp_path):
    with Browser(tmp_path) as browser:
        visited = visit(browser, comparison, pictures)
    check_backgrounds(visited)
    (url,) = visited["light"].requests  # the page alone
    assert url == comparison.resolve().as_uri()


def test_a_gallery_in_a_browser(gallery, pictures, tmp_path):
    with Browser(tmp_path) as browser:
        visited = visit(browser, gallery, pictures)
    assert any(url.endswith("gym_cartpole.svg") for url in visited["light"].requests)
    assert any(url.endswith("gym_cartpole.gif") for url in visited["light"].requests)
