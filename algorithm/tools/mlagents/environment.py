"""Conversion of `environment_parameters` to `reset_config`: numbers, samplers and lessons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from algorithm.errors import UserError
from algorithm.tools.mlagents.trainer_config import (
    Converter,
    make_choice,
    suggest_key,
    to_bool,
    to_integer,
    to_number,
    to_text,
)

NO_SMOOTHING = "the measure is the plain mean of the last min_lesson_length episodes of the lesson"
NO_RESET = "a lesson begins with the next episode of each agent; running episodes continue"


def _intervals(value: Any) -> list[list[float]]:
    pairs = isinstance(value, list) and value and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    if not pairs:
        raise ValueError("it must be a list of lists of two numbers, [low, high]")
    return [_range(*map(to_number, pair)) for pair in value]


def _range(low: float, high: float) -> list[float]:
    if low > high:
        raise ValueError(f"{low} is above {high}")
    return [low, high]


# Parameters of each sampler: converter, and ML-Agents' default.
SAMPLERS: Mapping[str, Mapping[str, tuple[Converter, Any]]] = {
    "constant": {"value": (to_number, 0.0)},
    "uniform": {"min_value": (to_number, 0.0), "max_value": (to_number, 1.0)},
    "gaussian": {"mean": (to_number, 1.0), "st_dev": (to_number, 1.0)},
    "multirangeuniform": {"intervals": (_intervals, [[0.0, 1.0]])},
}
# Keys of completion_criteria: converter, and ML-Agents' default; None for a key that is required or optional.
CRITERIA: Mapping[str, tuple[Converter, Any]] = {
    "measure": (make_choice("reward", "progress"), "reward"),
    "behavior": (to_text, None),
    "min_lesson_length": (to_integer, 0),
    "threshold": (to_number, 0.0),
    "signal_smoothing": (to_bool, None),
    "require_reset": (to_bool, None),
}
LESSON: Mapping[str, Any] = {"name": None, "value": None, "completion_criteria": None}


class ParameterReader:
    """A reader of `environment_parameters`.

    Attributes:
        reset_config: The parameters in the grammar of `reset_config`.
        unsupported: Keys without a counterpart, each with the reason.
        measured_behaviors: For each `completion_criteria.behavior`, the behavior whose episodes end the lesson.
    """

    def __init__(self, file: str, tree: Mapping[str, Any]):
        """Read the section `tree`. Raise UserError, with `file` and key, for values that ML-Agents would reject."""
        self.file = file
        self.unsupported: dict[str, str] = {}
        self.measured_behaviors: dict[str, str] = {}
        self.reset_config = {str(name): self._read_parameter(str(name), value) for name, value in tree.items()}

    def _read_parameter(self, name: str, given: Any) -> Any:
        key = f"environment_parameters.{name}"
        if not isinstance(given, Mapping) or "curriculum" not in given:
            return self._read_value(key, given)
        self._check_keys(key, given, {"curriculum": None})
        lessons = given["curriculum"]
        if not isinstance(lessons, list) or not lessons:
            raise self._make_error(f"{key}.curriculum", lessons, "it must be a list of lessons")
        last = len(lessons) - 1
        converted = [self._read_lesson(f"{key}.curriculum[{k}]", lesson, k == last) for k, lesson in enumerate(lessons)]
        return {"curriculum": converted} if last else converted[0]["value"]

    def _read_lesson(self, key: str, given: Any, last: bool) -> dict[str, Any]:
        needed = ("name", "value") if last else tuple(LESSON)
        if not isinstance(given, Mapping) or any(given.get(part) is None for part in needed):
            raise self._make_error(key, given, f"a lesson{' that is the last' * last} has {', '.join(needed)}")
        self._check_keys(key, given, LESSON)
        value = self._read_value(f"{key}.value", given["value"])
        criteria = given.get("completion_criteria")
        if last:
            if criteria is not None:
                self.unsupported[f"{key}.completion_criteria"] = "the last lesson does not end, as in ML-Agents"
            return {"name": str(given["name"]), "value": value}
        end = self._read_criteria(f"{key}.completion_criteria", criteria)
        return {"name": str(given["name"]), "value": value, "completion_criteria": end}

    def _read_criteria(self, key: str, given: Any) -> dict[str, Any]:
        """Return the criteria that end a lesson."""
        criteria = self._read_section(key, given, CRITERIA, strict=False)
        if criteria["behavior"] is None:
            raise self._make_error(key, given, "it must name the behavior whose episodes end the lesson")
        by_progress = criteria["measure"] == "progress"
        if by_progress and not 0 <= criteria["threshold"] <= 1:
            raise self._make_error(f"{key}.threshold", criteria["threshold"], "progress is from 0 to 1")
        if criteria["signal_smoothing"] and not by_progress:
            self.unsupported[f"{key}.signal_smoothing"] = NO_SMOOTHING
        if criteria["require_reset"]:
            self.unsupported[f"{key}.require_reset"] = NO_RESET
        self.measured_behaviors[f"{key}.behavior"] = criteria["behavior"]
        return {
            "measure": criteria["measure"],
            "behavior": criteria["behavior"],
            "min_lesson_length": max(1, criteria["min_lesson_length"]),
            "threshold": criteria["threshold"],
        }

    def _read_value(self, key: str, given: Any) -> Any:
        """Return a number, or a sampler with all its parameters."""
        if isinstance(given, (int, float)) and not isinstance(given, bool):
            return given
        parts = {"sampler_type": None, "sampler_parameters": None}
        if not isinstance(given, Mapping) or not set(parts) <= set(given):
            raise self._make_error(
                key, given, "it must be a number, sampler_type and sampler_parameters, or a curriculum"
            )
        self._check_keys(key, given, parts, strict=False)
        kind = self._convert(f"{key}.sampler_type", make_choice(*SAMPLERS), given["sampler_type"])
        parameters = self._read_section(f"{key}.sampler_parameters", given["sampler_parameters"] or {}, SAMPLERS[kind])
        if kind == "constant":
            return parameters["value"]
        if kind == "uniform":
            self._convert(f"{key}.sampler_parameters", lambda both: _range(*both.values()), parameters)
        return {"sampler_type": kind, "sampler_parameters": parameters}

    def _read_section(
        self, key: str, given: Any, converters: Mapping[str, tuple[Converter, Any]], strict: bool = True
    ) -> dict[str, Any]:
        """Return the value of each key, or its default."""
        if not isinstance(given, Mapping):
            raise self._make_error(key, given, f"it must be a mapping with {', '.join(converters)}")
        self._check_keys(key, given, converters, strict)
        return {
            name: default if given.get(name) is None else self._convert(f"{key}.{name}", converter, given[name])
            for name, (converter, default) in converters.items()
        }

    def _convert(self, key: str, converter: Converter, value: Any) -> Any:
        try:
            return converter(value)
        except (ValueError, OverflowError) as error:
            raise self._make_error(key, value, error) from error

    def _check_keys(self, key: str, given: Mapping[str, Any], known: Mapping[str, Any], strict: bool = True) -> None:
        """Raise UserError for an unknown key if ML-Agents is strict there; elsewhere ML-Agents ignores such a key."""
        for name in given:
            if name == "seed" and known in SAMPLERS.values():
                self.unsupported[f"{key}.seed"] = "Unity samples with the seed of the run"
            elif name not in known and strict:
                raise UserError(f"{self.file}: {key}.{name}: ML-Agents has no such key{suggest_key(str(name), known)}")
            elif name not in known:
                self.unsupported[f"{key}.{name}"] = (
                    f"ML-Agents has no such key and ignores it{suggest_key(str(name), known)}"
                )

    def _make_error(self, key: str, value: Any, why: object) -> UserError:
        return UserError(f"{self.file}: {key} is {value!r}; {why}")
