"""The errors of settings that do not fit the suggested ones."""

import pytest

from algorithm.config.loader import read_assignments
from algorithm.errors import UserError
from algorithm.runs.run_requests import RunRequest, complete_settings


def fail(*assignments: str) -> str:
    request = RunRequest(env="Pendulum-v1", layers=[("--set", read_assignments(list(assignments)))])
    with pytest.raises(UserError) as error:
        complete_settings(request, lambda line: None)
    return str(error.value)


@pytest.mark.parametrize(
    ("assignment", "suggested"),
    [
        ("sac_config.std_init=1.5", "sac_config.std_min, sac_config.std_max"),
        ("sac_config.clip_epsilon=0.2", "sac_config.critic"),  # has no effect with the suggested critic
    ],
)
def test_an_error_says_which_settings_are_suggested(assignment, suggested):
    end = f" (suggested for this environment: {suggested}; base_config.suggest_settings=false uses the defaults)"
    assert fail(assignment).endswith(end)


def test_an_error_that_no_suggestion_causes_is_that_of_the_given_settings():
    message = fail("base_config.algorithm=SAC", "ppo_config.epochs=3")
    assert message.endswith("ppo_config.epochs is for algorithm PPO, not for SAC, and so has no effect")
