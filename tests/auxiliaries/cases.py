"""Learners with auxiliaries, among them those that compare pairs of observations, and the batches of auxiliaries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from algorithm.auxiliaries.auxiliary import AuxiliaryInputs
from algorithm.auxiliaries.siamese import AugmentedTemporalContrast, BootstrapYourOwnLatent
from algorithm.networks import Blueprint, Conv, FrameStack, Gru, Mlp, Vector
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests.builders import make_a2c, make_acer, make_ppo, make_reactor, make_sac, random_rollout_of

ROLE = Role(4, {"image": ObsSpec((2, 6, 7), "uint8", high=255), "vector": ObsSpec((3,))}, ActionSpec(branches=(3,)))
CONV = Conv((4, 3, 2), units=8)
PLAIN = Blueprint({"image": CONV, "*": Vector()}, body=Mlp(8))
STACKED = Blueprint({"image": FrameStack(3, CONV), "*": Vector()}, body=Mlp(8))
RECURRENT = Blueprint({"image": FrameStack(3, CONV), "*": Vector(normalize=True)}, body=Mlp(8), memory=Gru(4))
AGENTS = {"acer": make_acer, "sac": make_sac, "a2c": make_a2c, "ppo": make_ppo, "reactor": make_reactor}
KINDS = {"atc": AugmentedTemporalContrast, "byol": BootstrapYourOwnLatent}
SMALL = {"units": 6, "latent_size": 5, "shift": 1, "update_every": 1}


def make(kind: str, **changes):
    """Return an auxiliary with small networks and some settings."""
    cls = KINDS[kind]
    return cls(cls.Settings(**{**SMALL, **changes}))


def make_learner(auxiliary, agent_name: str = "acer", blueprint: Blueprint = PLAIN, role: Role = ROLE, **changes):
    """Return a learner with one auxiliary, named `siamese`."""
    return Learner(AGENTS[agent_name](role, blueprint, **changes), role, {"siamese": auxiliary}, None)


def make_rollout(agent, seed: int = 0, rows: int = 7, role: Role = ROLE, burn_in: int = 0) -> Rollout:
    """Return a collected rollout of images and vectors, with a memory before it that holds past frames."""
    rng = np.random.default_rng(seed)
    rollout = random_rollout_of(agent, role, seed, rows)
    obs = {
        "image": rng.integers(0, 256, (rows + 1, role.lanes, *role.obs_specs["image"].shape)).astype(np.uint8),
        "vector": rng.normal(size=(rows + 1, role.lanes, 3)).astype(np.float32),
    }
    obs = {name: value for name, value in obs.items() if name in role.obs_specs}
    memory = rng.integers(0, 256, (role.lanes, agent.state_size)).astype(np.float32)
    memory[:, : agent.stored_state_size] /= 255
    if burn_in:
        memory = memory[:, : agent.stored_state_size]
    return replace(rollout, obs=obs, memory=memory, burn_in=burn_in)


def make_inputs(agent, rollout: Rollout, features: torch.Tensor | None = None) -> AuxiliaryInputs:
    """Return the inputs of an auxiliary for a batch, in numpy or as tensors, in an update with a loss."""
    batch = rollout.convert(torch.as_tensor)
    return AuxiliaryInputs(
        batch=batch,
        torso=agent.policy.torso,
        compute_features=lambda: agent.features(batch) if features is None else features,
        encode=agent.encode,
        update=0,
    )


def compute_loss(auxiliary, agent, rollout: Rollout, seed: int = 0) -> torch.Tensor:
    """Return the loss of a batch, with the random draws of a seed."""
    torch.manual_seed(seed)
    return auxiliary.loss(make_inputs(agent, rollout))[0]
