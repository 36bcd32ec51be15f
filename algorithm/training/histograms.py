"""The arrays of which trackers show histograms, by name: actions and weights."""

from __future__ import annotations

import numpy as np

from algorithm.agents.agent import Agent


def collect_actions(agent: Agent, raw_action: np.ndarray, suffix: str) -> dict[str, np.ndarray]:
    """Return each dimension and branch of actions, `actions/<number><suffix>`.

    Args:
        agent: the agent.
        raw_action: raw actions [T, B, size]; the histograms are of the executed actions.
        suffix: the end of the names.
    """
    actions = agent.family.to_action(raw_action.reshape(-1, raw_action.shape[-1]))
    return _keep_finite({f"actions/{number}{suffix}": values for number, values in enumerate(actions.T)})


def collect_weights(agent: Agent, suffix: str) -> dict[str, np.ndarray]:
    """Return the parameters of each layer, `weights/<group>/<parameter><suffix>`."""
    return _keep_finite(
        {
            f"weights/{name}/{parameter}{suffix}": values.detach().cpu().numpy().ravel()
            for name, group in agent.groups.items()
            for parameter, values in group.module.named_parameters()
        }
    )


def _keep_finite(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays without values that are not finite, which have no place in a histogram, and no empty array."""
    finite = {name: array[np.isfinite(array)] for name, array in arrays.items()}
    return {name: array for name, array in finite.items() if len(array)}
