"""The sections of the settings: the fields with their types, bounds and conditions; defaults are in the YAML file."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from algorithm.annotations import FixedOnResume, OnlyIf, Range, Unless

MAX_INTEGER = 2**63 - 1
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
MAX_SIZE = 2**31 - 1  # elements in memory
MAX_ENVS = 2**16
MAX_WORKERS = 2**10
MAX_PORT = 2**16 - 1
MAX_SECONDS = 10**6  # longer waits overflow the clocks of some systems


class Section(BaseModel):
    """A section of typed settings without defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    max_integer: ClassVar[int] = MAX_INTEGER

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
AgentLimit = Annotated[int, Range(at_least=1)]


class UnityArgs(Section):
    """The section `base_config.unity_args`."""

    max_integer = MAX_SIZE

    build_path: str | dict[Platform, str]
    base_port: Annotated[int | None, Range(at_least=1, at_most=MAX_PORT)]
    agents: AgentLimit | dict[str, AgentLimit] | None
    no_graphics: bool
    time_scale: Annotated[float, Range(above=0, at_most=100)]
    quality_level: Annotated[int, Range(at_least=0)]
    width: Annotated[int, Range(at_least=1)]
    height: Annotated[int, Range(at_least=1)]
    target_frame_rate: Annotated[int, Range(at_least=-1)]
    capture_frame_rate: Annotated[int, Range(at_least=0)]
    additional_args: list[str]
    log_folder: str | None
    timeout_wait: Annotated[float, Range(above=0, at_most=MAX_SECONDS)]


class BaseConfig(Section):
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
    algorithm: Annotated[str, FixedOnResume("the saved networks belong to this algorithm")]
    runtime: str
    n_workers: Annotated[int, Range(at_least=1, at_most=MAX_WORKERS), OnlyIf(runtime="WORKERS")]
    worker_lock: Annotated[Literal["full", "gradients", "none"], OnlyIf(runtime="WORKERS")]
    n_envs: Annotated[
        int,
        Range(at_least=1, at_most=MAX_ENVS),
        FixedOnResume("the saved replay has a lane for each environment"),
    ]
    name: Annotated[str, FixedOnResume("the run folder has this name")]
    nn: Annotated[str, FixedOnResume("the saved networks were built from this file")]
    seed: Annotated[int, Range(at_least=0)]
    device: Annotated[str, BeforeValidator(normalize_device)]
    precision: Literal["float32", "bfloat16", "bfloat16_forced"]
    inference_device: Annotated[Literal["auto", "cpu", "device"], Unless(device="cpu")]
    max_step: Annotated[int | None, Range(at_least=1)]
    max_iter: Annotated[int | None, Range(at_least=1)]
    max_step_each_iter: Annotated[int | None, Range(at_least=1)]
    log_every: Annotated[int, Range(at_least=1)]
    save_every: Annotated[int | None, Range(at_least=1)]
    evaluate_every: Annotated[int | None, Range(at_least=1)]
    evaluate_greedy: bool
    keep_checkpoints: Annotated[int, Range(at_least=1)]
    export: Literal["never", "end", "checkpoints"]
    max_env_restarts: Annotated[int | None, Range(at_least=0)]
    env_timeout: Annotated[float | None, Range(above=0, at_most=MAX_SECONDS)]
    unbounded_action_limit: Annotated[
        float | None, Range(above=0), FixedOnResume("the saved experience is in these units")
    ]
    observe_previous: Annotated[
        list[Literal["action", "reward"]], FixedOnResume("the saved networks observe these values")
    ]
    max_nonfinite_updates: Annotated[int, Range(at_least=1)]

    @property
    def has_workers(self) -> bool:
        """Return whether the run has worker processes."""
        return self.runtime.casefold() == "workers"


class ReplayConfig(Section):
    """The section `replay_config`."""

    capacity: Annotated[int, Range(at_least=1), FixedOnResume("the saved replay has this size")]
    memory_map: bool
    sampler: Annotated[
        Literal["uniform", "prioritized", "lazy"], FixedOnResume("the saved priorities belong to this sampler")
    ]
    alpha: Annotated[
        float,
        Range(at_least=0),
        OnlyIf(sampler="prioritized"),
        FixedOnResume("the saved priorities were raised to this power"),
    ]
    beta: Annotated[float, Range(at_least=0, at_most=1), OnlyIf(sampler="prioritized")]
    beta_increment_per_sampling: Annotated[float, Range(at_least=0), OnlyIf(sampler="prioritized")]
    td_error_min: Annotated[float, Range(above=0), Unless(sampler="uniform")]
    td_error_max: Annotated[float, Range(above=0), Unless(sampler="uniform")]
    max_error_weight: Annotated[float, Range(at_least=0, at_most=1), Unless(sampler="uniform")]
    uniform_fraction: Annotated[float, Range(above=0, at_most=1), OnlyIf(sampler="lazy")]

    @model_validator(mode="after")
    def _check_bounds(self) -> ReplayConfig:
        if self.td_error_min > self.td_error_max:
            raise ValueError(f"td_error_min {self.td_error_min} must not be above td_error_max {self.td_error_max}")
        return self


class Goal(Section):
    """The section `goal`."""

    return_: float | None = Field(alias="return")
    step_budget: Annotated[int | None, Range(at_least=1)]
