"""Tests that every adapter must pass: a test class inherits `AdapterContract` and implements `make`."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest

from algorithm.adapters.adapter import Adapter, EnvConfig
from algorithm.adapters.wrappers import EnvGroups
from algorithm.rollout import Step
from algorithm.specs import ActionSpec
from tests.adapters.configs import OPENED, opened


def act(adapter: Adapter, steps: dict[str, Step], value: float = 0.0) -> dict[str, Step]:
    """Return the next Steps after actions of which every number is `value`."""
    shapes = {role: (len(step.lane), adapter.roles[role].action_spec.size) for role, step in steps.items()}
    return adapter.step({role: np.full(shape, value, np.float32) for role, shape in shapes.items()})


def list_rows(step: Step) -> list[tuple]:
    """Return (lane, first, is_bootstrap_row, reward, alive, first observed value) of each row."""
    obs = step.obs.get("obs", step.obs.get("observation"))
    fields = (step.lane, step.first, step.is_bootstrap_row, step.reward, step.alive, obs[:, 0])
    return list(zip(*(field.tolist() for field in fields), strict=True))


class AdapterContract:
    """Tests of an adapter, on the Steps of `ticks` ticks with random actions.

    The ticks are executed once for the class; at least one episode must end in them. Observations are copied before
    the next step, which may overwrite them.
    """

    ticks = 150

    def make(self) -> Adapter:
        raise NotImplementedError

    @classmethod
    def setup_class(cls):
        cls.adapter = cls().make()
        OPENED.pop_all()  # `teardown_class` closes it
        rng = np.random.default_rng(0)
        cls.roles = []  # {role: number of lanes} at each tick
        cls.ticked = []  # copies of the Steps of each tick
        cls.kept = []  # the Steps themselves, after all ticks
        steps = cls.adapter.reset(seed=3)
        for _ in range(cls.ticks):
            cls.roles.append({name: role.lanes for name, role in cls.adapter.roles.items()})
            cls.ticked.append(deepcopy(steps))
            cls.kept.append(steps)
            steps = cls.adapter.step(_random_actions(cls.adapter, steps, rng))

    @classmethod
    def teardown_class(cls):
        cls.adapter.close()

    def test_roles_and_lanes_appear_before_their_steps_and_are_never_removed(self):
        for roles, steps in zip(self.roles, self.ticked, strict=True):
            assert set(steps) <= set(roles)
            assert all(lane < roles[name] for name, step in steps.items() for lane in step.lane)
        for before, after in pairwise(self.roles):
            assert all(after[name] >= lanes for name, lanes in before.items())

    def test_lanes_of_a_step_are_ascending(self):
        for _, step in self._steps():
            assert step.lane.dtype == np.int64
            assert (step.lane >= 0).all() and (np.diff(step.lane) > 0).all()

    def test_every_lane_has_steps(self):
        for name, role in self.adapter.roles.items():
            lanes = {lane for other, step in self._steps() if other == name for lane in step.lane.tolist()}
            assert lanes == set(range(role.lanes))

    def test_shapes_and_dtypes_of_all_fields_match_the_role(self):
        for name, step in self._steps():
            n, specs = len(step.lane), self.adapter.roles[name].obs_specs
            assert set(step.obs) == set(specs)
            for key, spec in specs.items():
                assert step.obs[key].shape == (n, *spec.shape)
                assert step.obs[key].dtype == spec.dtype
            for field, dtype in (("first", bool), ("is_bootstrap_row", bool), ("reward", np.float32), ("alive", bool)):
                assert getattr(step, field).shape == (n,)
                assert getattr(step, field).dtype == dtype, field

    def test_flags_and_rewards_of_a_step_do_not_change_later(self):
        later = [step for steps in self.kept for step in steps.values()]
        for (_, then), now in zip(self._steps(), later, strict=True):
            for field in ("lane", "first", "is_bootstrap_row", "reward", "alive"):
                np.testing.assert_array_equal(getattr(then, field), getattr(now, field))

    def test_every_episode_starts_with_first_and_ends_with_its_only_bootstrap_row(self):
        for rows in self._lanes().values():
            assert rows[0].first
            assert not any(row.first and row.is_bootstrap_row for row in rows)
            assert all(row.alive or row.is_bootstrap_row or row.first for row in rows), "after a termination"
            for row, following in pairwise(rows):
                assert not row.is_bootstrap_row or following.first
                assert not row.is_bootstrap_row or (following.reward == 0 and following.alive), "consequences"

    def test_episodes_end_and_others_start(self):
        assert any(row.first for rows in self._lanes().values() for row in rows[1:])

    def test_the_same_seed_gives_the_same_first_observations(self):
        once = deepcopy(self.adapter.reset(seed=11))
        again = self.adapter.reset(seed=11)
        assert set(once) == set(again)
        for role, step in once.items():
            assert step.first.all()
            assert step.alive.all()
            assert not step.is_bootstrap_row.any()
            assert not step.reward.any()
            np.testing.assert_array_equal(step.lane, again[role].lane)
            for name in step.obs:
                np.testing.assert_array_equal(step.obs[name], again[role].obs[name])

    def test_a_restored_state_continues_the_same_episodes(self):
        if self.adapter.state() is None:
            with pytest.raises(ValueError):
                self.adapter.restore({})
            return
        adapter, rng = self.make(), np.random.default_rng(1)
        steps = adapter.reset(seed=3)
        for _ in range(7):
            steps = adapter.step(_random_actions(adapter, steps, rng))
        other = self.make()
        other.reset(seed=4)
        other.restore(json.loads(json.dumps(adapter.state())))
        assert set(other.roles) == set(adapter.roles)
        for _ in range(50):
            actions = _random_actions(adapter, steps, rng)
            steps, others = adapter.step(actions), other.step(actions)
            assert steps.keys() == others.keys()
            for role, step in steps.items():
                for name, value in step.to_arrays().items():
                    np.testing.assert_array_equal(value, others[role].to_arrays()[name], name)

    def test_closing_twice_is_harmless(self):
        self.adapter.close()  # this is the last test of the class
        self.adapter.close()

    def _steps(self) -> list[tuple[str, Step]]:
        return [(role, step) for steps in self.ticked for role, step in steps.items()]

    def _lanes(self) -> dict[tuple[str, int], list[Step]]:
        """Return the rows of each lane, each as a Step of one row."""
        lanes = {}
        for role, step in self._steps():
            for lane in step.lane.tolist():
                lanes.setdefault((role, lane), []).append(step.take(step.lane == lane))
        return lanes


def make_contract(make: Callable[[], Adapter], ticks: int = 150, package: str | None = None) -> type:
    """Return the tests of the adapter that `make` returns; a module assigns them to a name that starts with Test.

    They are skipped if `package` is not installed.
    """

    def skip_or_make(self) -> Adapter:
        if package:
            pytest.importorskip(package)
        return make()

    return type("TestAdapter", (AdapterContract,), {"make": skip_or_make, "ticks": ticks})


def _random_actions(adapter: Adapter, steps: dict[str, Step], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {role: random_actions(adapter.roles[role].action_spec, len(step.lane), rng) for role, step in steps.items()}


def random_actions(spec: ActionSpec, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return actions [n, size] of a uniform policy."""
    continuous = rng.uniform(-1, 1, (n, spec.continuous))
    branches = [rng.integers(branch, size=(n, 1)) for branch in spec.branches]
    return np.concatenate([continuous, *branches], -1).astype(np.float32)


def drive(adapter: Adapter, ticks: int, seed: int = 0, action: float | None = 0.0) -> list[Step]:
    """Return copies of the first Step of the only role and of those of `ticks` ticks.

    Every number of the actions is `action`; None stands for random actions.
    """
    rng, spec = np.random.default_rng(0), adapter.roles["agent"].action_spec
    steps = [deepcopy(adapter.reset(seed)["agent"])]
    for _ in range(ticks):
        shape = len(steps[-1].lane), spec.size
        actions = random_actions(spec, shape[0], rng) if action is None else np.full(shape, action, np.float32)
        steps.append(deepcopy(adapter.step({"agent": actions})["agent"]))
    return steps


def assert_groups_play_the_same(make: Callable[[EnvConfig], Adapter], config: EnvConfig, n_groups: int) -> EnvGroups:
    """Check that groups of environments have the episodes of undivided environments; return the groups."""
    groups = opened(EnvGroups(make, config, n_groups))
    assert play_lanes(groups, 30) == play_lanes(opened(make(config)), 30)
    return groups


def play_lanes(adapter: Adapter, rows: int, seed: int = 5) -> dict[int, list[tuple]]:
    """Return the first rows of each lane, with actions that follow from the observations alone."""
    lanes: dict[int, list[tuple]] = {}
    steps = adapter.reset(seed)
    while len(lanes) < adapter.roles["agent"].lanes or min(map(len, lanes.values())) < rows:
        step = steps["agent"]
        obs = step.obs["obs"].reshape(len(step.lane), -1)
        values = zip(obs.tolist(), step.first, step.is_bootstrap_row, step.reward.tolist(), step.alive, strict=True)
        for lane, row in zip(step.lane.tolist(), values, strict=True):
            lanes.setdefault(lane, []).append(row)
        steps = adapter.step({"agent": (np.floor(obs.sum(1, keepdims=True)) % 2).astype(np.float32)})
    return {lane: lanes[lane][:rows] for lane in sorted(lanes)}
