"""The progress of a run as short texts, for lines and for the panel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from math import isnan

from rich.text import Text

from algorithm.cli.bars import COLORS, SIGNS, round_to_total
from algorithm.program import role_suffix
from algorithm.training.metrics import format_number
from algorithm.training.progress import Progress, RoleProgress

Texts = list[Text]
GAP = 2  # spaces between texts


def format_line(progress: Progress) -> str:
    """Return the state of a run in one line."""
    texts = format_steps(progress)
    for role, role_progress in progress.roles.items():
        texts += [Text(f"return{role_suffix(role)} ") + format_return(role_progress), *format_length(role_progress)]
        texts += [*format_metrics(role_progress.policy_metrics), *format_losses(role_progress)]
    return "  ".join(
        text.plain for text in [*texts, *format_speed(progress), *format_shares(progress), *format_time_left(progress)]
    )


def wrap_texts(texts: Iterable[Text], width: int) -> Text:
    """Return texts in lines of at most `width`; a text that fits into one line is not broken."""
    wrapped, used = Text(overflow="fold"), 0
    for text in texts:
        if used and used + GAP + text.cell_len > width:
            wrapped.append("\n")
            used = 0
        elif used:
            wrapped.append(" " * GAP)
            used += GAP
        wrapped.append_text(text)
        used += text.cell_len
    return wrapped


def format_steps(progress: Progress) -> Texts:
    """Return the env steps, and those of the whole run."""
    of = f" of {progress.max_step:,}" if progress.max_step else ""
    return [Text(f"{progress.counters.env_steps:,}{of} steps")]


def format_return(role_progress: RoleProgress, goal: float | None = None) -> Text:
    """Return the mean return and the best one, in another color once the goal is reached."""
    reached = goal is not None and role_progress.mean >= goal
    best = "" if role_progress.best is None else f" (best {format_number(role_progress.best)})"
    return Text.assemble((format_number(role_progress.mean), "bold green" if reached else "cyan"), best)


def format_goal(goal: float, fraction: float) -> Texts:
    """Return the goal, and the percentage of the way to it."""
    return [Text(f"goal {goal:,.10g}"), Text(f"{100 * min(1.0, max(0.0, fraction)):.0f}%")]


def format_evaluations(progress: Progress) -> Texts:
    """Return the mean returns of the last and the best evaluation, with their env steps; empty before the first one."""
    last, best = progress.evaluation, progress.best_evaluation
    if last is None or best is None:
        return []
    texts = [Text.assemble((format_number(last.mean), "cyan"), f" at {last.env_steps:,} steps")]
    texts.append(Text("the best" if best == last else f"best {format_number(best.mean)} at {best.env_steps:,} steps"))
    return [*texts, Text("mean over roles")] if len(progress.roles) > 1 else texts


def format_length(role_progress: RoleProgress) -> Texts:
    """Return the mean length of episodes, if it is known."""
    return [] if isnan(role_progress.length) else [Text(f"length {format_number(role_progress.length)}")]


def format_metrics(metrics: Mapping[str, float]) -> Texts:
    """Return names and values."""
    return [Text(f"{name} {format_number(value)}") for name, value in metrics.items()]


def format_losses(role_progress: RoleProgress) -> Texts:
    """Return the losses."""
    return format_metrics({f"{name} loss": value for name, value in role_progress.losses.items()})


def format_speed(progress: Progress) -> Texts:
    """Return env steps and updates per second, and the number of episodes."""
    throughput = progress.throughput
    rates = {"steps": throughput.env_steps, "updates": throughput.updates}
    return [
        *(Text(f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s") for unit, rate in rates.items()),
        Text(format_count(progress.counters.episodes, "episode")),
    ]


def format_lanes(progress: Progress) -> Texts:
    """Return the number of agents that act, over all roles."""
    lanes = sum(role_progress.lanes for role_progress in progress.roles.values())
    return [Text(format_count(lanes, "agent"))] if lanes else []


def format_machine(progress: Progress, memory: int | None) -> Texts:
    """Return the device of learning, the memory of the process in bytes, and the number of faults."""
    faults = Text(format_count(progress.faults, "fault"), "bold red") if progress.faults else Text("no faults")
    device = [Text(f"device {progress.device}")] if progress.device else []
    used = [] if memory is None else [Text(f"memory {format_bytes(memory)}")]
    return [*device, *used, faults]


def format_shares(progress: Progress, with_signs: bool = False) -> Texts:
    """Return the percentage of the time of each part, perhaps after its sign in the bar; the sum is 100%."""
    percent = round_to_total(progress.throughput.shares, 100)
    return [
        Text(f"{f'{SIGNS[part]}: ' if with_signs else ''}{part} {percent[part]}%", COLORS[part])
        for part in COLORS
        if percent.get(part)
    ]


def format_time(progress: Progress) -> Texts:
    """Return the time that the run has taken."""
    return [Text(f"{format_duration(progress.counters.seconds)} {'in all' if progress.has_ended else 'so far'}")]


def format_time_left(progress: Progress) -> Texts:
    """Return the time that is left, if it is known."""
    return [] if progress.seconds_left is None else [Text(f"{format_duration(progress.seconds_left)} left")]


def format_duration(seconds: float) -> str:
    """Return a time as hours:minutes:seconds."""
    return str(timedelta(seconds=round(seconds)))


def format_bytes(count: int) -> str:
    """Return a number of bytes in MB or GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def format_count(count: int, unit: str) -> str:
    """Return a number with its unit, in the plural for all numbers but 1."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"
