"""Demonstrations: episodes of a player as rows without the policy that acted, and the files of recordings."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from algorithm.atomic_io import replace_bytes
from algorithm.errors import UserError
from algorithm.specs import Role

FORMAT = "samara demonstrations 1"
HEADER = "header"  # the array of a file with its format, and the specs of each role, as JSON
ROW_FIELDS = ("action", "reward", "alive", "first", "is_bootstrap_row")
SUFFIX = ".npz"


@dataclass(frozen=True, kw_only=True)
class Episode:
    """An episode of T steps."""

    observations: Mapping[str, np.ndarray]  # {name: [T, ...]}; [T+1, ...] if the observation after the last is known
    actions: np.ndarray  # [T, size], continuous dimensions in [-1, 1], then one index for each branch
    rewards: np.ndarray  # [T]
    terminated: bool  # False: truncated, or cut


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """The episodes of one role as N rows, one episode after the other.

    `reward[n]` and `alive[n]` are the consequence of the action of row n. A bootstrap row is the observation
    after the last step of an episode, whose action has no meaning.
    """

    role: Role  # of one lane
    obs: Mapping[str, np.ndarray]  # {name: [N, ...]}, as agents observe them
    action: np.ndarray  # [N, size] float32, as adapters execute it
    reward: np.ndarray  # [N] float32
    alive: np.ndarray  # [N] bool
    first: np.ndarray  # [N] bool: the first row of an episode
    is_bootstrap_row: np.ndarray  # [N] bool

    def __len__(self) -> int:
        return len(self.action)

    @cached_property
    def episodes(self) -> list[Episode]:
        """The episodes in their order."""
        starts = [*np.flatnonzero(self.first), len(self)]
        return [self._cut(start, end) for start, end in zip(starts[:-1], starts[1:], strict=True)]

    def _cut(self, start: int, end: int) -> Episode:
        steps = slice(start, end - int(self.is_bootstrap_row[end - 1]))
        return Episode(
            observations={name: values[start:end] for name, values in self.obs.items()},
            actions=self.action[steps],
            rewards=self.reward[steps],
            terminated=not self.alive[steps][-1:].all(),
        )

    @classmethod
    def join(cls, parts: list[Demonstrations]) -> Demonstrations:
        """Return the episodes of several demonstrations of the same role."""
        rows: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ROW_FIELDS}
        obs = {name: np.concatenate([part.obs[name] for part in parts]) for name in parts[0].obs}
        return cls(role=parts[0].role, obs=obs, **rows)


def check_new_recording(path: Path, option: str = "") -> None:
    """Raise UserError, with `option` before the path, if a recording cannot be written to a new file of this name."""
    if path.suffix != SUFFIX or path.exists() or not path.parent.is_dir():
        problem = "exists already" if path.exists() else "is not a new file"
        raise UserError(f"{option}{path}: it {problem}; give the name of a new file that ends with {SUFFIX}")


def write_recording(path: Path, by_role: Mapping[str, Demonstrations]) -> None:
    """Write demonstrations to a file, completely or not at all."""
    roles = {name: asdict(each.role) for name, each in by_role.items()}
    arrays = {HEADER: np.array(json.dumps({"format": FORMAT, "roles": roles}))}
    for number, each in enumerate(by_role.values()):
        arrays |= {f"{number}/{name}": getattr(each, name) for name in ROW_FIELDS}
        arrays |= {f"{number}/obs/{name}": values for name, values in each.obs.items()}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    replace_bytes(path, content.getvalue())


def read_recording(path: Path) -> dict[str, Demonstrations]:
    """Return the demonstrations in a file, by role.

    Raises:
        UserError: The file is missing, cut, damaged or no recording.
    """
    from pydantic import TypeAdapter  # whose import takes a moment

    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file[HEADER]))
            if header["format"] != FORMAT:
                raise UserError(f"{path} is a recording of another version of this program ({header['format']})")
            roles = TypeAdapter(dict[str, Role]).validate_python(header["roles"])
            return {name: _read_role(role, number, file) for number, (name, role) in enumerate(roles.items())}
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise UserError(f"{path} is not a recording, or is damaged ({' '.join(str(error).split())})") from error


def _read_role(role: Role, number: int, file: Mapping[str, np.ndarray]) -> Demonstrations:
    """Return the rows of a role. Raises ValueError for arrays that do not fit together, KeyError for a missing one."""
    rows: dict[str, Any] = {name: file[f"{number}/{name}"] for name in ROW_FIELDS}
    obs = {name: file[f"{number}/obs/{name}"] for name in role.obs_specs}
    shapes = {"action": (role.action_spec.size,), **dict.fromkeys(ROW_FIELDS[1:], ())}
    expected = {**shapes, **{name: spec.shape for name, spec in role.obs_specs.items()}}
    count = len(rows["action"])
    for name, values in {**rows, **obs}.items():
        if values.shape != (count, *expected[name]):
            raise ValueError(f"{name} has the shape {list(values.shape)}, not {[count, *expected[name]]}")
    if not count or not rows["first"][0]:
        raise ValueError("it has no episode")
    return Demonstrations(role=replace(role, lanes=1, teams=()), obs=obs, **rows)
