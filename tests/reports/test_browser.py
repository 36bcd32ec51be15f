"""A report in a headless browser: no console error, no request to a network, readable in light, dark and on a phone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from algorithm.reports.report_files import write_files
from tests.reports.browser import DARK, DESKTOP, EXECUTABLE, LIGHT, PHONE, Browser
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


def test_a_report_in_a_browser(run, pictures, tmp_path):
    backgrounds, sizes = {}, {}
    with Browser(tmp_path) as browser:
        for name, (theme, window) in VIEWS.items():
            page = browser.visit(run / "report.html", theme, window, pictures / f"report-{name}.png")
            assert page.errors == []
            assert page.requests and all(url.startswith(("file://", "data:")) for url in page.requests)
            assert page.size[0] <= window[0]  # no scrolling to the side
            backgrounds[name], sizes[name] = page.background, page.size
        (tmp_path / "broken.html").write_text("<script>missing()</script><img src='http://127.0.0.1:9/a.png'>")
        broken = browser.visit(tmp_path / "broken.html", LIGHT, DESKTOP, tmp_path / "broken.png")
        assert broken.errors and "http://127.0.0.1:9/a.png" in broken.requests
    assert backgrounds["light"] == backgrounds["phone"] == "rgb(255, 255, 255)"
    assert backgrounds["dark"] == "rgb(21, 24, 27)"
    print("screenshots:", *pictures.glob("*.png"))
    for name, size in sizes.items():
        with Image.open(pictures / f"report-{name}.png") as picture:
            assert picture.size == (VIEWS[name][1][0], size[1])
            pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
        is_background = (pixels == pixels[0]).all(1).mean()
        assert 0.6 < is_background < 0.995  # text and charts on a page
        assert (pixels[0].mean() < 60) == (name == "dark")
