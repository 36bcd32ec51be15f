"""The sections of the settings as types with bounds and conditions, without defaults; and trees converted to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from algorithm.annotations import FixedOnResume, Includes, OnlyIf, Range, Unless
from algorithm.config.yaml_layers import Layer, Tree, find_source, iterate_paths, load_defaults
from algorithm.errors import UserError

MAX_INTEGER = 2**63 - 1
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
MAX_SIZE = 2**31 - 1  # elements in memory
MAX_SECONDS = 10**6  # longer waits overflow the clocks of some systems
ON_RAY = OnlyIf(host="ray")


class Section(BaseModel):
    """A section of typed settings without defaults.

    Words match without case (YAML reads a bare `off` as False), 1e6 is an integer, and 1 is a float.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    max_integer: ClassVar[int] = MAX_INTEGER

    @field_validator("*", mode="before")
    @classmethod
    def _convert(cls, value: Any, info: ValidationInfo) -> Any:
        """Return a value as its field needs it, if that is possible without loss."""
        hint = cls.model_fields[str(info.field_name)].annotation
        if words := find_words(hint):
            spelled = "off" if value is False else str(value)
            return next((word for word in words if word.casefold() == spelled.casefold()), value)
        types = get_args(hint) or (hint,)
        if isinstance(value, float) and value.is_integer() and int in types and float not in types:
            return int(value)
        return float(value) if type(value) is int and float in types and int not in types else value

    @field_validator("*")
    @classmethod
    def _check_size(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > cls.max_integer:
            raise ValueError(f"it must be at most {cls.max_integer:,}")
        if isinstance(value, float) and abs(value) > MAX_FLOAT32:
            raise ValueError(f"it must be at most {MAX_FLOAT32:g}, the largest float32")
        return value


class AgentSection(Section):
    """A section of an algorithm, whose integers are lengths and sizes."""

    max_integer = MAX_SIZE


def find_words(hint: Any) -> tuple[str, ...]:
    """Return the words that the type `hint` allows."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(word for one in get_args(hint) for word in find_words(one))
    return get_args(hint) if get_origin(hint) is Literal else ()


def normalize_device(text: Any) -> Any:
    """Return the name that torch has for the device `text`. Raises ValueError if it is not a device."""
    name = re.sub(r"^gpu\b", "cuda", str(text).casefold())
    if not re.fullmatch(r"cpu|auto|mps|cuda(:\d+)?", name):
        raise ValueError(
            "it must be cpu, cuda, cuda:1 (the device with this index), gpu (the same as cuda), mps or auto"
        )
    return name


def normalize_wrappers(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return pairs of `module:Wrapper` and its keyword arguments. Raises ValueError for an entry without a wrapper."""
    if not isinstance(value, list):
        raise ValueError("it must be a list of wrappers")
    pairs: list[tuple[str, dict[str, Any]]] = []
    for entry in value:
        named = {entry: {}} if isinstance(entry, str) else entry
        pair = next(iter(named.items())) if isinstance(named, dict) and len(named) == 1 else ("", None)
        if not re.fullmatch(r"[\w.]+:\w+", str(pair[0])) or not isinstance(pair[1] or {}, dict):
            raise ValueError(f"{entry!r} is neither module:Wrapper nor {{module:Wrapper: {{argument: value}}}}")
        pairs.append((pair[0], pair[1] or {}))
    return pairs


Platform = Literal["windows", "macos", "linux"]
Count = Annotated[int, Range(at_least=1)]
CountOrNull = Annotated[int | None, Range(at_least=1)]
Fraction = Annotated[float, Range(at_least=0, at_most=1)]
NonNegative = Annotated[float, Range(at_least=0)]
Seconds = Annotated[float, Range(above=0, at_most=MAX_SECONDS)]


class UnityArgs(Section):
    """The section `base_config.unity_args`."""

    max_integer = MAX_SIZE

    build_path: str | dict[Platform, str]
    base_port: Annotated[int | None, Range(at_least=1, at_most=2**16 - 1)]
    agents: Count | dict[str, Count] | None
    no_graphics: bool
    time_scale: Annotated[float, Range(above=0, at_most=100)]
    quality_level: Annotated[int, Range(at_least=0)]
    width: Count
    height: Count
    target_frame_rate: Annotated[int, Range(at_least=-1)]
    capture_frame_rate: Annotated[int, Range(at_least=0)]
    additional_args: list[str]
    log_folder: str | None
    timeout_wait: Seconds


class GodotArgs(Section):
    """The section `base_config.godot_args`."""

    max_integer = MAX_SIZE

    build_path: str | dict[Platform, str] | None
    project_path: Annotated[str | None, OnlyIf(build_path=None)]
    program: Annotated[str | None, OnlyIf(build_path=None)]
    base_port: Annotated[int | None, Range(at_least=1, at_most=2**16 - 1)]
    no_graphics: bool
    speedup: Count
    action_repeat: CountOrNull
    fixed_fps: CountOrNull
    time_limit: Annotated[int | None, Range(at_least=0)]
    additional_args: list[str]
    log_folder: str | None
    timeout_wait: Seconds


class BaseConfig(Section, title="base_config"):
    """The section `base_config`."""

    env_type: Annotated[str, FixedOnResume("the saved experience is of this simulator")]
    env_name: Annotated[str | None, FixedOnResume("the saved experience is of this environment")]
    env_args: dict[str, Any]
    env_wrappers: Annotated[
        list[tuple[str, dict[str, Any]]],
        BeforeValidator(normalize_wrappers),
        FixedOnResume("the saved experience is of the environment inside these wrappers"),
    ]
    ignore_observations: Annotated[
        list[str], FixedOnResume("the saved networks were trained with the other observations")
    ]
    unity_args: Annotated[UnityArgs, OnlyIf(env_type="UNITY")]
    godot_args: Annotated[GodotArgs, OnlyIf(env_type="GODOT")]
    algorithm: Annotated[str, FixedOnResume("the saved networks belong to this algorithm")]
    suggest_settings: bool
    runtime: str
    n_workers: Annotated[int, Range(at_least=1, at_most=2**10), OnlyIf(runtime="WORKERS")]
    worker_lock: Annotated[Literal["full", "gradients", "none"], OnlyIf(runtime="WORKERS")]
    n_envs: Annotated[
        int, Range(at_least=1, at_most=2**16), FixedOnResume("the saved replay has a lane for each environment")
    ]
    env_groups: Count
    name: Annotated[str, FixedOnResume("the run folder has this name")]
    nn: Annotated[str, FixedOnResume("the saved networks were built from this file")]
    initialize_from: Annotated[str | None, FixedOnResume("a run starts from other parameters once")]
    seed: Annotated[int, Range(at_least=0)]
    device: Annotated[str, BeforeValidator(normalize_device)]
    precision: Literal["float32", "bfloat16", "bfloat16_forced"]
    inference_device: Annotated[Literal["auto", "cpu", "device"], Unless(device="cpu")]
    max_step: CountOrNull
    max_iter: CountOrNull
    max_step_each_iter: CountOrNull
    log_every: Count
    save_every: CountOrNull
    evaluate_every: CountOrNull
    evaluate_greedy: bool
    keep_checkpoints: Count
    export: Literal["never", "end", "checkpoints"]
    export_format: Literal["barracuda", "sentis", "sentis_dynamo", "plain"]
    tracker: Literal["none", "wandb", "mlflow", "trackio"]
    histograms: list[Literal["actions", "weights"]]
    max_env_restarts: Annotated[int | None, Range(at_least=0)]
    env_timeout: Annotated[float | None, Range(above=0, at_most=MAX_SECONDS)]
    unbounded_action_limit: Annotated[
        float | None, Range(above=0), FixedOnResume("the saved experience is in these units")
    ]
    observe_previous: Annotated[
        list[Literal["action", "reward"]], FixedOnResume("the saved networks observe these values")
    ]
    max_nonfinite_updates: Count

    @property
    def has_workers(self) -> bool:
        """Return whether the run has worker processes."""
        return self.runtime.casefold() == "workers"

    @property
    def is_on_cluster(self) -> bool:
        """Return whether the run has rollout actors in other processes."""
        return self.runtime.casefold() == "cluster"

    @model_validator(mode="after")
    def _check_together(self) -> BaseConfig:
        if self.env_groups > self.n_envs:
            raise ValueError(f"env_groups {self.env_groups} must not be above n_envs {self.n_envs}")
        if "actions" in self.histograms and self.has_workers:
            raise ValueError("histograms of actions are not for runtime WORKERS, whose actions stay in the workers")
        return self


class Goal(Section, title="goal"):
    """The section `goal`."""

    return_: float | None = Field(alias="return")
    evaluation_episodes: Count
    step_budget: CountOrNull


def count_evaluation_episodes(goal: Goal | None) -> int:
    """Return the number of episodes of an evaluation, also of a run without a goal."""
    return goal.evaluation_episodes if goal else load_defaults()["goal"]["evaluation_episodes"]


class ReplayConfig(Section, title="replay_config"):
    """The section `replay_config`."""

    capacity: Annotated[Count, FixedOnResume("the saved replay has this size")]
    memory_map: bool
    sampler: Annotated[
        Literal["uniform", "prioritized", "lazy"], FixedOnResume("the saved priorities belong to this sampler")
    ]
    hindsight: Annotated[float, Range(at_least=0, at_most=1000)]
    initial_priorities: Annotated[
        Literal["td_error"] | None,
        Unless(sampler="uniform"),
        FixedOnResume("the saved replay has the TD errors of all steps, or of none"),
    ]
    alpha: Annotated[
        NonNegative, OnlyIf(sampler="prioritized"), FixedOnResume("the saved priorities were raised to this power")
    ]
    beta: Annotated[Fraction, OnlyIf(sampler="prioritized")]
    beta_increment_per_sampling: Annotated[NonNegative, OnlyIf(sampler="prioritized")]
    td_error_min: Annotated[float, Range(above=0), Unless(sampler="uniform")]
    td_error_max: Annotated[float, Range(above=0), Unless(sampler="uniform")]
    max_error_weight: Annotated[Fraction, Unless(sampler="uniform")]
    uniform_fraction: Annotated[float, Range(above=0, at_most=1), OnlyIf(sampler="lazy")]

    @model_validator(mode="after")
    def _check_bounds(self) -> ReplayConfig:
        if self.td_error_min > self.td_error_max:
            raise ValueError(f"td_error_min {self.td_error_min} must not be above td_error_max {self.td_error_max}")
        return self


def check_address(text: Any) -> Any:
    """Return the address of a cluster. Raises ValueError if it is not one."""
    if not re.fullmatch(r"local|auto|[^\s:/]+:\d{1,5}", str(text)):
        raise ValueError("it must be local, auto, or HOST:PORT")
    return text


class ClusterConfig(Section, title="cluster_config"):
    """The section `cluster_config`."""

    host: Literal["processes", "ray"]
    address: Annotated[str, BeforeValidator(check_address), ON_RAY]
    actors: Annotated[int, Range(at_least=1, at_most=2**14)]
    cpus_per_actor: Annotated[NonNegative, ON_RAY]
    gpus_per_actor: Annotated[NonNegative, ON_RAY]
    rollouts_in_flight: Annotated[int | None, Range(at_least=1, at_most=2**6)]
    max_lag: Annotated[int | None, Range(at_least=0)]
    learners: Annotated[int, Range(at_least=1, at_most=2**8)]
    cpus_per_learner: Annotated[NonNegative, Unless(learners=1), ON_RAY]
    gpus_per_learner: Annotated[int, Range(at_least=0, at_most=1), Unless(learners=1), ON_RAY]
    timeout: Seconds
    start_timeout: Seconds
    evaluation_actor: bool
    evaluation_timeout: Annotated[Seconds, OnlyIf(evaluation_actor=True)]
    token_auth: Annotated[bool, ON_RAY]


_ON_CLUSTER, _ON_RAY = OnlyIf("base_config", runtime="CLUSTER"), OnlyIf("cluster_config", host="ray")
_WITH_OPPONENTS, _WITH_PAST = Unless(opponents=[]), Includes(opponents="past")
_COPYING, _DRAWING = OnlyIf(evolver_enabled=False), OnlyIf(evolver_enabled=True)


class PopulationConfig(Section, title="population_config"):
    """The section `population_config`."""

    size: Annotated[int | None, Range(at_least=2, at_most=2**10), FixedOnResume("each member has its own run folder")]
    interval: Annotated[Count, FixedOnResume("the lineage has rows of this interval")]
    processes: CountOrNull
    cpus_per_member: Annotated[NonNegative, _ON_CLUSTER, _ON_RAY]
    gpus_per_member: Annotated[NonNegative, _ON_CLUSTER, _ON_RAY]
    timeout: Annotated[float | None, Range(above=0, at_most=MAX_SECONDS)]
    max_restarts: Annotated[int, Range(at_least=0)]
    exchange_fraction: Annotated[float, Range(at_least=0, at_most=0.5), _COPYING]
    perturb_factors: Annotated[list[Annotated[float, Range(above=0)]], _COPYING]
    resample_probability: Annotated[Fraction, _COPYING]
    random_params: Annotated[dict[str, Any], FixedOnResume("the members have values of these settings")]
    evolver_enabled: Annotated[bool, FixedOnResume("the members evolve in this way")]
    evolver_cem_length: Annotated[Count, _DRAWING]
    evolver_cem_best: Annotated[float, Range(above=0, at_most=1), _DRAWING]
    evolver_cem_min_length: Annotated[Count, _DRAWING]
    evolver_cem_time: Annotated[float, Range(at_least=0, at_most=MAX_SECONDS), _DRAWING]
    evolver_remove_worst: Annotated[int, Range(at_least=-1), _DRAWING]

    @model_validator(mode="after")
    def _check_together(self) -> PopulationConfig:
        if not self.perturb_factors:
            raise ValueError("perturb_factors is empty; it must have at least one factor")
        if self.evolver_cem_min_length > self.evolver_cem_length:
            raise ValueError(
                f"evolver_cem_min_length {self.evolver_cem_min_length} must not be above evolver_cem_length "
                f"{self.evolver_cem_length}"
            )
        return self


class DemonstrationConfig(Section, title="demonstration_config"):
    """The section `demonstration_config`."""

    sources: list[str]
    batch_share: Annotated[float | None, Range(at_least=0, below=1)]

    @model_validator(mode="after")
    def _check_together(self) -> DemonstrationConfig:
        if self.batch_share != 0 and not self.sources:
            raise ValueError("batch_share needs sources")
        return self


class OpponentConfig(Section, title="opponent_config"):
    """The section `opponent_config`."""

    opponents: list[str]
    play_against_latest_model_ratio: Annotated[Fraction, _WITH_OPPONENTS]
    swap_steps: Annotated[Count, _WITH_OPPONENTS]
    team_change: Annotated[CountOrNull, _WITH_OPPONENTS]
    save_steps: Annotated[Count, _WITH_PAST]
    window: Annotated[Count, _WITH_PAST]
    initial_elo: Annotated[float, _WITH_OPPONENTS]
    evaluation_opponent: Annotated[str, _WITH_OPPONENTS]


class TrackerConfig(Section, title="tracker_config"):
    """The section `tracker_config`."""

    project: str
    group: str | None
    mode: Literal["offline", "online"]
    address: Annotated[str | None, OnlyIf(mode="online")]


class ReportConfig(Section, title="report_config"):
    """The section `report_config`."""

    report: bool
    video_every: CountOrNull


class Tune(Section, title="tune"):
    """The section `tune`."""

    space: dict[str, Any]
    objective: Literal["return", "env_steps"]
    seeds: Annotated[int, Range(at_least=1, at_most=1000)]


SECTIONS: Mapping[str, type[Section]] = {
    str(section.model_config["title"]): section
    for section in (
        BaseConfig,
        ClusterConfig,
        TrackerConfig,
        ReplayConfig,
        Goal,
        Tune,
        PopulationConfig,
        ReportConfig,
        DemonstrationConfig,
        OpponentConfig,
    )
}


def read_sections(tree: Tree, layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the typed sections `SECTIONS` of a merged tree, by name. Raises UserError for an invalid value."""
    try:
        return {  # only the goal may be null
            name: None if tree[name] is None and name == "goal" else section.model_validate(tree[name])
            for name, section in SECTIONS.items()
        }
    except ValidationError as error:
        raise UserError(describe_validation_error(error, layers)) from error


@cache
def make_model(cls: type) -> type[AgentSection]:
    """Return the model that checks the values of a dataclass."""
    fields: dict[str, Any] = {key: (hint, ...) for key, hint in get_type_hints(cls, include_extras=True).items()}
    return create_model(cls.__name__, __base__=AgentSection, **fields)


def read_dataclass(cls: type, values: Tree, section: str, layers: Sequence[Layer]) -> Any:
    """Return the settings of an algorithm from its section of the tree.

    Args:
        cls: Dataclass of the settings.
        values: Values of the section; those that the dataclass does not have are ignored.
        section: Name of the section in messages.
        layers: Layers of the tree, which errors name as the source of a value.

    Raises:
        UserError: A value does not fit its type or bounds, or values do not fit together.
    """
    model = make_model(cls)
    try:
        return cls(**dict(model.model_validate({key: values[key] for key in model.model_fields if key in values})))
    except ValidationError as error:
        raise UserError(describe_validation_error(error, layers, section)) from error
    except ValueError as error:
        raise UserError(f"{section}: {error}") from error


def describe_validation_error(error: ValidationError, layers: Sequence[Layer], section: str | None = None) -> str:
    """Return one line on the first value that does not fit, and the layer that set it."""
    first = error.errors()[0]
    section = section or error.title
    location = [str(part) for part in first["loc"] if isinstance(part, str) and "[" not in part]
    if not location:  # values that do not fit together
        return f"{section}: {first['ctx']['error']}"
    path = f"{section}.{'.'.join(location[:2])}"
    if path not in iterate_paths(load_defaults()):
        path = f"{section}.{location[0]}"
    return f"{find_source(layers, path)}: {path} is {first['input']!r}; {describe_failure(first['msg'])}"


def describe_failure(message: str) -> str:
    """Return the message of a validation, to follow the value."""
    message = message.removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}"
