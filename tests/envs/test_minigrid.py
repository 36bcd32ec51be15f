"""Tests of the folders with environments of MiniGrid: what the encoders and comments of their files assume."""

import gymnasium
import numpy as np
import pytest
import torch

from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import read_variant
from algorithm.parts.env_folder import PROJECT_ENVS
from algorithm.specs import ObsSpec
from tests.envs.folders import FOLDERS, load

constants = pytest.importorskip("minigrid.core.constants")
pytestmark = pytest.mark.filterwarnings("ignore:.*MultiRoom-N4-S5-v0 is out of date.*")

STEP_LIMITS = {
    "memory/minigrid_memory": 245,
    "minigrid/doorkey_5x5": 250,
    "minigrid/key_corridor_s3r1": 270,
    "minigrid/multiroom_n4_s5": 120,
}
LEFT, RIGHT, FORWARD = range(3)  # actions
THINGS = [constants.OBJECT_TO_IDX[name] for name in ("key", "ball")]


def open_env(name, **env_args):
    """Return the environment of a folder; `env_args` replace those of its config.yaml."""
    base = resolve([("test", read_variant(PROJECT_ENVS / name / "config.yaml", "default"))]).base
    return gymnasium.make(base.env_name, **{**base.env_args, **env_args})


def find_things(image):
    """Return the codes of the keys and balls in an observation."""
    codes = image[..., 0].ravel()
    return codes[np.isin(codes, THINGS)].tolist()


def test_every_folder_is_tested():
    assert sorted(STEP_LIMITS) == [name for name in FOLDERS if "minigrid" in name]


@pytest.mark.parametrize("name", STEP_LIMITS)
def test_the_limits_of_steps_are_those_of_the_comments(name):
    assert open_env(name).unwrapped.max_steps == STEP_LIMITS[name]
    assert f"0.9 * steps / {STEP_LIMITS[name]}" in (PROJECT_ENVS / name / "config.yaml").read_text()


def test_multiroom_has_six_rooms():
    env = open_env("minigrid/multiroom_n4_s5")
    env.reset(seed=0)
    assert len(env.unwrapped.rooms) == 6


@pytest.mark.parametrize("name", STEP_LIMITS)
def test_the_encoder_has_a_value_for_every_code(name):
    blueprint = load(name, "nn.py").blueprint
    factory = (blueprint() if callable(blueprint) else blueprint).encoders["image"]
    tables = (constants.OBJECT_TO_IDX, constants.COLOR_TO_IDX, constants.STATE_TO_IDX)
    assert factory.n_values == tuple(map(len, tables))
    env = open_env(name)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    images = [obs["image"]]
    for _ in range(300):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        images.append(obs["image"])
        if terminated or truncated:
            images.append(env.reset()[0]["image"])
    views = np.stack(images).transpose(0, 3, 1, 2)
    encoded = factory(ObsSpec(views.shape[1:], "uint8", high=255.0))(torch.from_numpy(views))
    assert (encoded.sum(1) == views[0].size).all()


def find_visible_things(env, seed):
    """Return the keys and balls that are visible from every place and direction, each as one list."""
    env.reset(seed=seed)
    world, visible = env.unwrapped, []
    for x in range(1, world.width - 1):
        for y in range(1, world.height - 1):
            if world.grid.get(x, y) is None:
                for direction in range(4):
                    world.agent_pos, world.agent_dir = np.array((x, y)), direction
                    visible.append(find_things(world.gen_obs()["image"]))
    return visible


def test_no_view_of_3_cells_shows_two_things_but_a_view_of_7_cells_shows_all():
    for seed in range(10):
        small = find_visible_things(open_env("memory/minigrid_memory"), seed)
        assert {len(things) for things in small} == {0, 1}
        full = find_visible_things(open_env("memory/minigrid_memory", agent_view_size=7), seed)
        assert max(map(len, full)) == 3


def walk_to_target(env, seed, has_memory):
    """Look at the object in the first room, and walk to the same one; without a memory, to the upper one.

    Return the return of the episode.
    """
    obs, _ = env.reset(seed=seed)
    reward, over = 0.0, False

    def act(*actions):
        nonlocal obs, reward, over
        for action in actions:
            obs, reward, terminated, truncated, _ = env.step(action)
            over = terminated or truncated

    act(LEFT, LEFT)
    while not find_things(obs["image"]):
        act(FORWARD)
    cue = find_things(obs["image"])
    act(RIGHT, RIGHT, *[FORWARD] * (5 - env.unwrapped.agent_pos[0]), LEFT)
    if has_memory and find_things(obs["image"]) != cue:
        act(LEFT, LEFT)
    act(FORWARD)
    assert over
    return reward


def test_the_goal_of_the_memory_task_needs_a_memory():
    env = open_env("memory/minigrid_memory")
    remembered, forgotten = ([walk_to_target(env, seed, has) for seed in range(200)] for has in (True, False))
    assert min(remembered) > 0.94
    assert np.mean(forgotten) == pytest.approx(0.5, abs=0.1)
    assert set(np.sign(forgotten)) == {0.0, 1.0}
