"""The outcome of a run in words and in a few numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithm.runs.results import describe_state
from algorithm.specs import DEFAULT_ROLE
from algorithm.tools.reports.page import format_count, format_duration
from algorithm.tools.reports.run_data import RunData
from algorithm.training.metrics import EVALUATION_COLUMN, format_number

GOOD, BAD, WAITING = "good", "bad", "waiting"  # classes of the style
SIGNAL_STATUSES = (129, 130, 143)  # exit statuses of runs that a signal ended, after they were saved


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a run: its kind, a few words, and a sentence."""

    kind: str
    label: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A number of a run: its name, its value as text, and a note below it."""

    name: str
    value: str
    note: str = ""


def describe_outcome(run: RunData) -> Outcome:
    """Return the outcome of a run."""
    record, steps = run.record, f"{run.record['env_steps']:,} env steps"
    goal = "the goal" if run.goal is None else f"the goal of {run.goal:,.6g}"
    if run.in_training:
        return Outcome(kind=WAITING, label="In training", sentence=f"A process trains this run; {steps} so far.")
    if record["status"] is None:
        sentence = f"The run has no result, since its process did not end normally. Its metrics end at {steps}."
        return Outcome(kind=WAITING, label="Unfinished", sentence=sentence)
    label = describe_state(record)
    label = label[:1].upper() + label[1:]
    if record["status"] in SIGNAL_STATUSES:
        return Outcome(kind=WAITING, label=label, sentence=f"A signal ended the run after {steps}.")
    if record["status"] != 0:
        failure = f": {record['failure']}" if record.get("failure") else "."
        sentence = f"The run ended with exit status {record['status']} after {steps}{failure}"
        return Outcome(kind=BAD, label=label, sentence=sentence)
    if record["reached"]:
        confirmed = record.get("confirmed_by") or "evaluation"
        sentence = f"The mean return reached {goal} after {steps}; {confirmed} episodes confirm it."
        sentence += "".join(_list_doubts(run))
        return Outcome(kind=GOOD, label=label, sentence=sentence)
    if record["reached"] is False:
        sentence = f"The mean return did not reach {goal} within {steps}." + "".join(_list_doubts(run))
        return Outcome(kind=BAD, label=label, sentence=sentence)
    return Outcome(kind=GOOD, label=label, sentence=f"The run trained for {steps}, without a goal.")


def _list_doubts(run: RunData) -> Iterator[str]:
    """Yield a sentence for each role whose evaluation has too few episodes to decide whether it is at the goal."""
    evaluation: Mapping[str, Mapping[str, Any]] = run.record.get("evaluation") or {}
    for role, one in evaluation.items():
        low, high = one["low"], one["high"]
        if run.goal is None or (low is not None and low >= run.goal) or (high is not None and high < run.goal):
            continue
        known = "unknown" if low is None or high is None else f"{format_number(low)} to {format_number(high)}"
        yield (
            f" The 95% interval of the {_name('evaluation', role)}, {known}, does not decide whether the weights reach "
            f"the goal; more than {one['episodes']} evaluation episodes (goal.evaluation_episodes) make it narrower."
        )


def list_facts(run: RunData) -> list[Fact]:
    """Return the most important numbers of a run."""
    record = run.record
    return [
        *_list_returns(run),
        Fact(name="env steps", value=format_count(record["env_steps"]), note=_count_limit(run)),
        Fact(name="episodes", value=format_count(record["episodes"])),
        Fact(name="updates", value=format_count(record["updates"])),
        Fact(name="time of training", value=format_duration(record["seconds"]), note=_describe_speed(run)),
    ]


def _list_returns(run: RunData) -> Iterator[Fact]:
    """Yield the return in evaluation and in training, of each role."""
    evaluation = run.record.get("evaluation") or {}
    for role, one in evaluation.items():
        interval = f"95% interval {format_number(one['low'])} to {format_number(one['high'])}, "
        interval = interval if one["low"] is not None and one["high"] is not None else ""
        note = f"{interval}{one['episodes']} episode{'s' * (one['episodes'] != 1)}"
        yield Fact(name=_name("evaluation return", role), value=format_number(one["mean"]), note=note)
    if not evaluation:
        for role, column in run.metrics.list_metrics().get(EVALUATION_COLUMN, {}).items():
            env_steps, values = run.metrics.get_rows(column)
            last = np.flatnonzero(np.isfinite(values))
            if len(last):
                note = f"after {env_steps[last[-1]]:,.0f} env steps"
                yield Fact(name=_name("evaluation return", role), value=format_number(values[last[-1]]), note=note)
    for role, value in run.record["returns"].items():
        yield Fact(name=_name("training return", role), value=format_number(value), note="mean of the last episodes")


def _name(text: str, role: str) -> str:
    return text if role in ("", DEFAULT_ROLE) else f"{text}, {role}"


def _count_limit(run: RunData) -> str:
    limit = run.get_setting("base_config.max_step")
    return "" if limit is None else f"at most {limit:,}"


def _describe_speed(run: RunData) -> str:
    seconds, env_steps = run.record["seconds"], run.record["env_steps"]
    return f"{env_steps / seconds:,.0f} env steps per second" if seconds else ""
