"""`environment_parameters` in the grammar of `reset_config`: numbers, samplers, and lessons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from algorithm.errors import UserError
from algorithm.mlagents.rules import Kind, flag, number, one_of, text, whole
from algorithm.mlagents.trainer_config import nearest

NO_SMOOTHING = "the mean is that of the last min_lesson_length episodes of the lesson, without what it was before"
NO_RESET = "a lesson begins with the next episode of each agent, the others go on"


def _intervals(value: Any) -> list[list[float]]:
    pairs = isinstance(value, list) and value and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    if not pairs:
        raise ValueError("it must be a list of lists of two numbers, [low, high]")
    return [_range(*map(number, pair)) for pair in value]


def _range(low: float, high: float) -> list[float]:
    if low > high:
        raise ValueError(f"{low} is above {high}")
    return [low, high]


# Parameters of each sampler: their kind, and ML-Agents' default.
SAMPLERS: Mapping[str, Mapping[str, tuple[Kind, Any]]] = {
    "constant": {"value": (number, 0.0)},
    "uniform": {"min_value": (number, 0.0), "max_value": (number, 1.0)},
    "gaussian": {"mean": (number, 1.0), "st_dev": (number, 1.0)},
    "multirangeuniform": {"intervals": (_intervals, [[0.0, 1.0]])},
}
# Of a lesson's end; what has no default must be given.
CRITERIA: Mapping[str, tuple[Kind, Any]] = {
    "measure": (one_of("reward", "progress"), "reward"),
    "behavior": (text, None),
    "min_lesson_length": (whole, 0),
    "threshold": (number, 0.0),
    "signal_smoothing": (flag, None),
    "require_reset": (flag, None),
}
LESSON: Mapping[str, Any] = {"name": None, "value": None, "completion_criteria": None}


class Parameters:
    """What becomes of them: `reset_config`, and by key what has no counterpart and why.

    Raises UserError, naming `file` and key, for what ML-Agents would not take either.
    """

    def __init__(self, file: str, tree: Mapping[str, Any]):
        self.file = file
        self.lost: dict[str, str] = {}
        self.measured: dict[str, str] = {}  # the behaviors that end lessons, by key
        self.reset_config = {str(name): self._parameter(str(name), given) for name, given in tree.items()}

    def _parameter(self, name: str, given: Any) -> Any:
        key = f"environment_parameters.{name}"
        if not isinstance(given, Mapping) or "curriculum" not in given:
            return self._value(key, given)
        self._known(key, given, {"curriculum": None})
        lessons = given["curriculum"]
        if not isinstance(lessons, list) or not lessons:
            raise self._wrong(f"{key}.curriculum", lessons, "it must be a list of lessons")
        last = len(lessons) - 1
        taught = [self._lesson(f"{key}.curriculum[{k}]", lesson, k == last) for k, lesson in enumerate(lessons)]
        return {"curriculum": taught} if last else taught[0]["value"]

    def _lesson(self, key: str, given: Any, last: bool) -> dict[str, Any]:
        needed = ("name", "value") if last else tuple(LESSON)
        if not isinstance(given, Mapping) or any(given.get(part) is None for part in needed):
            raise self._wrong(key, given, f"a lesson{' that is the last' * last} has {', '.join(needed)}")
        self._known(key, given, LESSON)
        value = self._value(f"{key}.value", given["value"])
        criteria = given.get("completion_criteria")
        if last:
            if criteria is not None:
                self.lost[f"{key}.completion_criteria"] = "the last lesson stays, as in ML-Agents"
            return {"name": str(given["name"]), "value": value}
        ends = self._criteria(f"{key}.completion_criteria", criteria)
        return {"name": str(given["name"]), "value": value, "completion_criteria": ends}

    def _criteria(self, key: str, given: Any) -> dict[str, Any]:
        """When a lesson ends."""
        found = self._read(key, given, CRITERIA, strict=False)
        if found["behavior"] is None:
            raise self._wrong(key, given, "it must name the behavior whose episodes end the lesson")
        by_progress = found["measure"] == "progress"
        if by_progress and not 0 <= found["threshold"] <= 1:
            raise self._wrong(f"{key}.threshold", found["threshold"], "progress is from 0 to 1")
        if found["signal_smoothing"] and not by_progress:
            self.lost[f"{key}.signal_smoothing"] = NO_SMOOTHING
        if found["require_reset"]:
            self.lost[f"{key}.require_reset"] = NO_RESET
        self.measured[f"{key}.behavior"] = found["behavior"]
        return {
            "measure": found["measure"],
            "behavior": found["behavior"],
            "min_lesson_length": max(1, found["min_lesson_length"]),
            "threshold": found["threshold"],
        }

    def _value(self, key: str, given: Any) -> Any:
        """A number, or a sampler with all its parameters."""
        if isinstance(given, (int, float)) and not isinstance(given, bool):
            return given
        parts = {"sampler_type": None, "sampler_parameters": None}
        if not isinstance(given, Mapping) or not set(parts) <= set(given):
            raise self._wrong(key, given, "it must be a number, sampler_type and sampler_parameters, or a curriculum")
        self._known(key, given, parts, strict=False)
        kind = self._checked(f"{key}.sampler_type", one_of(*SAMPLERS), given["sampler_type"])
        parameters = self._read(f"{key}.sampler_parameters", given["sampler_parameters"] or {}, SAMPLERS[kind])
        if kind == "constant":
            return parameters["value"]
        if kind == "uniform":
            self._checked(f"{key}.sampler_parameters", lambda both: _range(*both.values()), parameters)
        return {"sampler_type": kind, "sampler_parameters": parameters}

    def _read(self, key: str, given: Any, rows: Mapping[str, tuple[Kind, Any]], strict: bool = True) -> dict[str, Any]:
        """The value of each row, its default where there is none."""
        if not isinstance(given, Mapping):
            raise self._wrong(key, given, f"it must be a mapping with {', '.join(rows)}")
        self._known(key, given, rows, strict)
        return {
            name: default if given.get(name) is None else self._checked(f"{key}.{name}", kind, given[name])
            for name, (kind, default) in rows.items()
        }

    def _checked(self, key: str, kind: Kind, value: Any) -> Any:
        try:
            return kind(value)
        except (ValueError, OverflowError) as error:
            raise self._wrong(key, value, error) from error

    def _known(self, key: str, given: Mapping[str, Any], known: Mapping[str, Any], strict: bool = True) -> None:
        """Raise UserError for an unknown key if ML-Agents is strict there; elsewhere ML-Agents ignores such a key."""
        for name in given:
            if name == "seed" and known in SAMPLERS.values():
                self.lost[f"{key}.seed"] = "Unity draws with the seed of the run"
            elif name not in known and strict:
                raise UserError(f"{self.file}: {key}.{name}: ML-Agents has no such key{nearest(str(name), known)}")
            elif name not in known:
                self.lost[f"{key}.{name}"] = f"ML-Agents has no such key and ignores it{nearest(str(name), known)}"

    def _wrong(self, key: str, value: Any, why: object) -> UserError:
        return UserError(f"{self.file}: {key} is {value!r}; {why}")
