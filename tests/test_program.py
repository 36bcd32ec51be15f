"""Messages name the command with which the user started the program."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from algorithm import program
from algorithm.cli.parser import make_start_page
from algorithm.program import DATA, find_data_folder

ROOT = Path(__file__).resolve().parents[1]


def list_texts(source: str) -> list[str]:
    """Return the texts in a source that are no docstrings."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [node.value for node in constants if isinstance(node.value, str)]


@pytest.mark.parametrize(
    ("started", "in_checkout", "command"),
    [
        ("main.py", True, "python main.py"),
        ("/home/me/.venv/bin/samara", True, "samara"),
        ("samara.exe", False, "samara"),
        ("samara-script.py", False, "samara"),
        (str(program.PACKAGE / "__main__.py"), True, "python -m algorithm"),
        (str(program.PACKAGE / "__main__.py"), False, "python -m algorithm"),
        ("other/__main__.py", True, "python main.py"),
        ("my_program.py", True, "python main.py"),
        ("my_program.py", False, "samara"),
    ],
)
def test_the_command_is_the_one_that_started_the_process(monkeypatch, started, in_checkout, command):
    monkeypatch.setattr(sys, "argv", [started, "gym/cartpole"])
    monkeypatch.setattr(program, "IS_CHECKOUT", in_checkout)
    assert program.get_command() == command
    assert f"  {command} list " in make_start_page()


def test_packages_are_installed_from_the_checkout_or_by_name(monkeypatch):
    assert program.get_install_command() == "pip install -e ."
    assert program.get_install_command("onnx") == 'pip install -e ".[onnx]"'
    monkeypatch.setattr(program, "IS_CHECKOUT", False)
    assert program.get_install_command() == "pip install samara-rl"
    assert program.get_install_command("onnx") == 'pip install "samara-rl[onnx]"'


def test_messages_name_pages_that_exist_in_a_checkout_and_in_an_installed_package(monkeypatch):
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "algorithm").rglob("*.py")]
    names = {name for source in sources for name in re.findall(r"""get_document\(["'](\w+)["']\)""", source)}
    assert len(names) >= 2
    assert all((ROOT / program.get_document(name)).is_file() for name in names)
    monkeypatch.setattr(program, "IS_CHECKOUT", False)
    monkeypatch.setattr(program, "DATA", Path("data"))
    assert program.get_document("scaling") == str(Path("data/docs/scaling.md"))
    texts = [text for source in sources for text in list_texts(source)]
    assert [text for text in texts if re.search(r"\bdocs/\w+\.md", text)] == []


@pytest.mark.parametrize("arguments", [["gym/cartpol"], [], ["--help"], ["--version"], ["gym/cartpole", "--nonsense"]])
def test_the_module_is_the_command_line(arguments):
    def run(*command):
        return subprocess.run([sys.executable, *command, *arguments], capture_output=True, text=True, cwd=ROOT)

    one, other = run("main.py"), run("-m", "algorithm")
    assert one.returncode == other.returncode
    for ours, theirs in [(one.stdout, other.stdout), (one.stderr, other.stderr)]:
        assert ours.replace("python main.py", "python -m algorithm").split() == theirs.split()


def test_a_checkout_has_the_data_files_alongside_the_package(tmp_path):
    (tmp_path / "default_config.yaml").touch()
    (tmp_path / "algorithm" / "_data").mkdir(parents=True)
    assert find_data_folder(tmp_path / "algorithm") == tmp_path


def test_an_installed_package_contains_the_data_files(tmp_path):
    (tmp_path / "envs").mkdir()  # a package of this name that is installed, too
    assert find_data_folder(tmp_path / "algorithm") == tmp_path / "algorithm" / "_data"


def test_the_folder_of_this_package_contains_all_data_files():
    assert (DATA / "default_config.yaml").is_file()
    assert (DATA / "envs" / "gym" / "cartpole" / "config.yaml").is_file()
