"""Steps of Gymnasium's vector environments, in every mode, against a single environment in a plain loop; ids."""

from __future__ import annotations

import time
from copy import deepcopy

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from algorithm.adapters.adapter import EnvironmentStartError, UnsupportedEnvironment
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.gym_ids import find_id
from algorithm.adapters.vector import NATIVE_MIN_ENVS
from algorithm.returns import retrace
from algorithm.training.actor import Actor
from tests.adapters.configs import config, every_mode, open_gym, vectorized
from tests.adapters.contract import drive, make_contract
from tests.adapters.counted import BOTH, TERMINATED, TRUNCATED, CountedEpisodes, NeverStarts, Slow, Ticks
from tests.adapters.spaced import Sampling
from tests.doubles import ParityAgent, collect_lanes

GAMMA = 0.9
ZEROS = {"agent": np.zeros((1, 1), np.float32)}


def make_limited(n_envs: int, args: dict) -> GymAdapter:
    return GymAdapter(config("CartPole-v1", n_envs, args, max_episode_steps=20))


TestNative = make_contract(lambda: make_limited(3, {"vectorization_mode": "vector_entry_point"}))
TestSyncNextStep, TestSyncSameStep, TestSyncDisabled = (
    make_contract(lambda mode=mode: make_limited(3, vectorized("sync", mode))) for mode in AutoresetMode
)
TestAsync = make_contract(lambda: make_limited(2, vectorized("async", AutoresetMode.SAME_STEP)), ticks=60)
TestVectorEnvOfEnvFile = make_contract(lambda: GymAdapter(config(Ticks, 3)))


# The rows of a lane, computed from one environment in a plain loop: (obs, action, reward, alive, memory, next obs,
# target). Every kind of vector environment must give these rows.


def v(obs):
    return np.cos(obs)


def q(obs):
    return np.sin(3 * obs)


def trace(obs):
    return 0.5 + 0.4 * np.sin(obs)


def expected_rows(ends, seed: int, count: int) -> list[tuple]:
    env = CountedEpisodes(ends)
    rows = []
    (obs, _), seconds = env.reset(seed=seed), None
    while len(rows) < count:
        episode, over = [], False
        while not over:
            action = obs[0] % 2
            after, reward, terminated, truncated, _ = env.step(int(action))
            seconds = None if terminated else after[0]
            episode.append((obs[0], action, reward, not terminated, float(len(episode)), seconds))
            obs, over = after, terminated or truncated
        rows += [(*row, target) for row, target in zip(episode, targets_of(episode), strict=True)]
        obs, _ = env.reset()
    return rows[:count]


def targets_of(episode: list[tuple]) -> list[float]:
    """Return Retrace targets from a backward loop; beyond an episode only the value of its last observation counts."""
    targets, error = [], 0.0
    for t, (obs, _, reward, _, _, after) in reversed(list(enumerate(episode))):
        following = 0.0 if after is None else GAMMA * v(after)
        if t + 1 < len(episode):
            following += GAMMA * trace(episode[t + 1][0]) * error
        error = reward + following - q(obs)
        targets.insert(0, q(obs) + error)
    return targets


def collect(adapter: GymAdapter, seed: int, ticks: int) -> tuple[Actor, dict[int, list[tuple]]]:
    """Return the actor and the valid rows of each lane, with targets computed on the whole record."""
    actor, records = collect_lanes(adapter, ParityAgent(rollout_length=4), seed, ticks)
    lanes = {}
    for lane, record in records.items():
        obs = record.obs["obs"][..., 0].astype(float)
        numbers = [record.reward, GAMMA * record.alive, record.valid, q(obs[:-1]), v(obs), trace(obs[:-1])]
        target = retrace(*[torch.from_numpy(np.asarray(value)) for value in numbers]).numpy()
        following = np.where(record.alive, obs[1:], None)
        columns = (obs[:-1], record.raw_action[..., 0], record.reward, record.alive, record.behavior[..., 1], following)
        lanes[lane] = [tuple(column[t, 0] for column in (*columns, target)) for t in np.flatnonzero(record.valid)]
        assert (record.behavior[:, 0, 0] == obs[:-1, 0]).all()
    return actor, lanes


def assert_rows(lanes: dict[int, list[tuple]], ends, seed: int, count: int) -> None:
    for lane, rows in lanes.items():
        expected = expected_rows(ends, seed + lane, count)
        assert [row[:-1] for row in rows[:count]] == [row[:-1] for row in expected]
        np.testing.assert_allclose([row[-1] for row in rows[:count]], [row[-1] for row in expected], rtol=1e-6)


ENDS = {
    **{kind: ((2, kind),) for kind in (TRUNCATED, TERMINATED, BOTH)},
    "in turn": ((2, TRUNCATED), (3, TERMINATED), (1, TRUNCATED), (1, TERMINATED), (4, BOTH)),
    "drawn": (),
}


@every_mode
@pytest.mark.parametrize(("kind", "ends"), [*(("sync", ends) for ends in ENDS), ("async", "drawn")])
def test_every_autoreset_mode_gives_the_same_valid_rows_and_targets(kind, ends, mode):
    n_envs = 3 if kind == "sync" else 2
    adapter = open_gym(CountedEpisodes, n_envs, {"ends": ENDS[ends], **vectorized(kind, mode)})
    actor, lanes = collect(adapter, seed=5, ticks=120)
    assert isinstance(adapter.env, SyncVectorEnv if kind == "sync" else AsyncVectorEnv)
    assert set(lanes) == set(range(n_envs))
    assert_rows(lanes, ENDS[ends], seed=5, count=48)
    assert actor.env_steps == sum(adapter.env.get_attr("executed"))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_only_worker_processes_step_between_send_and_receive(kind, tmp_path):
    mark = tmp_path / "mark"
    adapter = open_gym(Slow, 1, {"mark": str(mark), "vectorization_mode": kind})
    adapter.reset(seed=0)
    adapter.send(ZEROS)
    deadline = time.monotonic() + (20 if kind == "async" else 0)
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mark.exists() == (kind == "async")
    assert adapter.receive()["agent"].obs["obs"].ravel().tolist() == [11]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_reset_discards_a_step_that_has_been_sent(kind):
    adapter = open_gym(CountedEpisodes, 1, {"ends": ((3, TRUNCATED),), "vectorization_mode": kind})
    adapter.reset(seed=0)
    adapter.send(ZEROS)
    assert [step.obs["obs"].item() for step in drive(adapter, 1, seed=1)] == [1010, 1011]


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "pipes"])
def test_worker_processes_are_closed_while_they_step(shared):
    kwargs = {"vectorization_mode": "async", "vector_kwargs": {"shared_memory": shared, "context": "spawn"}}
    large = spaces.Box(-1, 1, (250_000,))  # a megabyte, which does not fit into a pipe
    adapter = open_gym(Sampling, 2, {"observation_space": large, "action_space": spaces.Discrete(2), **kwargs})
    adapter.reset(seed=0)
    adapter.send({"agent": np.zeros((2, 1), np.float32)})
    adapter.env.close_seconds = 60.0
    begin = time.monotonic()
    adapter.close()
    assert time.monotonic() - begin < 30
    assert [process.exitcode for process in adapter.env.processes] == [0, 0]


@every_mode
def test_every_mode_gives_the_rows_and_episodes_of_the_truth_table(mode):
    adapter = open_gym(CountedEpisodes, 1, {"ends": ENDS["in turn"], **vectorized("sync", mode)})
    actor, lanes = collect(adapter, seed=0, ticks=60)
    assert [(obs, action, reward, alive, after) for obs, action, reward, alive, _, after, _ in lanes[0][:6]] == [
        (10, 0, 1.25, True, 11),
        (11, 1, 2.375, True, 12),
        (20, 0, 2.5, True, 21),
        (21, 1, 3.625, True, 22),
        (22, 0, 2.75, False, None),
        (30, 0, 3.75, True, 31),
    ]
    episodes = [(episode.length, episode.episode_return) for episode in actor.episodes][:3]
    assert episodes == [(2, 1.25 + 2.375), (3, 2.5 + 3.625 + 2.75), (1, 3.75)]


@every_mode
def test_a_reset_discards_the_episodes_in_progress(mode):
    adapter = open_gym(CountedEpisodes, 2, {"ends": ((1, TRUNCATED),), **vectorized("sync", mode)})
    drive(adapter, 1)
    first, second = drive(adapter, 1)
    assert (first.first & ~first.is_bootstrap_row).all() and (second.is_bootstrap_row & ~second.first).all()
    assert [step.obs["obs"].ravel().tolist() for step in (first, second)] == [[10, 1010], [11, 1011]]


@every_mode
def test_max_episode_steps_truncates_episodes(mode):
    adapter = open_gym(CountedEpisodes, 1, {"ends": ((9, TERMINATED),), **vectorized("sync", mode)}, 3)
    actor, lanes = collect(adapter, seed=0, ticks=40)
    assert {episode.length for episode in actor.episodes} == {3}
    assert [(row[0], row[3], row[5]) for row in lanes[0][2:4]] == [(12, True, 13), (20, True, 21)]


@pytest.mark.parametrize("how", ["sync", "vector_entry_point"])
def test_max_episode_steps_replaces_the_limit_of_a_registered_environment(how):
    steps = drive(open_gym("CartPole-v1", 2, {"vectorization_mode": how}, max_episode_steps=4), 12)
    assert [t for t, step in enumerate(steps) if step.is_bootstrap_row.all()] == [4, 9]


def test_a_native_vector_environment_is_used_if_it_is_faster():
    few, many = (open_gym("CartPole-v1", n_envs) for n_envs in (NATIVE_MIN_ENVS - 1, NATIVE_MIN_ENVS))
    assert isinstance(few.env, SyncVectorEnv) and not isinstance(many.env, SyncVectorEnv)
    assert many.roles["agent"].lanes == NATIVE_MIN_ENVS


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("NeverStarts-v0", {}, "'NeverStarts-v0'.*RuntimeError: no licence found"),
        (NeverStarts, {}, "counted.py.*no licence found"),
        ("NeverResets-v0", {}, "'NeverResets-v0'.*RuntimeError: the level is missing"),
        ("CartPole-v1", {"gravitation": 3}, "'CartPole-v1'.*gravitation"),
    ],
)
def test_an_environment_that_does_not_start_is_an_error_with_its_name_and_reason(name, args, message):
    with pytest.raises(EnvironmentStartError, match=message):
        open_gym(name, 1, args)


def test_vector_kwargs_have_the_same_meaning_for_any_number_of_environments():
    for n_envs in (1, 8):
        adapter = open_gym("CartPole-v1", n_envs, {"vector_kwargs": {"autoreset_mode": "SameStep"}})
        assert adapter.roles["agent"].lanes == n_envs


def test_env_args_of_the_caller_are_not_modified():
    env_args = {"ends": ENDS["truncated"], **vectorized("sync", AutoresetMode.SAME_STEP)}
    before = deepcopy(env_args)
    open_gym(CountedEpisodes, 1, env_args, max_episode_steps=3)
    assert env_args == before


def test_a_function_that_takes_num_envs_makes_one_vector_environment():
    adapter = open_gym(lambda num_envs, length: Ticks(num_envs, length), 4, {"length": 2})
    assert isinstance(adapter.env, Ticks) and adapter.roles["agent"].lanes == 4
    steps = drive(adapter, 3, action=1.0)[1:]
    assert [bool(step.is_bootstrap_row.all()) for step in steps] == [False, True, False]
    assert [float(step.reward[0]) for step in steps] == [1, 1, 0]


def test_a_limit_is_passed_to_a_vector_environment_that_takes_one():
    adapter = open_gym(lambda num_envs, max_episode_steps: Ticks(num_envs, max_episode_steps), 2, None, 7)
    assert adapter.env.length == 7


for namespace in ("north", "south"):  # the same name in two namespaces
    gymnasium.register(f"{namespace}/Twin-v0", entry_point="nothing:Nothing")


@pytest.mark.parametrize(
    ("name", "namespace", "found"),
    [
        ("cartpole", None, "CartPole-v1"),
        ("Cart-Pole", "gym", "CartPole-v1"),
        ("mountain_car", "gym", "MountainCar-v0"),
        ("mountain_car_continuous", "gym", "MountainCarContinuous-v0"),
        ("cartpole", "phys2d", "phys2d/CartPole-v1"),
        ("CartPole-v0", None, "CartPole-v1"),
        ("twin", "north", "north/Twin-v0"),
    ],
)
def test_names_are_matched_without_case_underscores_and_version(name, namespace, found):
    assert find_id(name, namespace) == found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acrobat", "no Gymnasium environment has the name 'acrobat'; did you mean Acrobot-v1?"),
        ("twin", "several Gymnasium environments have the name 'twin'; did you mean north/Twin-v0, south/Twin-v0?"),
        ("zzzz", "no Gymnasium environment has the name 'zzzz'"),
    ],
)
def test_no_id_or_several_ids_are_an_error_with_similar_ids(name, message):
    with pytest.raises(UnsupportedEnvironment) as error:
        find_id(name)
    assert str(error.value) == message
