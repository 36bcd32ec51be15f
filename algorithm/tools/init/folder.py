"""A commented environment folder for any environment that an installed package registers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.gym_ids import add_module_prefix, find_env_type, find_id
from algorithm.atomic_io import replace_text
from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import Layer, Tree, format_commented, merge, read_entries
from algorithm.errors import UserError
from algorithm.networks.default_network import make_nn_file
from algorithm.parts.env_folder import LOCAL_ENVS, is_file_name, is_id, make_init_command
from algorithm.parts.make_env import describe_missing_limit
from algorithm.parts.suggested_settings import suggest_settings
from algorithm.program import DEFAULT_ROLE, get_command, get_document
from algorithm.runs.run_requests import complete_effective
from algorithm.specs import ACTION_MASK, Role

SUPPORTED_ENV_TYPES = ("GYM", "ATARI", "DM_CONTROL", "PETTINGZOO")  # env_types with folders
ENV_TYPE_BY_GROUP = {"atari": "ATARI", "ale": "ATARI", "dm_control": "DM_CONTROL"}  # others hold ids of Gymnasium
# The most used settings, which config.yaml contains; all settings are in default_config.yaml.
SHOWN_SETTINGS = (
    "env_type",
    "env_name",
    "env_args",
    "algorithm",
    "n_envs",
    "max_step",
    "max_step_each_iter",
    "evaluate_every",
)

VARIANT = """\

# A variant overrides settings of `default`. This one is used by: {command} {name} -c large
large:
  nn_config:
    units: 512
"""


def write_folder(name: str, layers: list[Layer], force: bool = False) -> tuple[list[Path], list[str]]:
    """Write envs/`name` for an environment that opens and can be learned from; return its files, and lines for users.

    With `force` it replaces config.yaml and nn.py of a folder that exists. Raises UserError if it cannot be written,
    EnvironmentStartError as adapters do.
    """
    if is_id(name) and (":" in name or "/" not in name):
        raise UserError(f"init {name}: expected group/name; for this id: {make_init_command(name)}")
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if len(parts) != 2 or not all(map(is_file_name, parts)):
        raise UserError(f"init {name}: expected group/name, for example gym/acrobot")
    name = "/".join(parts)
    folder = LOCAL_ENVS / name
    if folder.exists() and not force:
        raise UserError(
            f"init {name}: {folder} exists already and was not changed; choose another name, "
            "or replace its config.yaml and nn.py with --force"
        )
    given = merge({}, *(layer for _, layer in layers))
    base = resolve(layers).base  # raises UserError for an unknown setting
    env_type, env_name = _choose_environment(name, base.env_name, given)
    named = {"base_config": {"env_type": env_type, "env_name": env_name}}
    suggested = suggest_settings(f"init {name}", merge(named, given))
    _, settings = complete_effective(suggested, (f"init {name}", named), {}, layers)
    shown = {"base_config": {key: settings.tree["base_config"][key] for key in SHOWN_SETTINGS}}
    networks = {make_nn_file(role) for role in suggested.roles.values()}
    network = networks.pop() if len(networks) == 1 else ""  # roles may need different ones
    variant = VARIANT.format(command=get_command(), name=name) if "units" in network else ""
    config = _make_config(name, suggested.roles, merge(shown, suggested.tree), suggested.reasons)
    files = {folder / "config.yaml": config + variant, folder / "nn.py": network}
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        replace_text(path, text) if text else path.unlink(missing_ok=True)
    note = describe_missing_limit(settings.base)
    return [path for path, text in files.items() if text], [*suggested.notes, *([note] if note else [])]


def _choose_environment(name: str, env_name: str | None, given: Tree) -> tuple[str, str]:
    """Return env_type and env_name of the environment, as given or as the folder's name suggests."""
    group, _, task = name.partition("/")
    default = find_env_type(env_name) if env_name else ENV_TYPE_BY_GROUP.get(group.casefold(), "GYM")
    env_type = (given.get("base_config", {}).get("env_type") or default).upper()
    if env_type not in SUPPORTED_ENV_TYPES:
        raise UserError(f"init writes folders for env_type {', '.join(SUPPORTED_ENV_TYPES)}, not for {env_type}")
    if env_name and env_name.endswith(".py"):
        raise UserError(
            f"init {name}: an {env_name} needs its own config.yaml; {get_document('environments')} shows one"
        )
    if env_name or env_type != "GYM":
        return env_type, env_name or task
    try:
        return env_type, find_id(task, group)
    except UnsupportedEnvironment as error:
        suggested = add_module_prefix(task) or (name if find_env_type(name) in SUPPORTED_ENV_TYPES[1:] else "ID")
        raise UserError(f"init {name}: {error}; name one with --set base_config.env_name={suggested}") from error


def _make_config(name: str, roles: Mapping[str, Role], tree: Tree, reasons: Mapping[str, str]) -> str:
    """Return the text of config.yaml, with the meaning of each setting and the reason of its value."""
    lines = [f"# {tree['base_config']['env_name']}: {get_command()} {name}", "#"]
    roles_by_text: dict[str, list[str]] = {}  # roles by the description of their observations and actions
    for role, role_specs in roles.items():
        roles_by_text.setdefault("\n".join(_describe_role(role_specs)), []).append(role)
    for text, names in roles_by_text.items():
        lines += [f"# {', '.join(names)}:"] * (names != [DEFAULT_ROLE]) + text.splitlines()
    lines += ["#", "# Every setting is in default_config.yaml; these override it."]
    meanings = {entry.path: entry.meaning for entry in read_entries()}
    comments = meanings | {
        path: f"{meanings[path]}. Here: {reason}" if path in meanings else reason
        for path, reason in reasons.items()
        if reason
    }
    return "\n".join([*lines, "default:", *format_commented(tree, comments), ""])


def _describe_role(role: Role) -> list[str]:
    lines = []
    for key, spec in role.obs_specs.items():
        one_hot = f", one-hot of {' + '.join(map(str, spec.n_values))}" if spec.n_values else ""
        verb = "receives the mask" if key == ACTION_MASK else "observes"
        lines.append(f"# {verb} {key}: {spec.dtype} {list(spec.shape)}{one_hot}")
    return [*lines, f"# acts with {role.action_spec}"]
