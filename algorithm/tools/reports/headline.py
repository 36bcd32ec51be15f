"""The headline of a run: its outcome in words and in a few numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithm.program import DEFAULT_ROLE
from algorithm.runs.results import describe_state
from algorithm.tools.reports.page import format_count, format_duration
from algorithm.tools.reports.run_data import RunData
from algorithm.training.metrics import EVALUATION_COLUMN, format_number

GOOD, BAD, WAITING = "good", "bad", "waiting"  # classes of the style
SIGNAL_STATUSES = (129, 130, 143)  # exit statuses of runs that a signal ended, after they were saved


@dataclass(frozen=True)
class Headline:
    """The outcome of a run: its kind (a class of the style), a few words, and a sentence."""

    kind: str
    label: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A number of a run: its name, its value as text, and a note below it."""

    name: str
    value: str
    note: str = ""


def make_headline(run: RunData) -> Headline:
    """Return the headline of a run."""
    record, status, steps = run.record, run.record["status"], f"{run.record['env_steps']:,} env steps"
    goal = "the goal" if run.goal is None else f"the goal of {run.goal:,.6g}"
    label = describe_state(record)
    label = label[:1].upper() + label[1:]
    if run.in_training:
        return Headline(WAITING, "In training", f"A process trains this run; {steps} so far.")
    if status is None:
        sentence = f"The run has no result, since its process did not end normally. Its metrics end at {steps}."
        return Headline(WAITING, label, sentence)
    if status in SIGNAL_STATUSES:
        return Headline(WAITING, label, f"A signal ended the run after {steps}.")
    if status != 0:
        failure = f": {record['failure']}" if record.get("failure") else "."
        return Headline(BAD, label, f"The run ended with exit status {status} after {steps}{failure}")
    if record["reached"] is None:
        return Headline(GOOD, label, f"The run trained for {steps}, without a goal.")
    doubts = "".join(_list_doubts(run))
    if record["reached"]:
        confirmed = f"{record.get('confirmed_by') or 'evaluation'} episodes confirm it"
        return Headline(GOOD, label, f"The mean return reached {goal} after {steps}; {confirmed}.{doubts}")
    return Headline(BAD, label, f"The mean return did not reach {goal} within {steps}.{doubts}")


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
    record, limit = run.record, run.get_setting("base_config.max_step")
    speed = f"{record['env_steps'] / record['seconds']:,.0f} env steps per second" if record["seconds"] else ""
    at_most = "" if limit is None else f"at most {limit:,}"
    return [
        *_list_evaluations(run),
        *(
            Fact(name=_name("training return", role), value=format_number(value), note="mean of the last episodes")
            for role, value in record["returns"].items()
        ),
        Fact(name="env steps", value=format_count(record["env_steps"]), note=at_most),
        Fact(name="episodes", value=format_count(record["episodes"])),
        Fact(name="updates", value=format_count(record["updates"])),
        Fact(name="time of training", value=format_duration(record["seconds"]), note=speed),
    ]


def _list_evaluations(run: RunData) -> Iterator[Fact]:
    """Yield the return of each role in the evaluation of the result, otherwise in the last one of the metrics."""
    evaluation = run.record.get("evaluation") or {}
    for role, one in evaluation.items():
        interval = f"95% interval {format_number(one['low'])} to {format_number(one['high'])}, "
        interval = interval if one["low"] is not None and one["high"] is not None else ""
        note = f"{interval}{one['episodes']} episode{'s' * (one['episodes'] != 1)}"
        yield Fact(name=_name("evaluation return", role), value=format_number(one["mean"]), note=note)
    for role, column in run.metrics.list_metrics().get(EVALUATION_COLUMN, {}).items() if not evaluation else ():
        env_steps, values = run.metrics.get_rows(column)
        if len(known := np.flatnonzero(np.isfinite(values))):
            note = f"after {env_steps[known[-1]]:,.0f} env steps"
            yield Fact(name=_name("evaluation return", role), value=format_number(values[known[-1]]), note=note)


def _name(text: str, role: str) -> str:
    return text if role in ("", DEFAULT_ROLE) else f"{text}, {role}"
