"""Agents whose updates are captured, and batches for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from algorithm.agents.sac.agent import Sac
from algorithm.networks import Blueprint, Mlp, NoisyMlp, Residual, Vector
from algorithm.rollout import Rollout
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from algorithm.training.graph_backend import WARM_UPS
from tests.builders import make_sac, random_rollout_of

LANES = 5
UPDATES = 4 * (WARM_UPS + 2)
MAX_STEP = 100  # rows, of which the updates see most
CONTINUOUS, DISCRETE, HYBRID = ActionSpec(2), ActionSpec(0, (3, 2)), ActionSpec(1, (3,))
RESIDUAL = Blueprint(
    encoders={"*": Vector(normalize=True)},
    policy=Residual(8, blocks=2, unit_weights=True),
    critic=Residual(8, blocks=2, unit_weights=True),
)
RENORMALIZED = Blueprint(policy=Mlp(8, 8, norm="batch_renorm"), critic=Mlp(8, 8, norm="batch_renorm"))
FLASH: dict[str, Any] = {
    "blueprint": RESIDUAL,
    "learning_rate_schedule": "cosine",
    "learning_rate_final_fraction": 0.5,
    "reward_normalization": "return_max",
    "critic": "categorical",
    "policy_update_every": 2,
    "target_entropy_std": 0.15,
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "flash": FLASH,
    "flash, discrete": {**FLASH, "spec": DISCRETE},
    "flash, hybrid": {**FLASH, "spec": HYBRID},
    "crossq": {"blueprint": RENORMALIZED, "target": "none", "policy_update_every": 3},
    "crossq, discrete": {"blueprint": RENORMALIZED, "target": "none", "spec": DISCRETE},
    "batch norms in the torso": {"blueprint": Blueprint(body=Mlp(8, norm="batch"), policy=Mlp(8), critic=Mlp(8))},
    "discrete, masked": {"spec": DISCRETE, "masked": True},
    "hybrid": {"spec": HYBRID, "rescale_values": True, "clip_epsilon": 0.5},
    "dqn": {"spec": DISCRETE, "discrete_dqn_like": True},
    "several steps": {"n_step": 3, "sequence_length": 4},
    "several steps, retrace": {"n_step": 3, "sequence_length": 4, "estimator": "retrace", "spec": HYBRID},
    "several steps, categorical": {**FLASH, "n_step": 3, "sequence_length": 4, "use_n_step_is": False},
    "decay, fixed temperature": {"optimizer": "adamw", "weight_decay": 0.1, "use_auto_alpha": False},
    "linear, delayed targets": {"learning_rate_schedule": "linear", "update_target_per_step": 3},
    "spectral norm, noisy": {"blueprint": Blueprint(body=NoisyMlp(8), critic=Mlp(8, spectral_norm=True))},
    "returns": {"reward_normalization": "return_std", "reward_scale": 0.5},
    "resets": {"reset_every": 7, "reset_shrink": 0.5},
}
every_case = pytest.mark.parametrize("case", CASES)


def make_role(spec: ActionSpec = CONTINUOUS, masked: bool = False) -> Role:
    mask = {ACTION_MASK: ObsSpec((sum(spec.branches),), "uint8")} if masked else {}
    return Role(LANES, {"obs": ObsSpec((3,)), **mask}, spec)


def make_case(case: str) -> tuple[Sac, Role]:
    changes = dict(CASES[case])
    role = make_role(changes.pop("spec", CONTINUOUS), changes.pop("masked", False))
    return make_sac(role, changes.pop("blueprint", None), **changes), role


def make_rollouts(agent: Sac, role: Role, count: int = UPDATES) -> list[Rollout]:
    """Return batches with different boundaries, among them one without any boundary."""
    rollouts = [random_rollout_of(agent, role, seed, agent.schedule.sequence_length) for seed in range(count)]
    rollouts[1] = replace(rollouts[1], first=np.zeros_like(rollouts[1].first), alive=np.ones_like(rollouts[1].alive))
    return rollouts
