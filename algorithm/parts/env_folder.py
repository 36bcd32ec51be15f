"""Environment folders, their names and their paths, and ids in their place. It imports the standard library only."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from algorithm.adapters.gym_ids import add_module_prefix
from algorithm.errors import UserError
from algorithm.program import DATA, get_command

PROJECT_ENVS = DATA / "envs"
LOCAL_ENVS = Path("envs")
CONFIG_FILE = "config.yaml"
POPULATION_FILE = "population.json"  # file in the folder of a population with its state
ORIGIN_FILE = "environment.txt"  # file in a run folder with the name of its environment, and the folder's format
FORMAT = 2  # of run folders; a change after which earlier runs cannot be continued makes it larger
VIDEO_FOLDER = "videos"  # folder in a run folder
RUNS = Path("runs")

# An environment id of gymnasium.make.
IDENTIFIER = re.compile(r"((?P<module>[\w.]+):)?((?P<namespace>[\w.-]+)/)?(?P<name>[\w.-]+)-v\d+")
MAX_NAME_LENGTH = 100  # characters of a name, so that paths below it do not exceed the limits of file systems
RESERVED_ON_WINDOWS = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}


def list_environments() -> list[str]:
    """Return the names of all environment folders, starting with the working directory's folders."""
    found: dict[str, None] = {}
    for place in (LOCAL_ENVS, PROJECT_ENVS):
        found |= dict.fromkeys(sorted(path.parent.relative_to(place).as_posix() for path in place.rglob(CONFIG_FILE)))
    return list(found)


def locate_environment(text: str) -> str:
    """Return the environment that a name, a path or an id refers to.

    That is its name below envs/, or its absolute path elsewhere; or an id of Gymnasium, with the module that registers
    it, if no folder has this name. A name or path without a folder is accepted, since its runs may still exist. A name
    is looked for below envs/ before the working directory, unless it starts with a dot. Raises UserError if `text` is
    none of them.
    """
    path = Path(text.replace("\\", "/"))
    path = path.parent if path.name == CONFIG_FILE else path
    name, has_config = path.as_posix(), _has_config(path)
    if path.is_absolute() or ".." in path.parts or (has_config and (text.startswith(".") or find_folder(name) is None)):
        return _to_environment(path.resolve())
    if is_id(text):
        return add_module_prefix(text) or text
    if not path.parts or not all(map(is_file_name, path.parts)):
        raise make_unknown_error(text)
    return name


def is_id(environment: str) -> bool:
    """Return whether an environment is an id of Gymnasium: it has the form of an id, and no folder has this name."""
    return bool(IDENTIFIER.fullmatch(environment)) and find_folder(environment) is None


def find_folder(environment: str) -> Path | None:
    """Return the folder of an environment, a name below envs/ or an absolute path; None if it has no config.yaml."""
    places = [LOCAL_ENVS / environment, PROJECT_ENVS / environment]  # an absolute path stays as it is
    return next(filter(_has_config, places), None)


def get_run_group(environment: str) -> str:
    """Return the folder below runs/ for the runs of an environment.

    That is its name, the last two parts of its path, or its id with the module as a folder (`module/Id-v0`).
    """
    path = Path(environment)
    if is_id(environment):
        path = Path(environment.replace(":", "/"))
        if not all(map(is_file_name, path.parts)):
            raise UserError(f"environment {environment!r}: {path} is not a valid folder for its runs on every system")
        return path.as_posix()
    if not path.is_absolute():
        return environment
    if not is_file_name(path.name):
        raise UserError(f"environment {environment!r}: {path.name!r} is not a plain name for the folder of its runs")
    return "/".join(part for part in path.parts[-2:] if is_file_name(part))


def is_run_of(run: Path, environment: str) -> bool:
    """Return whether a run was trained in this environment, not in another environment with the same folder of runs.

    If the folder in which it was trained no longer exists, the folder was moved, and the run belongs to this
    environment.
    """
    origin = read_origin(run)
    if origin and is_id(origin) and is_id(environment):
        return origin == environment
    folder, other = find_folder(environment), origin and find_folder(origin)
    return folder is None or not other or folder.resolve() == other.resolve()


def check_origin(run: Path, environment: str) -> None:
    """Raise UserError for a run of another environment with the same folder of runs."""
    if not is_run_of(run, environment):
        raise UserError(
            f"run {run} was trained in {read_origin(run)}, not in {environment}; both have the same folder of runs, "
            "so use another name (-n)"
        )


def make_unknown_error(text: str) -> UserError:
    """Return the error for an environment without a folder, with similar names or the command that writes one."""
    if Path(text).is_absolute():
        return UserError(f"no environment folder {text!r} with a {CONFIG_FILE}; give its name below envs/, or its path")
    return UserError(f"no environment folder {text!r} with a {CONFIG_FILE} under ./envs; {advise_folder(text)}")


def advise_training(environment: str) -> str:
    """Return what to do for an environment that has no runs."""
    if find_folder(environment) is None and not is_id(environment):
        return str(make_unknown_error(environment))
    return f"train one with: {get_command(environment)}"


def advise_folder(text: str) -> str:
    """Return the folders that `text` may refer to, the command that writes one, or all folders, as advice."""
    if similar := find_similar_folders(text):
        return f"did you mean {' or '.join(similar)}?"
    if IDENTIFIER.fullmatch(text):
        return f"write one with: {make_init_command(text)}"
    return f"the folders are {', '.join(list_environments())}"


def make_init_command(env_id: str) -> str:
    """Return the command that writes a folder for an id of Gymnasium."""
    full_id = add_module_prefix(env_id) or env_id
    match = IDENTIFIER.fullmatch(full_id)
    assert match, env_id
    group = match["namespace"] or match["module"] or "gym"
    folder = f"{_to_snake_case(group)}/{_to_snake_case(match['name'])}"
    return f"{get_command()} init {folder} --set base_config.env_name={full_id}"


def find_similar_folders(text: str) -> list[str]:
    """Return the folders that `text` may refer to: with this id, this name without its version, or a similar name."""
    names = list_environments()
    alike = [name for name in names if _normalize(text) in map(_normalize, [name, *_read_ids(name)])]
    if not alike and not IDENTIFIER.fullmatch(text):
        return get_close_matches(text, names, 1)
    return find_folders_of_id(text) or alike


def find_folders_of_id(env_id: str) -> list[str]:
    """Return the folders whose config.yaml names an id of Gymnasium."""
    return [name for name in list_environments() if env_id in _read_ids(name)]


def is_file_name(name: str) -> bool:
    """Return whether `name` is a valid name of a file or folder on every system."""
    is_plain = 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() and not set(name) & set('/\\:*?"<>|')
    is_reserved = name.partition(".")[0].casefold() in RESERVED_ON_WINDOWS
    return is_plain and name[0] != "." and name[-1] not in ". " and not is_reserved


def _has_config(folder: Path) -> bool:
    """Return whether a folder exists and has a config.yaml; False for an invalid path."""
    try:
        return (folder / CONFIG_FILE).is_file()
    except (OSError, ValueError):
        return False


def write_origin(run: Path, environment: str) -> None:
    """Record the environment and the format of a new run folder."""
    (run / ORIGIN_FILE).write_text(f"{environment}\nformat {FORMAT}\n", encoding="utf-8")


def read_origin(run: Path) -> str | None:
    """Return the environment that is recorded in a run folder; None if it cannot be read."""
    return _read_origin(run)[0]


def check_format(run: Path) -> None:
    """Raise UserError for a run folder of another format; of the first one, if it records an environment only."""
    environment, found = _read_origin(run)
    if environment is not None and found != f"format {FORMAT}":
        raise UserError(
            f"{run} has {found} of run folders, which another version of this program has written; this version reads "
            f"format {FORMAT}"
        )


def _read_origin(run: Path) -> tuple[str | None, str]:
    """Return the environment and the format that are recorded in a run folder."""
    try:
        environment, *lines = (run / ORIGIN_FILE).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return None, ""
    return environment, next((line for line in lines if line.startswith("format ")), "format 1")


def _to_environment(path: Path) -> str:
    """Return the name of a folder below envs/, if this name refers to this folder, and its path otherwise."""
    for place in (LOCAL_ENVS.resolve(), PROJECT_ENVS):
        if path.is_relative_to(place) and path != place:
            name = path.relative_to(place).as_posix()
            folder = find_folder(name)
            if folder is None or folder.resolve() == path:
                return name
    return path.as_posix()


def _read_ids(name: str) -> list[str]:
    """Return the environment ids in the config.yaml of a folder that exists; the file may be invalid YAML."""
    folder = find_folder(name)
    assert folder, name
    text = (folder / CONFIG_FILE).read_text(encoding="utf-8", errors="replace")
    return re.findall(r"""\benv_name:\s*["']?([^\s"'#,}]+)""", text)


def _normalize(name: str) -> str:
    """Return a name without module, namespace, group and version."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"-v\d+$", "", re.split("[:/]", name)[-1]).casefold())


def _to_snake_case(name: str) -> str:
    """Return MountainCar-Continuous as mountain_car_continuous."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
