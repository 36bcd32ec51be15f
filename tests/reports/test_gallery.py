"""The page of a gallery: runs that reached their goal with their files, other runs, and what was not trained."""

import json
import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from algorithm.reports.gallery import write_gallery
from algorithm.reports.run_data import read_run
from tests.reports.run_folders import write_run


def write_missed(folder, environment):
    """Write the run of another environment that did not reach its goal."""
    write_run(folder)
    (folder / "environment.txt").write_text(f"{environment}\n")
    record = json.loads((folder / "result.json").read_text())
    record |= {"environment": environment, "reached": False}
    (folder / "result.json").write_text(json.dumps(record))
    return folder


def test_a_page_shows_the_runs_that_reached_their_goal_and_lists_the_others(tmp_path):
    runs = [read_run(write_run(tmp_path / "a")), read_run(write_missed(tmp_path / "b", "mine/task_b"))]
    left_out = {"unity/roller": "its config.yaml has no goal", "mine/other": "a | b"}
    page = write_gallery(tmp_path / "page", runs, left_out, 90)
    text = page.read_text(encoding="utf-8")
    assert "within 90 seconds of training" in text
    assert "Machine: processor Fast &lt;CPU>, cores 2, memory 16.0 GiB, system Linux 6.\n" in text
    assert "| [gym/cartpole](#gymcartpole) | ACER | 475.0 | 6,000 | 12.5 s |\n" in text
    assert "## gym/cartpole\n" in text and "    python main.py gym/cartpole\n" in text
    assert "- env steps: 6,000" in text
    assert "| mine/task_b | ACER | 475.0 | 6,000 | 476.2 |\n" in text and "## mine/task_b" not in text
    assert "| unity/roller | its config.yaml has no goal |\n" in text
    assert r"| mine/other | a \| b |" in text
    links = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert links == ["gym_cartpole.svg", "gym_cartpole.gif"]
    assert {path.name for path in page.parent.iterdir()} == {page.name, *links}
    (chart,) = ElementTree.parse(page.parent / "gym_cartpole.svg").getroot().iterfind("{*}svg")
    assert "".join(chart.itertext()).strip()
    assert (page.parent / "gym_cartpole.gif").read_bytes() == b"video"  # the best episode: there is no median


def test_the_video_of_the_median_episode_is_shown(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "videos/6000-median.gif").write_bytes(b"median")
    page = write_gallery(tmp_path / "page", [read_run(folder)], {}, 90)
    assert (page.parent / "gym_cartpole.gif").read_bytes() == b"median"
    assert "Not reached" not in page.read_text(encoding="utf-8")


def test_a_run_without_videos_and_rows_has_no_pictures(tmp_path):
    folder = write_run(tmp_path / "a")
    for path in (folder / "videos").iterdir():
        path.unlink()
    (folder / "metrics.csv").unlink()
    page = write_gallery(tmp_path / "page", [read_run(folder)], {}, 90)
    assert "![" not in page.read_text(encoding="utf-8")
    assert list(page.parent.iterdir()) == [page]
