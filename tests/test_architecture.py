"""Who may import whom, read from the source."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = [
    {"specs", "rollout", "errors", "annotations", "data", "atomic_io"},
    {"distributions", "returns", "losses"},
    {"networks", "adapters", "replay"},
    {"agents", "auxiliaries", "exploration"},
    {"training"},
    {"checkpointing"},
    {"runtimes"},
    {"config"},
    {"runs"},
    {"export", "mlagents"},
    {"cli"},
]
LAYER = {package: number for number, layer in enumerate(LAYERS) for package in layer}
FILES = sorted((ROOT / "algorithm").rglob("*.py"))
OWNERS = {
    "gymnasium": {"adapters"},
    "ale_py": {"adapters"},
    "envpool": {"adapters"},
    "shimmy": {"adapters"},
    "dm_control": {"adapters"},
    "pettingzoo": {"adapters"},
    "ray": {"runtimes"},
    "yaml": {"config"},
    "rich": {"cli"},
}
# Those of Unity belong to one package within the adapters, which loads them when a player is opened.
OF_UNITY = {"mlagents_envs", "grpc", "google"}
# A contract may be seen from its own layer: an explorer stands around an agent.
CONTRACTS = {"agents.agent"}


def package(path: Path) -> str:
    """The room that a file belongs to."""
    return path.relative_to(ROOT / "algorithm").with_suffix("").parts[0]


def imports(path: Path, inside_functions: bool = True) -> set[str]:
    """Every module that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if inside_functions else tree.body
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module)
    return found


def rooms(path: Path) -> set[str]:
    """The rooms of this project that a file imports from, without its own."""
    own = {name.removeprefix("algorithm.") for name in imports(path) if name.startswith("algorithm.")}
    return {name for name in own if name.split(".")[0] != package(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_downwards_only(path):
    here = package(path)
    if here == "__init__":
        assert imports(path, inside_functions=False) == set()
        return
    for name in rooms(path):
        below = LAYER[name.split(".")[0]] < LAYER[here]
        assert below or name in CONTRACTS, f"{here} imports {name}"


def test_mathematics_knows_torch_and_nothing_of_the_records():
    for path in FILES:
        if package(path) in {"returns", "losses"}:
            assert rooms(path) == set(), path


def test_replay_and_adapters_and_records_do_without_torch():
    for path in FILES:
        if package(path) in {"replay", "adapters", "specs", "rollout"}:
            assert not any(name.split(".")[0] == "torch" for name in imports(path)), path


def test_agents_see_neither_replay_nor_adapters():
    for path in FILES:
        if package(path) in {"agents", "auxiliaries", "exploration"}:
            assert not {name.split(".")[0] for name in rooms(path)} & {"replay", "adapters"}, path


def test_the_loop_sees_contracts_only():
    concrete = {
        ".".join(path.relative_to(ROOT / "algorithm").with_suffix("").parts)
        for room in ("agents", "adapters", "auxiliaries", "exploration")
        for path in (ROOT / "algorithm" / room).rglob("*.py")
        if path.stem not in {"__init__", "adapter", "auxiliary", "explorer"}
        if path.parts[-2:] != ("agents", "agent.py")
    }
    assert "agents.acer.agent" in concrete
    for path in FILES:
        if package(path) in {"training", "checkpointing", "runtimes"}:
            assert not rooms(path) & concrete, path


def test_each_foreign_library_has_one_owner():
    for path in FILES:
        for name in imports(path):
            owners = OWNERS.get(name.split(".")[0])
            assert owners is None or package(path) in owners, f"{path} imports {name}"


def test_a_simulator_is_imported_when_it_is_opened():
    for path in FILES:
        top = {name.split(".")[0] for name in imports(path, inside_functions=False)}
        assert not top & {"ale_py", "envpool", "shimmy", "dm_control", "pettingzoo", *OF_UNITY}, path


def test_only_unitys_package_knows_its_client():
    for path in FILES:
        found = {name.split(".")[0] for name in imports(path)} & OF_UNITY
        assert not found or path.parent == ROOT / "algorithm" / "adapters" / "unity", f"{path} imports {found}"


# Where Unity may be named: its adapter, the packages for its files, and literal names of the registry and of settings.
UNITYS_PACKAGES = {("adapters", "unity"), ("export",), ("mlagents",)}
UNITYS_NAMES = re.compile(
    r"(base_config\.)?unity_args(\.\w+)?|UnityArgs|UNITY|algorithm\.adapters\.unity\.adapter:UnityAdapter"
)
HELP_TEXTS = {("cli", "command_line.py"), ("cli", "options.py")}


def test_only_unitys_packages_name_unity():
    for path in FILES:
        parts = path.relative_to(ROOT / "algorithm").parts
        if parts[:2] in UNITYS_PACKAGES or parts[:1] in UNITYS_PACKAGES or parts[-2:] in HELP_TEXTS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            for name in names_in(node) if id(node) not in docstrings else ():
                assert "unity" not in UNITYS_NAMES.sub("", name).casefold(), f"{path}, line {node.lineno}: {name}"


def names_in(node: ast.AST) -> list[str]:
    """Every identifier and text of one node."""
    found = [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "module", "value", "asname")]
    return [name for name in found if isinstance(name, str)]


def test_every_module_says_what_it_is_for():
    for path in FILES:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_files_and_functions_stay_small():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 70, f"{path}: {node.name}"


def test_only_the_export_knows_its_packages_and_imports_them_when_they_are_needed():
    for path in FILES:
        found = {name.split(".")[0] for name in imports(path)} & {"onnx", "onnxruntime"}
        assert not found or path.parent == ROOT / "algorithm" / "export", f"{path} imports {found}"
        top = {name.split(".")[0] for name in imports(path, inside_functions=False)}
        assert not top & {"onnx", "onnxruntime"}, path
