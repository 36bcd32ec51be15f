"""The model card of a run: a page in Markdown, for people and for sites that share models."""

from __future__ import annotations

import re
from typing import Any

from algorithm.config.yaml_layers import format_yaml
from algorithm.errors import clean_text
from algorithm.tools.reports.curve import CURVE_FILE
from algorithm.tools.reports.outcome import describe_outcome, list_facts
from algorithm.tools.reports.page import mark_safe, render
from algorithm.tools.reports.run_data import RunData
from algorithm.tools.reports.run_tables import list_commands, list_machine, list_spaces, list_versions, make_differences

MARK = "<!-- Written by Samara. Without this line, Samara keeps the file. -->"


def make_model_card(run: RunData) -> str:
    """Return the model card of a run as Markdown, with the metadata that model hubs read."""
    gifs = [path.as_posix() for path in run.videos if path.suffix == ".gif"]
    curves = [CURVE_FILE] if (run.folder / CURVE_FILE).is_file() else []
    return render(
        "model_card.md",
        mark=mark_safe(MARK),
        metadata=mark_safe(format_yaml(make_metadata(run))),
        run=run,
        outcome=describe_outcome(run),
        facts=list_facts(run),
        spaces=list_spaces(run.roles),
        differences=make_differences(run.differences),
        origin=[*list_versions(run), *list_machine(run)],
        commands=list_commands(run),
        pictures=[*curves, *gifs[:1]],
    )


def make_metadata(run: RunData) -> dict[str, Any]:
    """Return the metadata of a model card, in the form of the Hugging Face Hub; other sites show it as Markdown."""
    algorithm, environment = map(
        _clean_name, (run.algorithm, str(run.get_setting("base_config.env_name") or run.environment))
    )
    results = [
        {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": environment, "type": environment},
            "metrics": [
                {"type": "mean_reward", "name": "mean_reward", "value": f"{one['mean']:.2f} +/- {one['std']:.2f}"}
            ],
        }
        for one in (run.record.get("evaluation") or {}).values()
    ]
    return {
        "library_name": "samara",
        "tags": ["reinforcement-learning", algorithm, environment],
        **({"model-index": [{"name": algorithm, "results": results}]} if results else {}),
    }


def _clean_name(text: str) -> str:
    """Return a name without characters that begin HTML, a link or code, which YAML does not escape."""
    return " ".join(re.sub(r"[<\[`]", "", clean_text(text)).split())
