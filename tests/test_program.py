"""The program has the name by which the user started it, and the package works without the repository."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import algorithm
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


@pytest.mark.parametrize(("system", "quoted"), [("posix", "'b c'"), ("nt", '"b c"')])
def test_arguments_of_commands_have_the_quotes_of_the_users_shell(monkeypatch, system, quoted):
    monkeypatch.setattr(program, "_find_command", lambda: "samara")  # whose paths need the name of the real system
    monkeypatch.setattr(program.os, "name", system)
    assert program.get_command("a", "b c") == f"samara a {quoted}"


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


def test_the_data_files_are_alongside_the_package_in_a_checkout_and_inside_of_an_installed_one(tmp_path):
    (tmp_path / "envs").mkdir()  # a package of this name that is installed, too
    assert find_data_folder(tmp_path / "algorithm") == tmp_path / "algorithm" / "_data"
    (tmp_path / "default_config.yaml").touch()
    (tmp_path / "algorithm" / "_data").mkdir(parents=True)
    assert find_data_folder(tmp_path / "algorithm") == tmp_path
    assert (DATA / "default_config.yaml").is_file() and (DATA / "envs/gym/cartpole/config.yaml").is_file()


SHORT = ["--max-step", "300", "--set", "base_config.log_every=100", "base_config.save_every=150", "goal=null"]


def test_the_command_of_the_package_is_the_command_line():
    from algorithm.cli.main import run_process

    try:
        points = metadata.distribution("samara-rl").entry_points.select(group="console_scripts", name="samara")
    except metadata.PackageNotFoundError:
        pytest.skip("not installed")
    assert [point.load() for point in points] in ([run_process], [])  # none in an installation of an earlier version


def test_the_public_names_exist_and_importing_the_package_imports_nothing_heavy():
    assert sorted(algorithm.__all__) == sorted(set(algorithm.__all__))
    assert all(getattr(algorithm, name) is not None for name in algorithm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        algorithm.trian  # noqa: B018
    code = "import sys, algorithm; assert not {'torch', 'numpy', 'gymnasium'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_description_for_a_package_index_has_no_path_of_this_repository():
    text = subprocess.check_output([sys.executable, "setup.py", "--long-description"], cwd=ROOT, text=True)
    assert text.startswith("# Samara\n") and "*(picture: A terminal during a training run)*" in text
    assert re.findall(r"\]\((?!https?:)(.*?)\)", text) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ("https://name:secret@example.org/samara/samara.git", "https://example.org/samara/samara"),
        ("git@example.org:samara.git", "https://example.org/samara"),
        ("/srv/samara", None),
    ],
)
def test_a_package_names_the_web_addresses_of_its_repository(tmp_path, origin, source):
    (tmp_path / "algorithm").mkdir()
    for name in ("setup.py", "README.md", "algorithm/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for words in (["git", "init", "-q"], ["git", "remote", "add", "origin", origin]):
        subprocess.run(words, cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "setup.py", "-q", "egg_info"], cwd=tmp_path, check=True, capture_output=True)
    text = (tmp_path / "samara_rl.egg-info" / "PKG-INFO").read_text(encoding="utf-8")
    assert re.findall("^Project-URL: Source, (.*)$", text, re.MULTILINE) == ([source] if source else [])
    assert text.count("Project-URL") == (4 if source else 0) and "secret" not in text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wheel_works_in_an_empty_folder(tmp_path):
    def run(*command, status=0, **variables):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
        place, words = tmp_path / "empty", [*map(str, command)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=place, env=environment)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    (tmp_path / "empty").mkdir()
    tree = tmp_path / "tree"
    archive = tmp_path / "tree.tar"
    files = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    (tmp_path / "files.txt").write_text("".join(f"{name}\n" for name in files.splitlines() if (ROOT / name).exists()))
    subprocess.run(["tar", "-cf", archive, "-T", tmp_path / "files.txt"], cwd=ROOT, check=True)
    tree.mkdir()
    subprocess.run(["tar", "-xf", archive], cwd=tree, check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path / "dist", tree)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"algorithm/py.typed", "algorithm/_data/default_config.yaml"} <= set(names)
    assert {"algorithm/_data/envs/gym/cartpole/config.yaml", "algorithm/_data/docs/configuration.md"} <= set(names)
    assert {"algorithm/tools/reports/templates/run.html", "algorithm/tools/reports/templates/style.css"} <= set(names)
    assert not [name for name in names if name.endswith(".pyc") or name.startswith(("tests/", "envs/", "main.py"))]

    # The required packages are imported from this Python; the package itself is imported from the wheel only.
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    bin_folder = venv / ("Scripts" if os.name == "nt" else "bin")
    python = bin_folder / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel)
    outer = [path for path in sys.path if path.endswith("-packages")]
    (site / "outer.pth").write_text("\n".join(outer))
    command = bin_folder / "samara"

    assert run(command, "--version") == f"samara {algorithm.__version__}\n"
    start_page = run(command)
    assert "samara gym/cartpole" in start_page
    assert Path(re.search(r"lists every option, (.*) every setting", start_page)[1]).is_file()
    trained = run(command, "gym/cartpole", "-n", "a", *SHORT)
    assert "samara gym/cartpole -n a --resume" in trained
    assert (tmp_path / "empty" / "runs" / "gym" / "cartpole" / "a" / "config.yaml").is_file()
    assert "return" in run(command, "gym/cartpole", "-n", "a", "--run")
    assert "gym/cartpole" in run(command, "list")
    assert "report.html" in run(command, "report", "gym/cartpole")
    assert "samara mine/acrobot" in run(command, "init", "mine/acrobot", "--set", "base_config.env_name=Acrobot-v1")
    run(command, "export", "gym/cartpole", "-n", "a")
    assert list((tmp_path / "empty" / "runs" / "gym" / "cartpole" / "a").rglob("*.onnx"))
    assert "all that gym/cartpole needs is there" in run(python, "-m", "algorithm", "doctor", "gym/cartpole")
    code = "import algorithm; print(algorithm.train('gym/cartpole', settings={'base_config.max_step': 100}).folder)"
    assert Path(run(python, "-c", code).strip()).parent == tmp_path / "empty" / "runs" / "gym" / "cartpole"
    assert Path(run(python, "-c", "import algorithm; print(algorithm.__file__)").strip()).is_relative_to(venv)
