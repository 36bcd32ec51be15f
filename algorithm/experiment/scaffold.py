"""`--init`: a commented environment folder for any environment of Gymnasium."""

from __future__ import annotations

from pathlib import Path

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.gym_ids import find_id, solved_at
from algorithm.experiment.blueprints import nn_file
from algorithm.experiment.effects import check_effects
from algorithm.experiment.environments import HERE, environment_name
from algorithm.experiment.errors import UserError
from algorithm.experiment.reference import entries
from algorithm.experiment.registry import find
from algorithm.experiment.settings import Layer, Settings, Tree, merge, resolve
from algorithm.experiment.yaml_text import commented
from algorithm.specs import MASK, ObsSpec, Role

# Settings that people look for first; the others stand in default_config.yaml alone.
SHOWN = ("env_type", "env_name", "env_args", "algorithm", "n_envs", "max_step", "max_step_each_iter", "evaluate_every")

# Where nothing is known of an environment: rewards of any size, and for continuous actions what learns well in `envs`.
SUGGESTED: Tree = {"normalize_returns": True}
OF_CONTINUOUS: Tree = {
    "std": "learned",
    "std_init": 0.5,
    "std_floor": 0.2,
    "average_decay": 0.995,
    "importance_clip": 5.0,
    "batch_size": 32,
    "replay_ratio": 8.0,
}
VARIANT = """\

# A variant stands on `default` and says what differs: python main.py {name} -c large
large:
  nn_config:
    units: 512
"""


def write(name: str, layers: list[Layer]) -> Path:
    """Make envs/`name`, which opens and fits. Raises UserError where it cannot be, EnvironmentFailed as adapters do."""
    name = environment_name(name)
    if name.count("/") != 1:
        raise UserError(f"--init {name}: expected group/name, for example gym/acrobot")
    folder = HERE / name
    if folder.exists():
        raise UserError(f"--init {name}: {folder} exists already, and is left as it is; choose another name")
    tree: Tree = {}
    for _, layer in layers:
        tree = merge(tree, layer)
    settings = resolve(layers)  # refuses what is no setting
    if settings.base.env_type.casefold() != "gym":
        raise UserError(f"--init writes folders for Gymnasium, not for base_config.env_type {settings.base.env_type}")
    env_name = settings.base.env_name or _guess(name)
    role = _open(env_name, settings)
    asked = {"env_type": "GYM", "env_name": env_name, "algorithm": settings.base.algorithm}
    suggested: Tree = {}
    if settings.base.algorithm.casefold() == "acer":  # the defaults of others need no suggestion
        suggested = {"acer_config": SUGGESTED | (OF_CONTINUOUS if role.action_spec.continuous else {})}
    tree = merge({"base_config": asked, "goal": {"return": solved_at(env_name)}, **suggested}, tree)
    suggestion = resolve([(f"--init {name}", tree)])  # what is suggested and what was asked for fit together
    check_effects(suggestion, layers)
    text = _config(name, env_name, role, merge(_shown(settings), tree))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    (folder / "nn.py").write_text(nn_file(role), encoding="utf-8")
    return folder


def _guess(name: str) -> str:
    group, _, task = name.partition("/")
    try:
        return find_id(task, group)
    except UnsupportedEnvironment as error:
        raise UserError(f"--init {name}: {error}; name one with --set base_config.env_name=ID") from error


def _open(env_name: str, settings: Settings) -> Role:
    """The role that the environment offers, which also shows that it starts."""
    base = settings.base
    make = find("env_type", "GYM")
    adapter = make(env_name, 1, base.env_args, base.max_step_each_iter, action_scale=base.action_scale)
    try:
        adapter.reset(settings.base.seed)
        return next(iter(adapter.roles.values()))
    finally:
        adapter.close()


def _shown(settings: Settings) -> Tree:
    return {"base_config": {key: settings.tree["base_config"][key] for key in SHOWN}}


def _config(name: str, env_name: str, role: Role, tree: Tree) -> str:
    lines = [f"# {env_name}: python main.py {name}", "#"]
    for key, spec in role.obs_specs.items():
        lines.append(f"# {'is told what is allowed by' if key == MASK else 'observes'} {_observation(key, spec)}")
    lines += [
        f"# acts with {role.action_spec}",
        "#",
        "# Every setting stands in default_config.yaml; these override it.",
    ]
    lines += ["default:", *commented(tree, {entry.path: entry.meaning for entry in entries()})]
    return "\n".join(lines) + "\n" + VARIANT.format(name=name)


def _observation(key: str, spec: ObsSpec) -> str:
    one_hot = f", one-hot of {' + '.join(map(str, spec.counts))}" if spec.counts else ""
    return f"{key}: {spec.dtype} {list(spec.shape)}{one_hot}"
