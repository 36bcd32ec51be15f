"""Settings: default_config.yaml, an environment's config.yaml, the command line; merged strictly and typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ValidationError, create_model

from algorithm.experiment import yaml_text
from algorithm.experiment.errors import UserError
from algorithm.experiment.former import former_setting
from algorithm.experiment.parameters import Parameter, read_parameters
from algorithm.experiment.registry import find
from algorithm.experiment.sections import BOUNDS, BaseConfig, Goal, ReplayConfig, Section

Tree = dict[str, Any]
Layer = tuple[str, Tree]  # settings, and the name of where they come from
DEFAULTS = Path(__file__).resolve().parents[2] / "default_config.yaml"
MAPPINGS = ("nn_config", "auxiliaries", "explorer", "reset_config", "ma_config")
# Sections that no role has of its own, but for the file of its network.
FOR_ALL = ("base_config", "reset_config", "ma_config", "goal")
OPEN = (*MAPPINGS, "base_config.env_args")  # mappings whose keys are not ours


@dataclass(frozen=True)
class Settings:
    """Everything a run is made from, typed; `tree` is the same as it is written to the run folder."""

    base: BaseConfig
    replay: ReplayConfig
    goal: Goal | None
    agent: Any  # the settings dataclass of the algorithm
    nn: Mapping[str, Any]
    auxiliaries: Mapping[str, Mapping[str, Any]]
    explorer: Mapping[str, Any]  # each one's keyword arguments, or its one argument
    reset: Mapping[str, Parameter]  # environment parameters
    roles: Mapping[str, Settings]  # of those that go by others
    tree: Tree

    def of(self, role: str) -> Settings:
        """What this role goes by."""
        return self.roles.get(role, self)


def read_yaml(path: Path) -> Tree:
    """A YAML file that holds a mapping. Raises UserError naming file and line."""
    try:
        tree = yaml_text.load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected a mapping of sections, found {type(tree).__name__}")
    return tree


def defaults() -> Tree:
    """The tree of default_config.yaml."""
    return read_yaml(DEFAULTS)


def read_variant(path: Path, variant: str) -> Tree:
    """One variant of an environment's config.yaml, on top of `default` and whatever it inherits."""
    variants = read_yaml(path)
    if variant not in variants:
        raise UserError(f"{path}: no variant {variant!r}; there is {', '.join(map(str, variants))}")
    for name, tree in variants.items():
        if not isinstance(tree, Mapping | None):
            raise UserError(f"{path}: the variant {name!r} is {tree!r}; expected a mapping of sections")
    chain = [variant]
    while parent := _parent(variants, chain[-1]):
        if parent in chain or parent not in variants:
            why = "which inherits it" if parent in chain else "which is not there"
            raise UserError(f"{path}: {chain[-1]!r} inherits {parent!r}, {why}")
        chain.append(parent)
    tree: Tree = {}
    for name in reversed(chain):
        tree = merge(tree, {key: value for key, value in (variants[name] or {}).items() if key != "inherit"})
    return tree


def _parent(variants: Tree, name: str) -> str | None:
    return (variants[name] or {}).get("inherit", None if name == "default" or "default" not in variants else "default")


def read_assignments(assignments: list[str], flag: str = "--set", section: str = "") -> Tree:
    """`section.key=value` strings that came with `flag` as a tree below `section`; values are YAML."""
    tree: Tree = {}
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise UserError(f"{flag} {text}: expected {'key' if section else 'section.key'}=value")
        try:
            leaf = yaml_text.load(value)
        except ValueError as error:
            raise UserError(f"{flag} {text}: the value cannot be read: {error}") from error
        for key in reversed(f"{section}{path.replace('-', '_')}".split(".")):
            leaf = {key: leaf}
        tree = merge(tree, leaf)
    return tree


def merge(below: Tree, above: Tree) -> Tree:
    """`above` on top of `below`, mapping by mapping."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else deepcopy(value)
    return merged


def resolve(layers: list[Layer]) -> Settings:
    """Defaults under `layers`, each with the name of where it comes from. Raises UserError for what cannot be."""
    tree = defaults()
    known = list(_paths(tree))
    for source, layer in layers:
        _check_keys(source, layer, known)
        tree = merge(tree, layer)
    for section in MAPPINGS:
        if not isinstance(tree[section], Mapping):
            raise UserError(f"{section} is {tree[section]!r}; it must be a mapping")
    settings = _typed(tree, layers)
    return replace(settings, roles={role: _of_role(role, tree, layers) for role in tree["ma_config"]})


def _typed(tree: Tree, layers: list[Layer]) -> Settings:
    """What `layers` made of the defaults. Raises UserError for what cannot be."""
    try:
        base = _read_section(BaseConfig, tree["base_config"])
        replay = _read_section(ReplayConfig, tree["replay_config"])
        goal = _read_section(Goal, tree["goal"]) if tree["goal"] is not None else None
    except ValidationError as error:
        raise UserError(_explain(error, layers)) from error
    section = f"{base.algorithm.lower()}_config"
    agent = read_dataclass(find("algorithm", base.algorithm).Settings, tree.get(section, {}), section, layers)
    for kind, name in [("env_type", base.env_type), ("runtime", base.runtime)]:
        find(kind, name)
    if base.max_step is None and getattr(agent, "learning_rate_schedule", None) == "linear":
        raise UserError(f"{section}.learning_rate_schedule is linear to 0 at base_config.max_step, which is not set")
    if len(tree["explorer"]) > 1:
        raise UserError(f"explorer: at most one, not {', '.join(tree['explorer'])}")
    reset = read_parameters(tree["reset_config"], base.max_step)
    return Settings(
        base, replay, goal, agent, tree["nn_config"], tree["auxiliaries"], tree["explorer"], reset, {}, tree
    )


def _of_role(role: str, tree: Tree, layers: list[Layer]) -> Settings:
    """What `ma_config` makes of the settings for one role. Raises UserError for what no role has of its own."""
    source, own = f"ma_config.{role}", tree["ma_config"][role]
    if not isinstance(own, Mapping):
        raise UserError(f"{source} is {own!r}; it must be a mapping of sections")
    _check_keys(source, own, list(_paths(defaults())))
    for path in _paths(own):
        if path.partition(".")[0] in FOR_ALL and path not in ("base_config", "base_config.nn"):
            raise UserError(
                f"{source}: {path} is the same for all roles; networks, algorithm and replay are a role's own"
            )
    return _typed(merge(tree, own), [*layers, (source, own)])


def read_dataclass(cls: type, values: Tree, section: str, layers: list[Layer]) -> Any:
    """A settings dataclass from its section of the tree."""
    hints = get_type_hints(cls)
    values = {key: _exact(hints[key], value) for key, value in values.items() if key in hints}
    model = create_model(cls.__name__, __base__=Section, **{key: (hint, ...) for key, hint in hints.items()})
    try:
        checked = model.model_validate(values)
    except ValidationError as error:
        raise UserError(_explain(error, layers, section)) from error
    for key, (allowed, holds) in BOUNDS.items():
        value = getattr(checked, key, None)
        if value is not None and not holds(value):
            raise UserError(f"{_source(layers, f'{section}.{key}')}: {section}.{key} is {value}; it must be {allowed}")
    try:
        return cls(**dict(checked))
    except ValueError as error:  # settings that do not go together
        raise UserError(f"{section}: {error}") from error


def _exact(hint: Any, value: Any) -> Any:
    """`value` as `hint` takes it: words without case (YAML reads a bare `off` as False), 1e6 as a whole number."""
    if get_origin(hint) is Literal:
        spelled = "off" if value is False else str(value)
        return next((word for word in get_args(hint) if word.casefold() == spelled.casefold()), value)
    kinds = get_args(hint) or (hint,)
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    return value


def _read_section(model: type[Section], values: Tree) -> Any:
    return model.model_validate(_exactly(model, values))


def _exactly(model: type[Section], values: Tree) -> Tree:
    """Every value of a section, and of the sections in it, as its type takes it."""
    hints = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return {
        key: _exactly(hints[key], value)
        if isinstance(value, Mapping) and _is_section(hints.get(key))
        else _exact(hints.get(key), value)
        for key, value in values.items()
    }


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Section)


def _paths(tree: Tree, prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, Mapping) and path not in OPEN:
            yield from _paths(value, f"{path}.")


def _check_keys(source: str, layer: Tree, known: list[str], prefix: str = "") -> None:
    for key, value in layer.items():
        path = f"{prefix}{key}"
        if path not in known:
            instead = former_setting(path) or _nearest(path, known)
            raise UserError(f"{source}: {path} is no setting{f'; {instead}' if instead else ''}")
        sections = any(other.startswith(f"{path}.") for other in known)
        if sections and not isinstance(value, Mapping) and not (path == "goal" and value is None):
            raise UserError(f"{source}: {path} is a section; its settings go below it, not {value!r}")
        if sections and value is not None:
            _check_keys(source, value, known, f"{path}.")


def _nearest(path: str, known: list[str]) -> str | None:
    section, _, key = path.rpartition(".")
    elsewhere = [other for other in known if other.rpartition(".")[2] == key]
    near = get_close_matches(path, [other for other in known if other.rpartition(".")[0] == section], 1)
    found = elsewhere or near or get_close_matches(path, known, 1)
    return f"did you mean {found[0]}?" if found else None


def _explain(error: ValidationError, layers: list[Layer], section: str | None = None) -> str:
    first = error.errors()[0]
    section = section or {"BaseConfig": "base_config", "ReplayConfig": "replay_config", "Goal": "goal"}[error.title]
    place = [str(part) for part in first["loc"] if isinstance(part, str) and "[" not in part]
    if not place:  # settings that do not go together
        return f"{section}: {first['ctx']['error']}"
    path = f"{section}.{'.'.join(place[:2])}"
    if path not in _paths(defaults()):
        path = f"{section}.{place[0]}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{_source(layers, path)}: {path} is {first['input']!r}; {message[0].lower()}{message[1:]}"


def _source(layers: list[Layer], path: str) -> str:
    """Where a value was last set."""
    for source, layer in reversed(layers):
        if path in _paths(layer):
            return source
    return DEFAULTS.name
