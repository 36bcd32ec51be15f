"""Files of Unity's demonstration recorder (.demo), without Unity.

A file has messages of ML-Agents, each after its length (a varint): a DemonstrationMetaProto, from byte 33 on a
BrainParametersProto, then one AgentInfoActionPairProto for each step. What follows them is not part of it. An action
belongs to the observation of the message before it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentCrashed
from algorithm.adapters.unity import compat
from algorithm.adapters.unity.decoding import Decoder
from algorithm.adapters.unity.names import get_role_name
from algorithm.demonstrations import Demonstrations
from algorithm.errors import UserError

FIRST_BYTE = 33  # of the BrainParametersProto; the metadata is followed by space for larger numbers


def read_file(path: Path) -> dict[str, Demonstrations]:
    """Return the demonstrations in a file, by the role of its behavior.

    An episode that does not end in the file is left out.

    Raises:
        UserError: The file is missing, cut or damaged, has no complete episode, or ML-Agents' client is missing.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    api = compat.load_api()
    from google.protobuf.message import DecodeError

    try:
        meta, _ = _read_message(data, 0, api.DemonstrationMetaProto)
        behavior, place = _read_message(data, FIRST_BYTE, api.BrainParametersProto)
        pairs = []
        for _ in range(meta.number_steps):
            pair, place = _read_message(data, place, api.AgentInfoActionPairProto)
            pairs.append(pair)
    except (DecodeError, ValueError) as error:
        raise UserError(f"{path} is cut or damaged, or no file of Unity's demonstration recorder ({error})") from error
    if not pairs:
        raise UserError(f"{path} has no steps")
    try:
        return {get_role_name(behavior.brain_name): _read_episodes(path, behavior, pairs)}
    except EnvironmentCrashed as error:
        raise UserError(f"{path}: Unity {error}") from error


def _read_episodes(path: Path, behavior: Any, pairs: list[Any]) -> Demonstrations:
    """Return the complete episodes. Raises UserError without any, EnvironmentCrashed for a damaged observation."""
    agents = [pair.agent_info for pair in pairs]
    decoder = Decoder(behavior, agents[0])
    batch = decoder.read_batch(agents)
    actions = [[*pair.action_info.continuous_actions, *pair.action_info.discrete_actions] for pair in pairs]
    if {len(action) for action in actions} != {decoder.role.action_spec.size}:
        raise UserError(f"{path} has actions that differ from those of its behavior {behavior.brain_name}")
    action = np.array(actions)
    done = np.array([agent.done for agent in agents])
    n_rows = int(np.flatnonzero(done)[-1]) + 1 if done.any() else 0
    is_last = done[:n_rows]  # the observation after the last action of an episode
    kept = ~is_last | batch.interrupted[:n_rows]
    if is_last.all():  # also without any row
        raise UserError(f"{path} has no complete episode")
    # The action, the reward and the end of the next message are the consequence of a row; a bootstrap row has none.
    after = np.minimum(np.arange(1, n_rows + 1), n_rows - 1)
    return Demonstrations(
        role=decoder.role,
        obs={name: values[:n_rows][kept] for name, values in batch.obs.items()},
        action=action[after].astype(np.float32)[kept],
        reward=np.where(is_last, 0, batch.reward[after]).astype(np.float32)[kept],
        alive=(is_last | ~is_last[after] | batch.interrupted[after])[kept],
        first=np.append(True, is_last[:-1])[kept],
        is_bootstrap_row=is_last[kept],
    )


def _read_message(data: bytes, place: int, kind: Any) -> tuple[Any, int]:
    """Return the message at a place in a file, and the place after it. Raises ValueError for an incomplete one."""
    length = shift = 0
    while True:
        if place >= len(data):
            raise ValueError("it ends within a message")
        byte, place = data[place], place + 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if place + length > len(data):
        raise ValueError("it ends within a message")
    return kind.FromString(data[place : place + length]), place + length
