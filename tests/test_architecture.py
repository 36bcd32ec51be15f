"""Tests of the dependencies between packages, which are read from the source."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
LAYERS = [
    {"specs", "rollout", "errors", "annotations", "program", "atomic_io", "records_io", "estimators"},
    {"distributions", "returns", "losses", "demonstrations"},
    {"networks", "adapters", "replay", "tracking"},
    {"agents", "auxiliaries", "exploration"},
    {"training"},
    {"checkpointing"},
    {"config"},
    {"parts"},
    {"processes"},
    {"runs"},
    {"population"},
    {"api", "cli", "tools"},  # in the order of TOP
    {"__main__"},
]
TOP = ("api", "cli", "tools")  # modules of the top layer import those to the left only
LAYER = {package: number for number, layer in enumerate(LAYERS) for package in layer}
FILES = sorted((ROOT / "algorithm").rglob("*.py"))
# By library: the folders that may import it.
OWNERS = {
    library: folders.split()
    for folders, libraries in {
        "adapters/": "gymnasium ale_py envpool shimmy dm_control pettingzoo",
        "adapters/unity/": "mlagents_envs grpc google",
        "processes/": "ray",
        "config/": "yaml",
        "tracking/": "wandb mlflow trackio tensorboard",
        "tools/": "optuna jinja2 markupsafe",
        "tools/export/": "onnx onnxruntime",
        "cli/ tools/": "rich",
        "parts/": "huggingface_hub",
    }.items()
    for library in libraries.split()
}
# Libraries that are imported inside functions, when they are needed: of simulators, trackers, searches and pages.
LAZY = {*OWNERS} - {"gymnasium", "ray", "yaml", "rich"}
# Contracts that modules of the same layer may import: an explorer wraps an agent.
CONTRACTS = {"agents.agent"}
# Modules of the lowest layer on which others of it are built.
FOUNDATIONS = {"errors", "atomic_io"}


def package(path: Path) -> str:
    """Return the top-level package or module of `algorithm` that a file belongs to."""
    return path.relative_to(ROOT / "algorithm").with_suffix("").parts[0]


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path, inside_functions: bool = True) -> set[str]:
    """Return every module that a file imports."""
    tree = parse(path)
    nodes = ast.walk(tree) if inside_functions else tree.body
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module)
    return found


def foreign_modules(path: Path) -> set[str]:
    """Return the modules of other packages of `algorithm` that a file imports."""
    modules = {name.removeprefix("algorithm.") for name in imports(path) if name.startswith("algorithm.")}
    return {name for name in modules if name.split(".")[0] != package(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_downwards_only(path):
    here = package(path)
    if here == "__init__":
        assert imports(path, inside_functions=False) == {"__future__", "typing"}  # nothing of this project
        return
    for name in foreign_modules(path):
        other = name.split(".")[0]
        is_below = LAYER[other] < LAYER[here] or (here in TOP and other in TOP[: TOP.index(here)])
        assert is_below or name in CONTRACTS | FOUNDATIONS, f"{here} imports {name}"


def test_tools_are_imported_by_nothing_but_themselves():
    for path in FILES:
        parts = path.relative_to(ROOT / "algorithm").parts
        tools = {name.split(".")[2] for name in imports(path) if name.startswith("algorithm.tools.")}
        assert tools <= ({parts[1]} if parts[0] == "tools" else set()), path


TOOLS = sorted(path.name for path in (ROOT / "algorithm" / "tools").iterdir() if (path / "__init__.py").exists())


# They compare the commands with the documents, which still describe a command whose package is hidden.
STATED = [TESTS / "cli" / "test_parser.py", TESTS / "cli" / "test_reference.py"]
FEATURES = [*(f"tools.{name}" for name in TOOLS), "population", "adapters.unity", "adapters.godot"]


@pytest.mark.parametrize("feature", FEATURES)
def test_nothing_else_imports_a_feature_when_it_is_imported(feature):
    for path in FILES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.startswith(f"algorithm.{feature}."):
            found = {f"{other}." for other in imports(path, inside_functions=False)}
            nodes = [node for node in parse(path).body if isinstance(node, ast.ImportFrom)]
            found |= {f"{node.module}.{alias.name}." for node in nodes for alias in node.names}
            assert not any(other.startswith(f"algorithm.{feature}.") for other in found), path


def test_everything_else_can_be_imported_without_the_features():
    """The process imports every module outside of the features, and parses a command line."""
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in FILES]
    hidden = tuple(f"algorithm.{feature}." for feature in FEATURES)
    kept = [name for name in names if not f"{name}.".startswith(hidden) and "__main__" not in name]
    code = (
        "import sys\nfrom importlib import import_module\n"
        f"sys.modules.update(dict.fromkeys({[name[:-1] for name in hidden]}))\n"
        f"for name in {kept}:\n    import_module(name)\n"
        "from algorithm.cli.parser import parse_arguments\nparse_arguments(['gym/cartpole', '--run'])\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-1000:]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("hidden", FEATURES)
def test_the_tests_of_everything_else_pass_without_a_feature(hidden):
    """The layers that could use it are tested, apart from tests that import it or start its commands."""
    name = re.escape(f"algorithm.{hidden}")
    users = [path for path in TESTS.rglob("*.py") if re.search(rf"\b{name}\b", path.read_text(encoding="utf-8"))]
    ignored = [f"--ignore={path}" for path in [*users, *STATED]]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "tests.without_feature", *ignored]
    above = [TESTS / layer for layer in ("runs", "cli", "test_api.py")]
    environment = {**os.environ, "HIDDEN_FEATURE": hidden}
    finished = subprocess.run([*command, *above], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-3000:]


def test_the_picture_shows_the_layers():
    picture = (ROOT / "docs" / "pictures" / "architecture.svg").read_text(encoding="utf-8")
    layers = re.findall(r'<rect class="layer".*?/>(.*?)(?=<rect class="layer"|</g>)', picture, re.DOTALL)
    shown = [re.sub(r"<[^>]*>", " ", layer) for layer in layers]
    expected = [layer for layer in reversed(LAYERS) if layer != {"__main__"}]
    assert len(shown) == len(expected)
    for text, layer in zip(shown, expected, strict=True):
        assert layer <= set(re.findall(r"\w+", text)), layer


def test_returns_and_losses_import_no_package_but_the_table_of_estimators():
    for path in FILES:
        if package(path) in {"returns", "losses"}:
            assert foreign_modules(path) <= {"estimators"}, path


@pytest.mark.parametrize(
    ("packages", "forbidden"),
    [
        ({"replay", "adapters", "specs", "rollout"}, ("torch",)),
        ({"agents", "auxiliaries", "exploration"}, ("algorithm.replay", "algorithm.adapters")),
    ],
)
def test_packages_do_not_import_what_they_need_not_know(packages, forbidden):
    for path in FILES:
        if package(path) in packages:
            assert not any(f"{name}.".startswith(f"{other}.") for name in imports(path) for other in forbidden), path


def test_training_imports_contracts_only():
    concrete = {
        ".".join(path.relative_to(ROOT / "algorithm").with_suffix("").parts)
        for name in ("agents", "adapters", "auxiliaries", "exploration")
        for path in (ROOT / "algorithm" / name).rglob("*.py")
        if path.stem not in {"__init__", "adapter", "auxiliary", "explorer"}
        if path.parts[-2:] not in {("agents", "agent.py"), ("agents", "reward_transform.py")}
    }
    assert "agents.acer.agent" in concrete
    for path in FILES:
        if package(path) in {"training", "checkpointing"}:
            assert not foreign_modules(path) & concrete, path
        if package(path) == "processes":
            named = {name for name in concrete if not name.startswith("adapters.")}
            assert not foreign_modules(path) & named, path


def test_each_external_library_is_imported_by_its_owners():
    for path in FILES:
        place = path.relative_to(ROOT / "algorithm").as_posix()
        for name in imports(path):
            owners = OWNERS.get(name.split(".")[0], [""])
            assert place.startswith(tuple(owners)), f"{path} imports {name}"


def test_optional_libraries_are_imported_when_they_are_needed():
    for path in FILES:
        found = {name.split(".")[0] for name in imports(path, inside_functions=False)} & LAZY
        assert not found, f"{path} imports {found}"


# An engine may be named in its adapter, in the packages for its files, and in names of the registry and of settings.
ENGINE_PACKAGES = {
    "unity": {("adapters", "unity"), ("tools", "export"), ("tools", "mlagents")},
    "godot": {("adapters", "godot")},
}
ENGINE_NAMES = {
    "unity": r"(base_config\.)?unity_args(\.\w+)?|UnityArgs|UNITY"
    r"|algorithm\.adapters\.unity\.(adapter:UnityAdapter|demonstration_files:read_file)",
    "godot": r"godot_args|GodotArgs|GODOT|algorithm\.adapters\.godot\.adapter:GodotAdapter",
}
HELP_TEXTS = {("cli", "parser.py"), ("cli", "commands.py"), ("demonstrations", "command.py")}


@pytest.mark.parametrize("engine", ENGINE_PACKAGES)
def test_only_the_packages_of_an_engine_name_it(engine):
    packages = ENGINE_PACKAGES[engine]
    for path in FILES:
        parts = path.relative_to(ROOT / "algorithm").parts
        if parts[:2] in packages or parts[-2:] in HELP_TEXTS:
            continue
        tree = parse(path)
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            for name in list_names(node) if id(node) not in docstrings else ():
                named = re.sub(ENGINE_NAMES[engine], "", name).casefold()
                assert engine not in named, f"{path}, line {node.lineno}: {name}"


def list_names(node: ast.AST) -> list[str]:
    """Return the identifiers and the string of a syntax node."""
    found = [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "module", "value", "asname")]
    return [name for name in found if isinstance(name, str)]


def test_files_have_a_docstring_and_files_and_functions_stay_small():
    for path in FILES:
        assert ast.get_docstring(parse(path)), path
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 500, path
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 70, f"{path}: {node.name}"


def test_every_module_of_this_project_that_is_imported_exists():
    """The type checker does not report a missing module, since optional libraries may be missing, too."""
    folders = ("algorithm", "benchmarks", "envs", "examples", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    missing = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in files
        for module in imports(path)
        if module.partition(".")[0] in ("algorithm", "tests") and not _exists(module)
    }
    assert not missing and len(files) > 300


def _exists(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").is_file() or path.is_dir()
