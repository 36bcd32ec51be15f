"""Conversion of `environment_parameters` to `reset_config`: numbers, samplers and lessons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from algorithm.adapters.curriculum import MultiRange, Uniform
from algorithm.config.environment_parameters import Parameter, read_parameters
from algorithm.errors import UserError
from algorithm.tools.mlagents.keys import IGNORED, make_integer

# Parameters of each sampler, and keys of completion_criteria, with ML-Agents' defaults.
SAMPLERS: Mapping[str, Mapping[str, Any]] = {
    "constant": {"value": 0.0},
    "uniform": {"min_value": 0.0, "max_value": 1.0},
    "gaussian": {"mean": 1.0, "st_dev": 1.0},
    "multirangeuniform": {"intervals": [[0.0, 1.0]]},
}
CRITERIA: Mapping[str, Any] = {"measure": "reward", "behavior": None, "min_lesson_length": 1, "threshold": 0.0}
LOST_CRITERIA = {
    "signal_smoothing": "the measure is the plain mean of the last min_lesson_length episodes of the lesson",
    "require_reset": "a lesson begins with the next episode of each agent; running episodes continue",
}


class ParameterReader:
    """A reader of `environment_parameters`.

    Attributes:
        reset_config: The parameters in the grammar of `reset_config`.
        unsupported: Keys without a counterpart, each with the reason.
        measured_behaviors: For each `completion_criteria.behavior`, the behavior whose episodes end the lesson.
    """

    def __init__(self, file: str, tree: Mapping[str, Any]):
        """Read the section `tree`. Raise UserError, with `file` and key, for values that ML-Agents would reject."""
        self.unsupported: dict[str, str] = {}
        self.measured_behaviors: dict[str, str] = {}
        self.reset_config = {
            str(name): self._convert_parameter(f"environment_parameters.{name}", value) for name, value in tree.items()
        }
        try:
            for name, parameter in read_parameters(self.reset_config, max_step=1).items():
                for low, high in _list_ranges(parameter):
                    if low > high:
                        raise UserError(f"environment_parameters.{name}: {low} is above {high}")
        except UserError as error:
            line = str(error).replace("reset_config.", "environment_parameters.", 1)
            raise UserError(f"{file}: {line}") from error

    def _convert_parameter(self, key: str, given: Any) -> Any:
        """Return a parameter with ML-Agents' defaults; what is not valid is unchanged."""
        if not isinstance(given, Mapping) or not isinstance(lessons := given.get("curriculum"), list) or len(given) > 1:
            return self._convert_value(key, given)
        converted = [
            self._convert_lesson(f"{key}.curriculum[{k}]", lesson, k == len(lessons) - 1)
            for k, lesson in enumerate(lessons)
        ]
        is_single = len(converted) == 1 and isinstance(converted[0], Mapping) and "value" in converted[0]
        return converted[0]["value"] if is_single else {"curriculum": converted}

    def _convert_lesson(self, key: str, given: Any, last: bool) -> Any:
        if not isinstance(given, Mapping):
            return given
        lesson = dict(given)
        if "value" in lesson:
            lesson["value"] = self._convert_value(f"{key}.value", lesson["value"])
        criteria_key = f"{key}.completion_criteria"
        if last and lesson.pop("completion_criteria", None) is not None:
            self.unsupported[criteria_key] = "the last lesson does not end, as in ML-Agents"
        elif isinstance(criteria := lesson.get("completion_criteria"), Mapping):
            lesson["completion_criteria"] = self._convert_criteria(criteria_key, criteria)
        return lesson

    def _convert_criteria(self, key: str, given: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in given.items():
            is_lost = (
                name in LOST_CRITERIA and value and (name, given.get("measure")) != ("signal_smoothing", "progress")
            )
            if is_lost or name not in (*CRITERIA, *LOST_CRITERIA):
                self.unsupported[f"{key}.{name}"] = LOST_CRITERIA.get(name, IGNORED)
        criteria = {name: default if given.get(name) is None else given[name] for name, default in CRITERIA.items()}
        criteria["min_lesson_length"] = make_integer(criteria["min_lesson_length"]) or 1
        if criteria["behavior"] is None:
            del criteria["behavior"]
        else:
            self.measured_behaviors[f"{key}.behavior"] = criteria["behavior"] = str(criteria["behavior"])
        return criteria

    def _convert_value(self, key: str, given: Any) -> Any:
        if not isinstance(given, Mapping) or not {"sampler_type", "sampler_parameters"} <= set(given):
            return given
        kind, given_parameters = given["sampler_type"], given["sampler_parameters"] or {}
        self.unsupported |= {f"{key}.{name}": IGNORED for name in list(given) if not name.startswith("sampler_")}
        parameters = given_parameters
        if isinstance(given_parameters, Mapping):
            parameters = {**SAMPLERS.get(str(kind), {}), **_drop_null(given_parameters)}
            if parameters.pop("seed", None) is not None:
                self.unsupported[f"{key}.sampler_parameters.seed"] = "Unity samples with the seed of the run"
            if kind == "constant" and set(parameters) == {"value"}:
                return parameters["value"]
        return {"sampler_type": kind, "sampler_parameters": parameters}


def _drop_null(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if value is not None}


def _list_ranges(parameter: Parameter) -> Iterator[Sequence[float]]:
    """Yield the limits of each uniform distribution of a parameter."""
    for value in [lesson.value for lesson in parameter] if isinstance(parameter, tuple) else [parameter]:
        if isinstance(value, Uniform):
            yield value.min_value, value.max_value
        elif isinstance(value, MultiRange):
            yield from value.intervals
