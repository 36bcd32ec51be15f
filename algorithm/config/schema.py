"""The sections of the settings: names, types and bounds, without a default of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import log
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from algorithm.annotations import OnlyIf, Unless

MAX_INTEGER = 2**63 - 1  # of any integer
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127  # the largest
MAX_SIZE = 2**31 - 1  # of what is held in memory at once
MAX_ENVS = 2**16
MAX_SECONDS = 10**6  # longer waits overflow the clocks of some systems


class Section(BaseModel):
    """Typed settings without a default of their own."""

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
    """The section of an algorithm, whose integers are lengths and sizes."""

    max_integer = MAX_SIZE


def normalize_device(text: Any) -> Any:
    """`text` as torch names it. Raises ValueError for what is no device."""
    name = re.sub(r"^gpu\b", "cuda", str(text).casefold())
    if not re.fullmatch(r"cpu|auto|mps|cuda(:\d+)?", name):
        raise ValueError("it must be cpu, cuda, cuda:1 (a certain one), gpu (the same as cuda), mps or auto")
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


AgentLimit = Annotated[int, Field(ge=1)]


class UnityArgs(Section):
    """`base_config.unity_args`."""

    build_path: str | dict[Platform, str]
    base_port: int | None = Field(ge=1, le=65535)
    agents: AgentLimit | dict[str, AgentLimit] | None
    no_graphics: bool
    time_scale: float = Field(gt=0, le=100)
    quality_level: int = Field(ge=0, le=MAX_SIZE)
    width: int = Field(ge=1, le=MAX_SIZE)
    height: int = Field(ge=1, le=MAX_SIZE)
    target_frame_rate: int = Field(ge=-1, le=MAX_SIZE)
    capture_frame_rate: int = Field(ge=0, le=MAX_SIZE)
    additional_args: list[str]
    log_folder: str | None
    timeout_wait: float = Field(gt=0, le=MAX_SECONDS)


class BaseConfig(Section):
    """`base_config`."""

    env_type: str
    env_name: str | None
    env_args: dict[str, Any]
    env_wrappers: Annotated[list[tuple[str, dict[str, Any]]], BeforeValidator(normalize_wrappers)]
    ignore_observations: list[str]
    unity_args: Annotated[UnityArgs, OnlyIf(env_type="UNITY")]
    algorithm: str
    runtime: str
    n_envs: int = Field(ge=1, le=MAX_ENVS)
    name: str
    nn: str
    seed: int = Field(ge=0)
    device: Annotated[str, BeforeValidator(normalize_device)]
    precision: Literal["float32", "bfloat16", "bfloat16_forced"]
    inference_device: Annotated[Literal["auto", "cpu", "device"], Unless(device="cpu")]
    max_step: int | None = Field(ge=1)
    max_iter: int | None = Field(ge=1)
    max_step_each_iter: int | None = Field(ge=1)
    log_every: int = Field(ge=1)
    save_every: int | None = Field(ge=1)
    evaluate_every: int | None = Field(ge=1)
    evaluate_greedy: bool
    keep_checkpoints: int = Field(ge=1)
    export: Literal["never", "end", "checkpoints"]
    max_env_restarts: int | None = Field(ge=0)
    env_timeout: float | None = Field(gt=0, le=MAX_SECONDS)
    unbounded_action_limit: float | None = Field(gt=0)
    observe_previous: list[Literal["action", "reward"]]
    max_nonfinite_updates: int = Field(ge=1)


class ReplayConfig(Section):
    """`replay_config`."""

    capacity: int = Field(ge=1)
    memory_map: bool
    sampler: Literal["uniform", "prioritized", "lazy"]
    alpha: Annotated[float, OnlyIf(sampler="prioritized")] = Field(ge=0)
    beta: Annotated[float, OnlyIf(sampler="prioritized")] = Field(ge=0, le=1)
    beta_increment_per_sampling: Annotated[float, OnlyIf(sampler="prioritized")] = Field(ge=0)
    td_error_min: Annotated[float, Unless(sampler="uniform")] = Field(gt=0)
    td_error_max: Annotated[float, Unless(sampler="uniform")] = Field(gt=0)
    max_error_weight: Annotated[float, Unless(sampler="uniform")] = Field(ge=0, le=1)
    uniform_fraction: Annotated[float, OnlyIf(sampler="lazy")] = Field(gt=0, le=1)

    @model_validator(mode="after")
    def _check_bounds(self) -> ReplayConfig:
        if self.td_error_min > self.td_error_max:
            raise ValueError(f"td_error_min {self.td_error_min} must not be above td_error_max {self.td_error_max}")
        return self


class Goal(Section):
    """`goal`."""

    return_: float | None = Field(alias="return")
    step_budget: int | None = Field(ge=1)


# What an agent's settings must satisfy beyond their types: those of every algorithm are found here by name.
BOUNDS: Mapping[str, tuple[str, Any]] = {
    **dict.fromkeys(
        [
            "learning_rate",
            "max_grad_norm",
            "optimizer_epsilon",
            "reward_scale",
            "reward_clip",
            "importance_clip",
            "std_init",
            "learning_rate_critic",
            "learning_rate_policy",
            "learning_rate_alpha",
            "max_grad_norm_critic",
            "max_grad_norm_policy",
            "max_grad_norm_alpha",
            "clip_epsilon",
            "v_lambda",
            "v_rho",
            "v_c",
        ],
        ("above 0", lambda value: value > 0),
    ),
    **dict.fromkeys(
        [
            "entropy_coef",
            "value_coef",
            "trust_region_delta",
            "replay_ratio",
            "trace_clip",
            "learning_starts",
            "std_min",
            "alpha_critic_scale",
            "burn_in_step",
        ],
        ("at least 0", lambda value: value >= 0),
    ),
    **dict.fromkeys(
        ["gamma", "average_policy_decay", "trace_lambda", "tau", "discrete_dqn_epsilon"],
        ("from 0 to 1", lambda value: 0 <= value <= 1),
    ),
    **dict.fromkeys(["optimizer_beta1", "optimizer_decay"], ("at least 0 and below 1", lambda value: 0 <= value < 1)),
    # No policy has more entropy than one whose allowed actions are all alike, or all numbers of (-1, 1).
    "target_d_alpha": ("from 0 to 1, the largest entropy that there is", lambda value: 0 <= value <= 1),
    "target_c_alpha": (f"at least {-log(2):.4f}, the largest entropy that there is", lambda value: value >= -log(2)),
    **dict.fromkeys(
        [
            "rollout_length",
            "sequence_length",
            "batch_size",
            "sdn_samples",
            "update_target_per_step",
            "n_step",
        ],
        ("at least 1", lambda value: value >= 1),
    ),
    **dict.fromkeys(["ensemble_q_num", "ensemble_q_sample"], ("from 1 to 1,000", lambda value: 1 <= value <= 1000)),
}
