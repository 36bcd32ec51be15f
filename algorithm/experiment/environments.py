"""Environment folders and names that may be folders: nothing here loads more than the standard library."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from algorithm.experiment.errors import UserError

BESIDE_MAIN = Path(__file__).resolve().parents[2] / "envs"
HERE = Path("envs")
RUNS = Path("runs")

LONGEST = 100  # characters of a name; paths below it must fit into what file systems allow
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}  # on Windows


def environments() -> list[str]:
    """The names of all environment folders, those of the working directory first."""
    found: dict[str, None] = {}
    for place in (HERE, BESIDE_MAIN):
        found |= dict.fromkeys(sorted(path.parent.relative_to(place).as_posix() for path in place.rglob("config.yaml")))
    return list(found)


def environment_name(text: str) -> str:
    """`text` as the name of an environment folder, its parts joined by `/`. Raises UserError for a path elsewhere."""
    text = text.replace("\\", "/")
    parts = PurePosixPath(text).parts
    if not parts or text.startswith("/") or ".." in parts or not all(map(is_file_name, parts)):
        raise UserError(f"environment {text!r}: give its folder below envs/, for example gym/cartpole")
    return "/".join(parts)


def is_file_name(name: str) -> bool:
    """Whether every system takes `name` for a file or a folder."""
    plain = 0 < len(name) <= LONGEST and name.isprintable() and not any(sign in name for sign in '/\\:*?"<>|')
    return plain and name[0] != "." and name[-1] not in ". " and name.partition(".")[0].casefold() not in RESERVED
