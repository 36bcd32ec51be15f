"""Going on with a run under other settings: what may change, and what does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from algorithm.config.effects import find_failure
from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.runs.run_folder import RunFolder

# What the saved state would not fit any more; those of every algorithm are found by their last name.
FIXED_SETTINGS: Mapping[str, str] = {
    "base_config.env_type": "the saved experience is of this simulator",
    "base_config.env_name": "the saved experience is of this environment",
    "base_config.algorithm": "the saved networks are this algorithm's",
    "base_config.n_envs": "the saved replay has a lane for each copy",
    "base_config.unbounded_action_limit": "the saved experience is in these units",
    "base_config.observe_previous": "the saved networks see these",
    "base_config.env_wrappers": "the saved experience is of the environment inside these wrappers",
    "base_config.ignore_observations": "the saved networks were trained with the other observations",
    "base_config.name": "the run has its name",
    "base_config.nn": "the saved networks are of this file",
    "nn_config": "the saved networks have this shape",
    "replay_config.capacity": "the saved replay has this size",
    "replay_config.sampler": "the saved priorities are this sampler's",
    "replay_config.alpha": "the saved priorities were raised to it",
    "agent": "the saved networks are those of these agents",
    "rollout_length": "the saved replay has columns of this length",
    "optimizer": "the saved moments are this optimizer's",
    "critic": "the saved network has this critic's outputs",
    "std": "the saved network has this kind of deviation",
    "tanh_squash": "the saved experience was brought into bounds this way",
}


def list_changes(folder: RunFolder, settings: Settings) -> list[str]:
    """One line for each of `settings` that is not what the run last went by.

    So what was edited in the run's config.yaml is among the lines. Raises UserError for what cannot change.
    """
    lines, last = [], folder.read_last_settings()
    for path, old, new in find_changes(last, settings.tree) if last else ():
        line = f"{path}: {_format_value(old)} -> {_format_value(new)}"
        if reason := _find_reason(path):
            raise UserError(f"{line} is not possible with --resume: {reason}; train a new run instead")
        # A setting that another version did not have changes without anyone writing it.
        if old is not None and (failure := find_failure(settings, path)):
            raise UserError(f"{line} {failure}")
        lines.append(line)
    return lines


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path, old and new value of every setting that differs; null is what is not there, words match without case."""
    for key in {**old, **new}:
        path, before, after = f"{prefix}{key}", old.get(key), new.get(key)
        if all(value is None or isinstance(value, Mapping) for value in (before, after)):
            yield from find_changes(before or {}, after or {}, f"{path}.")
        elif _normalize(before) != _normalize(after):
            yield path, before, after


def _find_reason(path: str) -> str | None:
    if path.startswith("ma_config."):
        path = path.split(".", 2)[-1]
    section = path.partition(".")[0]
    return FIXED_SETTINGS.get(path) or FIXED_SETTINGS.get(section) or FIXED_SETTINGS.get(path.rpartition(".")[2])


def _normalize(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
