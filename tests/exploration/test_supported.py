"""The settings, roles and agents that explorers support, and those that they refuse."""

from __future__ import annotations

import pytest

from algorithm.exploration.explorers import ActionRepeat, NoiseRepeat, NovelAction
from algorithm.specs import ActionSpec
from tests.builders import make_a2c, make_acer, make_ppo, make_reactor, make_role, make_sac

CONTINUOUS, HYBRID = make_role(spec=ActionSpec(2)), make_role(spec=ActionSpec(2, (3,)))
DISCRETE, BRANCHES = make_role(), make_role(spec=ActionSpec(branches=(2, 3)))
COUNTS = [0, -1, 1.5, True, "8", None]
RATIOS = {"n_step": 3, "use_n_step_is": True, "sequence_length": 3}
NO_RATIOS = {**RATIOS, "use_n_step_is": False}
NOVELTIES = {"rnd": lambda obs, actions: actions[..., 0]}


@pytest.mark.parametrize(
    ("kind", "role", "setting", "message"),
    [
        (ActionRepeat, DISCRETE, [0, 1], "must be below 1"),
        (ActionRepeat, DISCRETE, [0.5, 0.2], "two numbers"),
        (ActionRepeat, DISCRETE, 0.5, "probability of a repetition"),
        (ActionRepeat, CONTINUOUS, [0, 0.5], "is for discrete actions"),
        (ActionRepeat, HYBRID, [0, 0.5], "is for discrete actions"),
        (NoiseRepeat, DISCRETE, 16, "for discrete actions there is action_repeat"),
        *((NoiseRepeat, CONTINUOUS, count, "max_repeat is .*; it must be an integer, at least 1") for count in COUNTS),
        *((NovelAction, DISCRETE, count, "n_samples is .*; it must be an integer, at least 1") for count in COUNTS),
    ],
)
def test_invalid_settings_and_roles_are_refused(kind, role, setting, message):
    with pytest.raises(ValueError, match=message):
        kind(role, setting)


@pytest.mark.parametrize(
    ("kind", "make", "role", "settings"),
    [
        *((NoiseRepeat, make, CONTINUOUS, {}) for make in (make_acer, make_a2c, make_ppo)),
        (NoiseRepeat, make_acer, HYBRID, {}),
        (NoiseRepeat, make_sac, CONTINUOUS, RATIOS),
        *((NovelAction, make, CONTINUOUS, {}) for make in (make_acer, make_a2c, make_ppo)),
        *((NovelAction, make_acer, role, {}) for role in (HYBRID, BRANCHES)),
        *((NovelAction, make_sac, role, RATIOS) for role in (CONTINUOUS, BRANCHES)),
    ],
)
def test_an_agent_that_forms_importance_ratios_of_an_unknown_density_is_refused(kind, make, role, settings):
    message = {
        NoiseRepeat: "importance ratios are not supported, since the density of an action",
        NovelAction: "the density of the most novel action is unknown",
    }
    with pytest.raises(ValueError, match=message[kind]):
        kind(role).connect(make(role, **settings), NOVELTIES)


@pytest.mark.parametrize(
    ("kind", "make", "role", "settings"),
    [
        *((NoiseRepeat, make_sac, CONTINUOUS, settings) for settings in ({"n_step": 1}, NO_RATIOS)),
        *((NovelAction, make, DISCRETE, {}) for make in (make_acer, make_ppo)),
        (NovelAction, make_reactor, BRANCHES, {}),
        (NovelAction, make_sac, DISCRETE, RATIOS),
        (NovelAction, make_sac, CONTINUOUS, NO_RATIOS),
        (NovelAction, make_sac, HYBRID, {"n_step": 1}),
    ],
)
def test_an_agent_with_a_known_density_or_without_importance_ratios_is_supported(kind, make, role, settings):
    kind(role).connect(make(role, **settings), NOVELTIES)


def test_an_auxiliary_with_the_novelty_of_actions_is_needed():
    with pytest.raises(ValueError, match=r"set auxiliaries\.rnd\.input to observation_and_action"):
        NovelAction(DISCRETE).connect(make_acer(DISCRETE), {})
