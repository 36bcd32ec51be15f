"""The environment parameters of `reset_config`: numbers, distributions and curricula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import ValidationError

from algorithm.adapters.curriculum import Gaussian, Lesson, Measure, MultiRange, Uniform, Value
from algorithm.annotations import Range
from algorithm.config.sections import Section, describe_failure, make_model
from algorithm.errors import UserError

Parameter: TypeAlias = Value | tuple[Lesson, ...]
SAMPLERS: Mapping[str, type] = {"uniform": Uniform, "gaussian": Gaussian, "multirangeuniform": MultiRange}


class _Criteria(Section):
    measure: Measure
    behavior: str
    min_lesson_length: Annotated[int, Range(at_least=1)]
    threshold: float


def read_parameters(section: Mapping[str, Any], max_step: int | None) -> dict[str, Parameter]:
    """Return the environment parameters of `reset_config`.

    Args:
        section: Values of the section.
        max_step: Env steps of the run, for lessons by progress; None if there is no limit.

    Raises:
        UserError: A parameter is not valid; the message names it.
    """
    parameters = {name: _read_parameter(f"reset_config.{name}", given) for name, given in section.items()}
    for name, parameter in parameters.items():
        if max_step is None and isinstance(parameter, tuple) and any(one.measure == "progress" for one in parameter):
            raise UserError(
                f"reset_config.{name}: lessons by progress use env steps / base_config.max_step, which is not set"
            )
    return parameters


def _read_parameter(path: str, given: Any) -> Parameter:
    if isinstance(given, Mapping) and set(given) == {"curriculum"}:
        lessons = given["curriculum"]
        if not isinstance(lessons, Sequence) or not lessons:
            raise UserError(f"{path}.curriculum is {lessons!r}; it must be a list of lessons")
        last = len(lessons) - 1
        return tuple(_read_lesson(f"{path}.curriculum[{k}]", lesson, k == last) for k, lesson in enumerate(lessons))
    return _read_value(path, given)


def _read_lesson(path: str, given: Any, last: bool) -> Lesson:
    needed = {"name", "value"} if last else {"name", "value", "completion_criteria"}
    if not isinstance(given, Mapping) or set(given) != needed:
        raise UserError(f"{path} is {given!r}; a lesson has {', '.join(sorted(needed))}{' when it is the last' * last}")
    value = _read_value(f"{path}.value", given["value"])
    if last:
        return Lesson(str(given["name"]), value)
    criteria = _validate(f"{path}.completion_criteria", _Criteria, given["completion_criteria"])
    if criteria.measure == "progress" and not 0 <= criteria.threshold <= 1:
        raise UserError(f"{path}.completion_criteria.threshold is {criteria.threshold}; progress is from 0 to 1")
    length = criteria.min_lesson_length
    return Lesson(str(given["name"]), value, criteria.behavior, length, criteria.threshold, criteria.measure)


def _read_value(path: str, given: Any) -> Value:
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return float(given)
    if not isinstance(given, Mapping) or set(given) != {"sampler_type", "sampler_parameters"}:
        raise UserError(
            f"{path} is {given!r}; it must be a number, or sampler_type and sampler_parameters, or a curriculum"
        )
    kind = str(given["sampler_type"]).casefold()
    if kind not in SAMPLERS:
        raise UserError(f"{path}.sampler_type is {given['sampler_type']!r}; the samplers are {', '.join(SAMPLERS)}")
    model = make_model(SAMPLERS[kind])
    sampler: Value = SAMPLERS[kind](**dict(_validate(f"{path}.sampler_parameters", model, given["sampler_parameters"])))
    return sampler


def _validate(path: str, model: type[Section], given: Any) -> Any:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([path, *map(str, first["loc"])])
        raise UserError(f"{place} is {first['input']!r}; {describe_failure(first['msg'])}") from error
