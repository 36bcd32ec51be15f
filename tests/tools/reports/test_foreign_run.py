"""The folder of a run that another person made: what is planted in it harms neither files, nor pages, nor terminals."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from algorithm.cli import main
from algorithm.cli.output import Output
from algorithm.config.yaml_layers import format_yaml, load_defaults, merge
from algorithm.tools.reports.report_files import MARK, write_files
from tests.tools.reports.run_folders import RESULT, SETTINGS, write_run

WRITTEN = ("report.html", "README.md", "curve.png")
RUN = Path("runs/gym/cartpole/first")


@pytest.fixture
def run() -> Path:
    return write_run(RUN)


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
@pytest.mark.parametrize("suffix", ["", ".new"])
def test_a_report_is_not_written_through_a_link(run, tmp_path, suffix):
    (tmp_path / "elsewhere").mkdir()
    victims = {name: tmp_path / "elsewhere" / name for name in WRITTEN}
    for name, victim in victims.items():
        victim.write_text(MARK)  # so that the link of the model card does not lead to a text of the user
        (run / f"{name}{suffix}").symlink_to(victim)
    write_files(run, pytest.fail)
    for name, victim in victims.items():
        assert victim.read_text() == MARK
        assert (run / name).stat().st_size > 1000 and not (run / name).is_symlink()
        assert not (run / f"{name}.new").exists()


HTML = "<img src=x onerror=alert(1)>"
LINK = "![p](https://evil/p.png) [l](javascript:alert(1))"
CODES = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\r"
BAD = f"{HTML}\n\n{HTML}```{HTML}`{HTML}|{LINK}{CODES}"
ADDRESS = "https://user:secret@host:5000"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def poison(folder: Path) -> None:
    """Write hostile text wherever the files of a run may have text."""
    part = next(iter(RESULT["evaluation"].values()))
    record = {
        "algorithm": f"{BAD} {ADDRESS}",
        "variant": BAD,
        "commit": BAD,
        "failure": f"{BAD} {ADDRESS}",
        "status": 1,
    }
    record |= {"versions": {BAD: BAD}, "returns": {BAD: 1.0}, "evaluation": {BAD: part}}
    (folder / "result.json").write_text(json.dumps({**RESULT, **record}))
    (folder / "environment.txt").write_text(BAD)
    (folder / "faults.log").write_text(f"{BAD} {ADDRESS}")
    own = {"base_config": {"algorithm": BAD, "env_name": f"{BAD} {ADDRESS}"}, "tracker_config": {"address": ADDRESS}}
    own |= {"nn_config": {BAD: BAD}}
    (folder / "config.yaml").write_text(format_yaml(merge(merge(load_defaults(), SETTINGS), own)))
    (folder / "configs/3000.yaml").write_text(format_yaml(merge(load_defaults(), own)))
    session = {"env_steps": 0, "machine": {"processor": BAD, "system": BAD}, "versions": {BAD: BAD}, "commit": BAD}
    (folder / "sessions.jsonl").write_text(json.dumps(session))
    (folder / "videos/9000-a`b<i>).gif").write_bytes(b"video")


def test_a_model_card_and_a_report_contain_no_text_of_a_run_as_code(run):
    poison(run)
    write_files(run, pytest.fail)
    card, report = ((run / name).read_text(encoding="utf-8") for name in ("README.md", "report.html"))
    assert re.findall("<.", card) == [MARK[:2]]
    prose = re.sub("`.*`", "", card)  # without code
    assert re.findall(r"(?<!\\)\[.*", prose) == [
        "[curve.png](curve.png)",
        "[videos/9000-a`b&lt;i>).gif](videos/9000-a%60b%3Ci%3E%29.gif)",
        "[report.html](report.html) has all curves, the network and the settings.",
    ]
    assert [line for line in card.splitlines() if line.startswith("```")] == ["```python", "```"]
    assert "&lt;img src=x onerror" in card and "<img src=x" not in report and "&lt;img src=x" in report
    for text in (card, report):
        assert "secret" not in text and "https://***@host:5000" in text
        assert not CONTROL.search(text)


def test_the_terminal_receives_no_codes_of_a_run(run, capsys):
    poison(run)
    second, damaged = write_run(RUN.with_name(f"second{CODES}")), RUN.with_name(f"damaged{CODES}")
    damaged.mkdir()
    (damaged / "config.yaml").write_text("")
    (damaged / "result.json").write_text(f"{{{CODES}")
    for arguments in (
        ["list"],
        ["report", "gym/cartpole", "-n", second.name],
        ["report", "gym/cartpole", "-n", f"nothing{CODES}"],
        ["compare", str(RUN), str(second)],
        ["compare", str(damaged)],
        ["list", "--json"],
    ):
        main.main(arguments)
        shown = capsys.readouterr()
        assert shown.out or shown.err
        assert not CONTROL.search(shown.out + shown.err), arguments


def test_a_comparison_shows_no_password(run, capsys):
    long = f"https://user:{'secret' * 10}@host"  # whose password is longer than what a label has of a setting
    for name, address in (("second", long), ("third", "https://host")):
        folder = write_run(RUN.with_name(name))
        tree = merge(merge(load_defaults(), SETTINGS), {"base_config": {"env_args": {"url": address}}})
        (folder / "config.yaml").write_text(format_yaml(tree))
        (folder / "result.json").write_text(json.dumps({**RESULT, "variant": f"of {ADDRESS}"}))
    runs = [str(RUN.with_name(name)) for name in ("second", "third")]
    assert main.main(["compare", *runs, "--json"]) == 0
    shown = capsys.readouterr()
    pages = [path.read_text(encoding="utf-8") for path in Path().glob("**/compare*") if path.is_file()]
    assert len(pages) == 2 and not any("secret" in text for text in (shown.out, shown.err, *pages))
    labels = [group["label"] for group in json.loads(shown.out)["environments"][0]["groups"]]
    assert labels == [f"ACER (of https://***@host:5000) url=https://{host}" for host in ("***@host", "host")]


def test_a_line_of_the_terminal_shows_no_password(capsys):
    for log in (Output(False).log, Output(False).log_plain):
        log(f"{CODES}the server {ADDRESS}")
        shown = capsys.readouterr().out
        assert shown.endswith("the server https://***@host:5000\n") and not CONTROL.search(shown[:-1])
