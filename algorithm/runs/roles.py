"""The file roles.json of a run: the observations and actions of each role, in the network and the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from algorithm.atomic_io import replace_text
from algorithm.errors import UserError
from algorithm.specs import ActionPart, ActionSpec, ObsSpec, Role


def write_roles(path: Path, roles: Mapping[str, Role]) -> None:
    """Write the roles of a run as JSON."""
    replace_text(path, json.dumps({name: asdict(role) for name, role in roles.items()}, indent=1))


def read_roles(path: Path) -> Mapping[str, Role]:
    """Return the roles in a file; empty if it does not exist. Raises UserError if it cannot be read."""
    if not path.exists():
        return {}
    try:
        return {name: _read_role(fields) for name, fields in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged, or was written by another version of this program: --resume writes it again"
        ) from error


def check_specs(run: Path, before: Role, now: Role) -> None:
    """Raise UserError if the observations or actions of a role differ from before; its number of lanes may differ.

    Args:
        run: Folder of the run, for the message.
        before: Role for which the run was created.
        now: Role in the environment.
    """
    if (before.obs_specs, before.action_spec) != (now.obs_specs, now.action_spec):
        raise UserError(
            f"{run} was created for {_describe_specs(before)}; the environment has {_describe_specs(now)}: "
            "train a new run"
        )


def _describe_specs(role: Role) -> str:
    observed = ", ".join(
        f"{name} {list(spec.shape)}{f' of {list(spec.env_shape)}' if spec.env_shape is not None else ''} {spec.dtype}"
        for name, spec in role.obs_specs.items()
    )
    return f"observations {observed}, actions {role.action_spec}"


def _read_role(fields: Mapping[str, Any]) -> Role:
    obs_specs = {name: ObsSpec(**_lists_to_tuples(spec)) for name, spec in fields["obs_specs"].items()}
    action_fields = _lists_to_tuples(fields["action_spec"])
    parts = tuple(ActionPart(**_lists_to_tuples(part)) for part in action_fields["parts"])
    action = ActionSpec(**{**action_fields, "parts": parts})
    return Role(fields["lanes"], obs_specs, action, teams=tuple(fields.get("teams", ())))


def _lists_to_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with the lists of JSON converted to tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
