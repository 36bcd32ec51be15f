"""Mutants: small wrong changes of the code that the tests must notice, before and after it is moved.

`draw` selects, with a seed, mutants of each package and stores them as lines of text: the function, the line, and the
changed line. `test` applies each of them to a copy of this checkout, wherever its function is now, and runs the tests
of its package: a mutant is killed if a test fails, and survives if all pass. A mutant whose line exists no longer is
`gone`. The score of a package is the part of the mutants found that are killed.

    python benchmarks/mutants.py draw
    python benchmarks/mutants.py test returns losses
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORE = Path(__file__).with_suffix(".json")
PACKAGES: dict[str, tuple[Sequence[str], Sequence[str]]] = {  # sources, tests
    "returns": (["returns"], ["tests/returns"]),
    "losses": (["losses.py"], ["tests/losses", "tests/agents"]),
    "distributions": (["distributions"], ["tests/distributions"]),
    "agents": (["agents"], ["tests/agents", "tests/losses"]),
    "replay": (["replay"], ["tests/replay"]),
    "training": (["training"], ["tests/training"]),
    "checkpointing": (["checkpointing"], ["tests/checkpointing"]),
    "processes": (["processes", "population"], ["tests/processes", "tests/population", "tests/faults"]),
}
SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
Mutant = dict[str, Any]


def list_mutants(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a module: one operator, one number or one truth value of a function is another."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for name, function in list_functions(ast.parse(text)):
        for line, start, end, new in list_changes(function, lines):
            old = lines[line - 1]
            changed = (old[:start] + new + old[end:]).strip()
            yield {"function": name, "line": old.strip(), "mutant": changed}


def list_functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions and methods of a module, with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from list_functions(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node


def list_changes(function: ast.FunctionDef, lines: Sequence[str]) -> Iterator[tuple[int, int, int, str]]:
    """Yield line, first and last column, and new text of each change. Messages and annotations stay as they are."""
    nodes: list[ast.AST] = [*function.body, *function.args.defaults, *function.args.kw_defaults]
    while nodes:
        node = nodes.pop()
        if node is None or isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)):
            continue
        nodes += [] if isinstance(node, ast.AnnAssign) else ast.iter_child_nodes(node)
        nodes += [node.value] if isinstance(node, ast.AnnAssign) else []
        if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
            new = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            yield node.lineno, node.col_offset, node.end_col_offset, new
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            yield node.lineno, node.col_offset, node.operand.col_offset, ""
        else:
            for left, operator, right in list_operators(node):
                if left.end_lineno == right.lineno and type(operator) in SWAPS:
                    old, new = SWAPS[type(operator)]
                    between = lines[right.lineno - 1][left.end_col_offset : right.col_offset]
                    start = left.end_col_offset + between.find(old)
                    if between.count(old) == 1:
                        yield right.lineno, start, start + len(old), new


def list_operators(node: ast.AST) -> list[tuple[Any, ast.AST, Any]]:
    """Return the operators of an expression, each between its operands."""
    if isinstance(node, ast.Compare):
        return list(zip([node.left, *node.comparators], node.ops, node.comparators, strict=False))
    if isinstance(node, ast.BinOp):
        return [(node.left, node.op, node.right)]
    if isinstance(node, ast.BoolOp):
        return [(left, node.op, right) for left, right in zip(node.values, node.values[1:], strict=False)]
    return []


def draw(count: int, seed: int) -> None:
    """Store `count` mutants of each package."""
    drawn = {}
    for package, (sources, _) in PACKAGES.items():
        places = sorted({path for source in sources for path in (ROOT / "algorithm").glob(f"{source}")})
        files = [file for place in places for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
        mutants = [{**mutant, "file": file.stem} for file in files for mutant in list_mutants(file)]
        drawn[package] = random.Random(f"{seed} {package}").sample(mutants, min(count, len(mutants)))
        print(f"{package}: {len(drawn[package])} of {len(mutants):,}")
    write_store(drawn)


def write_store(mutants: dict[str, list[Mutant]]) -> None:
    """Write the stored mutants, one per line."""
    packages = [
        f' "{name}": [\n' + ",\n".join(f"  {json.dumps(each)}" for each in group) + "\n ]"
        for name, group in mutants.items()
    ]
    STORE.write_text("{\n" + ",\n".join(packages) + "\n}\n", encoding="utf-8")


def apply(mutant: Mutant, root: Path) -> tuple[Path, str] | None:
    """Change the line of a mutant below `root`. Return the file and its text before; None if the line is gone."""
    found = []
    for path in sorted((root / "algorithm").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if mutant["line"] not in text:
            continue
        lines = text.splitlines(keepends=True)
        for name, function in list_functions(ast.parse(text)):
            for number in range(function.lineno - 1, function.end_lineno or 0):
                if lines[number].strip() == mutant["line"]:
                    rank = (name != mutant["function"], name.split(".")[-1] != mutant["function"].split(".")[-1])
                    found.append(((*rank, path.stem != mutant["file"]), path, number))
    if not found:
        return None
    _, path, number = min(found)
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    lines[number] = lines[number].replace(mutant["line"], mutant["mutant"])
    path.write_text("".join(lines), encoding="utf-8")
    return path, text


def test(packages: Sequence[str]) -> None:
    """Test the stored mutants of packages in a copy of this checkout, store and print which survive."""
    stored = json.loads(STORE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".git", "runs", "__pycache__", "_build"))
        for package in packages or PACKAGES:
            for mutant in stored[package]:
                change = apply(mutant, root)
                mutant["result"] = "gone" if change is None else run_tests(PACKAGES[package][1], root)
                if change is not None:
                    change[0].write_text(change[1], encoding="utf-8")
                print(f"{package}: {mutant['result']}: {mutant['function']}: {mutant['mutant']}", flush=True)
                write_store(stored)
            results = Counter(mutant["result"] for mutant in stored[package])
            found = len(stored[package]) - results["gone"]
            print(f"{package}: killed {results['killed']} of {found}, gone {results['gone']}", flush=True)


def run_tests(tests: Sequence[str], root: Path) -> str:
    """Run tests until one fails. Return `killed` or `survived`."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=300", *tests]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=False)
    return "survived" if done.returncode == 0 else "killed"


def main() -> None:
    """Draw mutants, or test those that are stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--count", type=int, default=40)
    drawing.add_argument("--seed", type=int, default=0)
    testing = commands.add_parser("test")
    testing.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"default: {', '.join(PACKAGES)}")
    options = parser.parse_args()
    if options.command == "draw":
        draw(options.count, options.seed)
    else:
        test(options.packages)


if __name__ == "__main__":
    main()
