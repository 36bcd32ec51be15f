"""The page of a gallery: runs that reached their goal with their files, other runs, and what was not trained."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from algorithm.errors import UserError
from algorithm.tools.reports.gallery import Gallery, make_entry, read_gallery, write_gallery
from algorithm.tools.reports.run_data import read_run
from tests.tools.reports.run_folders import write_run

DOCS_PAGE = Path(__file__).resolve().parents[3] / "docs/gallery/index.md"


def write_missed(folder, environment):
    """Write the run of another environment that did not reach its goal."""
    write_run(folder)
    (folder / "environment.txt").write_text(f"{environment}\n")
    record = json.loads((folder / "result.json").read_text())
    record |= {"environment": environment, "reached": False}
    (folder / "result.json").write_text(json.dumps(record))
    return folder


def write_page(folder, runs, left_out=None):
    """Write the page of runs into a folder and return its path."""
    entries = [make_entry(folder, read_run(run), 90) for run in runs]
    gallery = Gallery(entries={entry.environment: entry for entry in entries}, left_out=left_out or {})
    return write_gallery(folder, gallery)


def test_a_page_shows_the_runs_that_reached_their_goal_and_lists_the_others(tmp_path):
    runs = [write_run(tmp_path / "a"), write_missed(tmp_path / "b", "mine/task_b")]
    left_out = {"unity/roller": "its config.yaml has no goal", "mine/other": "a | b", "mine/task_b": "on the page"}
    page = write_page(tmp_path / "page", runs, left_out)
    text = page.read_text(encoding="utf-8")
    assert "on the page" not in text and "- machine" not in text
    assert "Machine: processor Fast &lt;CPU>, cores 2, memory 16.0 GiB.\n" in text
    assert "| [gym/cartpole](#gymcartpole) | ACER | 475.0 | 6,000 | 12.5 s |\n" in text
    assert "## gym/cartpole\n" in text and "    python main.py gym/cartpole\n" in text
    assert "- env steps: 6,000" in text
    assert "| mine/task_b | ACER | 475.0 | 6,000 | 476.2 | 1 min 30 s |\n" in text and "## mine/task_b" not in text
    assert "| unity/roller | its config.yaml has no goal |\n" in text
    assert r"| mine/other | a \| b |" in text
    links = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert links == ["gym_cartpole.svg", "gym_cartpole.gif"]
    assert '| [<img src="gym_cartpole.gif" width="200" alt="gym/cartpole"><br>gym/cartpole](#gymcartpole) |\n' in text
    assert {path.name for path in page.parent.iterdir()} == {page.name, "gallery.json", *links}
    (chart,) = ElementTree.parse(page.parent / "gym_cartpole.svg").getroot().iterfind("{*}svg")
    assert "".join(chart.itertext()).strip()
    assert (page.parent / "gym_cartpole.gif").read_bytes() == b"video"  # the best episode: there is no median


def test_without_a_reached_goal_there_is_a_sentence_instead_of_tables(tmp_path):
    text = write_page(tmp_path / "page", [write_missed(tmp_path / "b", "mine/task_b")]).read_text(encoding="utf-8")
    assert (
        "No environment folder has reached its goal yet.\n" in text and "| env steps | time of training |" not in text
    )


def test_the_grid_has_rows_of_three_pictures_the_video_or_the_curve(tmp_path):
    entry = make_entry(tmp_path, read_run(write_run(tmp_path / "a")), 90)
    entries = {
        name: replace(entry, environment=name, video=None if name == "e/b" else f"{name[2:]}.gif")
        for name in ("e/a", "e/b", "e/c", "e/d")
    }
    text = write_gallery(tmp_path, Gallery(entries=entries)).read_text(encoding="utf-8")
    rows = [re.findall('src="(.*?)"', line) for line in text.splitlines() if "<img" in line]
    assert rows == [["a.gif", "gym_cartpole.svg", "c.gif"], ["d.gif"]]


def test_the_video_of_the_median_episode_is_shown(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "videos/6000-median.gif").write_bytes(b"median")
    page = write_page(tmp_path / "page", [folder])
    assert (page.parent / "gym_cartpole.gif").read_bytes() == b"median"
    assert "not reached" not in page.read_text(encoding="utf-8")


def test_a_run_without_videos_and_rows_has_no_pictures(tmp_path):
    folder = write_run(tmp_path / "a")
    for path in (folder / "videos").iterdir():
        path.unlink()
    (folder / "metrics.csv").unlink()
    page = write_page(tmp_path / "page", [folder])
    assert "![" not in page.read_text(encoding="utf-8")
    assert {path.name for path in page.parent.iterdir()} == {page.name, "gallery.json"}


def test_a_page_is_read_and_written_without_its_runs(tmp_path):
    page = write_page(tmp_path / "page", [write_run(tmp_path / "a")], {"mine/other": "no goal"})
    before = page.read_bytes()
    shutil.rmtree(tmp_path / "a")
    gallery = read_gallery(page.parent)
    write_gallery(page.parent, gallery)
    assert page.read_bytes() == before
    other = make_entry(page.parent, read_run(write_missed(tmp_path / "b", "mine/task_b")), 90)
    other = replace(other, machine="processor Slow", reached=True)
    write_gallery(page.parent, replace(gallery, entries={**gallery.entries, other.environment: other}))
    text = page.read_text(encoding="utf-8")
    assert "## gym/cartpole" in text and "![Return in gym/cartpole by env steps](gym_cartpole.svg)" in text
    assert "Machine: processor Slow.\n" in text and "- machine: processor Slow\n" in text  # there are two
    assert read_gallery(tmp_path / "nowhere") == Gallery()


@pytest.mark.parametrize("content", ["{", "{}", '{"entries": [{"environment": "a"}], "left_out": {}}', "\xff"])
def test_a_damaged_record_is_one_line_and_is_kept(tmp_path, content):
    (tmp_path / "gallery.json").write_text(content, encoding="latin-1")
    with pytest.raises(UserError, match=r"gallery.json is damaged") as error:
        read_gallery(tmp_path)
    assert "\n" not in str(error.value)
    assert (tmp_path / "gallery.json").read_text(encoding="latin-1") == content


def test_the_page_of_the_documentation_is_that_of_its_record(tmp_path):
    page = write_gallery(tmp_path, read_gallery(DOCS_PAGE.parent))
    text = DOCS_PAGE.read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8") == text
    links = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert {path.name for path in DOCS_PAGE.parent.iterdir()} == {"index.md", "gallery.json", *links}
