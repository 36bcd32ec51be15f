"""Typed settings, merged from default_config.yaml, a config.yaml and the command line, and their effect in a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from algorithm.annotations import Condition, FixedOnResume, ForActions, OnlyIf, Spellings, Unless, get_annotations
from algorithm.config.parameters import Parameter, read_parameters
from algorithm.config.registry import (
    AGENTS,
    check_name,
    find_settings,
    get_agent_section,
    make_agent_defaults,
    make_defaults,
)
from algorithm.config.sections import (
    SECTIONS,
    BaseConfig,
    ClusterConfig,
    DemonstrationConfig,
    Goal,
    OpponentConfig,
    PopulationConfig,
    ReplayConfig,
    ReportConfig,
    TrackerConfig,
    Tune,
    read_dataclass,
    read_sections,
)
from algorithm.config.unknown_settings import check_keys
from algorithm.config.yaml_layers import (
    MAPPINGS,
    MAX_LEVELS,
    Layer,
    Tree,
    find_value,
    iterate_paths,
    iterate_settings,
    load_defaults,
    merge,
    nest,
    parse_yaml,
)
from algorithm.errors import UserError
from algorithm.specs import ActionSpec, Role

AUTO = "auto"  # algorithm that rules choose for the environment (see `suggested_settings`)
ALGORITHM = "ACER"  # algorithm in place of `AUTO` where no rules are applied: it learns actions of every kind
AGENT_KEY = "agent"  # the key in the section of a role in ma_config for the name of its agent
# Sections that are the same for all roles, but for base_config.nn.
SHARED_SECTIONS = {*SECTIONS, "reset_config", "ma_config"} - {"replay_config"}
# Conditions of sections on `base_config`; the conditions of a setting are annotated on its field.
ALGORITHM_CONDITIONS: Mapping[str, Condition] = {
    **{get_agent_section(name): OnlyIf(algorithm=name) for name in AGENTS},
    "cluster_config": OnlyIf(runtime="CLUSTER"),
    "tracker_config": Unless(tracker="none"),
}
# Settings of cluster_config for the members of a population; the others are for rollout actors.
CLUSTER_SETTINGS_OF_MEMBERS = ("host", "address", "timeout", "start_timeout", "token_auth")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The typed settings of a run, or of one role of it."""

    base: BaseConfig
    cluster: ClusterConfig
    tracker: TrackerConfig
    replay: ReplayConfig
    goal: Goal | None
    tune: Tune
    population: PopulationConfig
    report: ReportConfig
    demonstration: DemonstrationConfig
    opponent: OpponentConfig
    agent: Any  # the settings dataclass of the algorithm
    nn: Annotated[Mapping[str, Any], FixedOnResume("the saved networks have this shape")]
    auxiliaries: Mapping[str, Any]  # the settings of each auxiliary, a record of its class, by name
    explorer: Mapping[str, Any]  # by name: keyword arguments, or the one argument
    reset: Mapping[str, Parameter]  # environment parameters
    tree: Tree  # all of these as they are written to the run folder
    roles: Mapping[str, Settings] = field(default_factory=dict)  # of the roles with sections in ma_config
    agents: Annotated[Mapping[str, str], FixedOnResume("the saved networks belong to these agents")] = field(
        default_factory=dict
    )  # by role: the name of the agent that ma_config gives to it
    command_line_layers: Sequence[Layer] = ()

    def for_role(self, role: str) -> Settings:
        """Return the settings of a role, or of the agent with this name."""
        return self.roles.get(role, self)

    def find_field(self, section: str) -> str:
        """Return the name of the field for a section of the tree; `agent` in the section of a role is one, too."""
        if section == AGENT_KEY:
            return "agents"
        return "agent" if section == self.agent_section else section.removesuffix("_config")

    @property
    def n_actors(self) -> int:
        """The number of processes with training environments that a cluster runs; 1 without a cluster."""
        return self.cluster.actors if self.base.is_on_cluster else 1

    @property
    def n_learners(self) -> int:
        """The number of learners."""
        return self.cluster.learners if self.base.is_on_cluster else 1

    @property
    def agent_section(self) -> str:
        """The name of the section of the algorithm."""
        return get_agent_section(self.base.algorithm)


def read_assignments(assignments: list[str], flag: str = "--set", section: str = "") -> Tree:
    """Return the tree of assignments `section.key=value`, whose values are YAML.

    Args:
        assignments: Assignments, each in a string.
        flag: Flag of the command line that they were given with, for messages.
        section: Prefix of their paths.

    Raises:
        UserError: An assignment has no `=`, or its value is not YAML.
    """
    tree: Tree = {}
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise UserError(f"{flag} {text}: expected {'key' if section else 'section.key'}=value")
        path = _replace_dashes(f"{section}{path}")
        if path.count(".") >= MAX_LEVELS:
            raise UserError(f"{flag} {text[:40]}...: a setting is at most {MAX_LEVELS} levels deep")
        try:
            leaf = parse_yaml(value)
        except ValueError as error:
            raise UserError(f"{flag} {text}: the value cannot be read: {error}") from error
        tree = merge(tree, nest(path, leaf))
    return tree


def _replace_dashes(path: str) -> str:
    """Return a path with underscores for dashes, but for those in names of roles and environment parameters."""
    words = path.split(".")
    for i, word in enumerate(words):
        if not i or words[i - 1] not in ("ma_config", "reset_config"):
            words[i] = word.replace("-", "_")
    return ".".join(words)


def resolve(layers: list[Layer]) -> Settings:
    """Return the typed settings of the defaults with `layers` on top, each with the name of its source.

    Raises:
        UserError: A key is unknown, a value does not fit its type or bounds, or values do not fit together.
    """
    tree = merge_layers(layers)
    settings = _convert(tree, layers)
    agents, role_sections = _read_agents(tree["ma_config"])
    roles = {role: _resolve_role(role, sections, tree, layers) for role, sections in role_sections.items()}
    return replace(settings, roles=roles, agents=agents)


def is_auto(tree: Tree) -> bool:
    """Return whether settings leave the choice of the algorithm to the rules."""
    return str(find_value(tree, "base_config.algorithm") or AUTO).casefold() == AUTO


def merge_layers(layers: Sequence[Layer]) -> Tree:
    """Return the defaults with `layers` on top. Raises UserError for an unknown key, and for no mapping of names."""
    layers = [(source, normalize_layer(layer)) for source, layer in layers]
    given = [dict(iterate_settings(layer)).get("base_config.algorithm") for _, layer in layers]
    algorithms = [name for name in given if isinstance(name, str)]  # other values are rejected later
    tree = load_defaults() | (make_agent_defaults(algorithms[-1]) if algorithms else {})
    known = list(iterate_paths(tree))
    for source, layer in layers:
        check_keys(source, layer, known)
    tree = merge(tree, {"base_config": {"algorithm": ALGORITHM}}, *(layer for _, layer in layers))
    if isinstance(tree["goal"], Mapping):  # a layer may set a part of a goal that the layer below set to null
        tree["goal"] = merge(load_defaults()["goal"], tree["goal"])
    if tree["explorer"] is None:  # removes that of the layers below
        tree["explorer"] = {}
    for section in MAPPINGS:
        if not isinstance(tree[section], Mapping):
            raise UserError(f"{section} is {tree[section]!r}; it must be a mapping")
        if others := [name for name in tree[section] if not isinstance(name, str)]:
            raise UserError(f"{section}: the name {others[0]!r} is not text; put it in quotes")
    return tree


def normalize_layer(layer: Tree) -> Tree:
    """Return a layer without algorithm `AUTO`, and with runtime CLUSTER on the host ray for RAY, its former name."""
    base = layer.get("base_config")
    if not isinstance(base, Mapping):
        return layer
    if str(base.get("algorithm")).casefold() == AUTO:
        layer = {**layer, "base_config": {key: value for key, value in base.items() if key != "algorithm"}}
    if str(base.get("runtime")).casefold() == "ray":
        layer = merge(layer, {"base_config": {"runtime": "CLUSTER"}, "cluster_config": {"host": "ray"}})
    return layer


def _convert(tree: Tree, layers: list[Layer]) -> Settings:
    """Return the typed settings of a merged tree, without the settings of roles. Raises UserError."""
    records = {name.removesuffix("_config"): record for name, record in read_sections(tree, layers).items()}
    base = records["base"]
    section = get_agent_section(base.algorithm)
    agent_settings = find_settings("algorithm", base.algorithm)
    if section in tree:
        tree = {**tree, section: _normalize_spellings(agent_settings, tree[section])}
    agent = read_dataclass(agent_settings, tree.get(section, {}), section, layers)
    for setting, name in [("env_type", base.env_type), ("runtime", base.runtime)]:
        check_name(setting, name)
    auxiliaries = {name: _read_auxiliary(name, values, layers) for name, values in tree["auxiliaries"].items()}
    if base.max_step is None:
        _check_without_end(section, agent, auxiliaries)
    reset = read_parameters(tree["reset_config"], base.max_step)
    _check_opponents(records["opponent"], reset)
    if len(tree["explorer"]) > 1:
        raise UserError(f"explorer: at most one, not {', '.join(tree['explorer'])}")
    return Settings(
        **records,
        agent=agent,
        nn=tree["nn_config"],
        auxiliaries=auxiliaries,
        explorer=tree["explorer"],
        reset=reset,
        tree=tree,
    )


def _check_without_end(section: str, agent: Any, auxiliaries: Mapping[str, Any]) -> None:
    """Raise UserError for a setting that needs the length of the run, which is not set."""
    for name, value in vars(agent).items():
        if name.endswith("_schedule") and value != "constant":
            raise UserError(
                f"{section}.{name}: {value} needs base_config.max_step, which is not set; set it, or use constant"
            )
    for name, own in auxiliaries.items():
        if getattr(own, "end", None) is not None:
            raise UserError(f"auxiliaries.{name}.end is a part of base_config.max_step, which is not set; set it")


def _check_opponents(config: OpponentConfig, reset: Mapping[str, Any]) -> None:
    """Raise UserError for a setting that needs other opponents."""
    if not config.opponents:
        for name, value in reset.items():
            if isinstance(value, tuple) and any(lesson.measure == "elo" for lesson in value):
                raise UserError(f"reset_config.{name}: the measure elo needs opponents: set opponent_config.opponents")
    elif config.evaluation_opponent == "past" and "past" not in config.opponents:
        raise UserError("opponent_config.evaluation_opponent: past needs past among opponent_config.opponents")


def _normalize_spellings(cls: type, values: Tree) -> Tree:
    """Return the values of a section with the main spelling of each value that has several."""
    words = {
        key: annotation.words
        for key, annotations in get_annotations(cls).items()
        for annotation in annotations
        if isinstance(annotation, Spellings)
    }
    return {key: words.get(key, {}).get(str(value).casefold(), value) for key, value in values.items()}


def _read_auxiliary(name: str, values: Any, layers: list[Layer]) -> Any:
    """Return the settings of an auxiliary, with its defaults. Raises UserError."""
    section, defaults = f"auxiliaries.{name}", make_defaults("auxiliaries", name)
    known = [section, *(f"{section}.{key}" for key in defaults)]
    for source, layer in layers:
        if isinstance(given := layer.get("auxiliaries"), Mapping) and given.get(name) is not None:
            check_keys(source, {section: given[name]}, known)
    return read_dataclass(find_settings("auxiliaries", name), {**defaults, **(values or {})}, section, layers)


def _read_agents(ma_config: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Tree]]:
    """Return the agent of each role that `ma_config` gives one, and the sections of each role that has any.

    Raises:
        UserError: The name of an agent is not text, or a role with sections is played by the agent of another role.
    """
    agents: dict[str, str] = {}
    sections: dict[str, Tree] = {}
    for role, role_sections in ma_config.items():
        if not isinstance(role_sections, Mapping):
            raise UserError(f"ma_config.{role} is {role_sections!r}; it must be a mapping of sections")
        sections[role] = {key: value for key, value in role_sections.items() if key != AGENT_KEY}
        if AGENT_KEY in role_sections:
            agents[role] = role_sections[AGENT_KEY]
            if not isinstance(agents[role], str) or not agents[role]:
                raise UserError(f"ma_config.{role}.agent is {agents[role]!r}; it must be the name of an agent, as text")
    for role, agent in agents.items():
        if agent != role and sections[role]:
            raise UserError(
                f"ma_config.{role}.{next(iter(sections[role]))} has no effect: {role} is played by the agent {agent}, "
                f"whose settings are in ma_config.{agent}"
            )
    return agents, {role: own for role, own in sections.items() if own or role not in agents}


def _resolve_role(role: str, sections: Tree, tree: Tree, layers: list[Layer]) -> Settings:
    """Return the settings of a role: the settings of the run, with the role's sections of `ma_config` on top.

    Raises:
        UserError: A setting is the same for all roles, or does not fit.
    """
    source = f"ma_config.{role}"
    defaults = load_defaults() | make_agent_defaults(tree["base_config"]["algorithm"])
    check_keys(source, sections, list(iterate_paths(defaults)))
    for path in iterate_paths(sections):
        if path.partition(".")[0] in SHARED_SECTIONS and path not in ("base_config", "base_config.nn"):
            raise UserError(
                f"{source}: {path} is the same for all roles; a role can have its own network, algorithm and replay"
            )
    return _convert(merge(tree, sections), [*layers, (source, sections)])


def check_effects(settings: Settings, layers: Sequence[Layer], roles: Mapping[str, Role] | None = None) -> None:
    """Check that every setting of `layers`, which were written for a run, has an effect in it.

    Args:
        settings: Settings of the run.
        layers: Layers to check.
        roles: Roles of the environment; None before they are known, which leaves out the conditions on actions.

    Raises:
        UserError: A setting has no effect.
    """
    specs = None if roles is None else [role.action_spec for role in roles.values()]
    for source, tree in layers:
        checked = [(settings, f"{source}: ", tree, specs)]
        for name, sections in (tree.get("ma_config") or {}).items():
            role_specs = [roles[name].action_spec] if roles and name in roles else None
            checked.append((settings.for_role(name), f"{source}: ma_config.{name}.", sections, role_specs))
        for own, prefix, own_tree, own_specs in checked:
            for path, _ in iterate_settings(own_tree):
                if failure := find_failure(own, path, own_specs):
                    raise UserError(f"{prefix}{path} {failure}")


def find_failure(settings: Settings, path: str, specs: Sequence[ActionSpec] | None = None) -> str | None:
    """Return why the setting `path` has no effect, to follow its name; None if it has an effect.

    `specs` are the action specs of the agents; None leaves out the conditions on actions.
    """
    section, _, key = path.partition(".")
    is_population = settings.population.size is not None
    if is_population and section == "cluster_config" and key not in (*CLUSTER_SETTINGS_OF_MEMBERS, ""):
        return "is for rollout actors, which the members of a population do not have, and so has no effect"
    for annotation, owner in iterate_annotations(settings, path):
        failure = None
        if isinstance(annotation, Condition):
            failure = annotation.explain_failure(owner)
        elif isinstance(annotation, ForActions) and specs is not None:
            failure = annotation.explain_failure(specs)
        if failure:
            return failure
    return None


def iterate_annotations(settings: Settings, path: str) -> Iterator[tuple[Any, Any]]:
    """Yield each annotation on the setting `path` and on its sections, with the object whose fields it refers to."""
    section, *keys = path.split(".")
    if section in ALGORITHM_CONDITIONS:
        yield ALGORITHM_CONDITIONS[section], settings.base
    if section == "replay_config":
        if settings.agent.uses_replay:
            yield Unless(replay_ratio=0), settings.agent
        else:
            yield Unless(algorithm=settings.base.algorithm), settings.base
    owner: Any = settings
    for key in (settings.find_field(section), *keys):
        for annotation in get_annotations(owner.__class__).get(key, ()):
            other = getattr(annotation, "section", None)
            yield annotation, getattr(settings, settings.find_field(other)) if other else owner
        owner = owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)


def check_teams(agent: str, role: Role, configured: Collection[str]) -> None:
    """Raise UserError for a team that is `configured` although an agent of another name plays it."""
    for team in role.count_lanes_by_team(agent):
        if team != agent and team in configured:
            raise UserError(
                f"ma_config.{team} has no effect: {team} is played by the agent {agent}; "
                f"write ma_config.{agent}, or give {team} its own agent: ma_config.{team}.{AGENT_KEY}={team}"
            )


def list_unknown_roles(ma_config: Mapping[str, Any], roles: Mapping[str, Role]) -> Iterator[str]:
    """Yield a line for each name in `ma_config` that no agent and no team has."""
    known = dict.fromkeys(name for agent, role in roles.items() for name in (agent, *role.count_lanes_by_team(agent)))
    for name in ma_config:
        if name not in known:
            yield f"ma_config.{name}: no role has this name so far; the roles are {', '.join(known)}"
