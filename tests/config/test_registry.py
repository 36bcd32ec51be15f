"""The table of names."""

from dataclasses import dataclass

import pytest

from algorithm.agents.settings import OptimizerSettings
from algorithm.config.registry import SETTINGS, TABLES, find_class, find_settings, make_agent_defaults
from algorithm.config.yaml_layers import load_inherited_defaults
from algorithm.errors import UserError


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in TABLES.items() for name in table])
def test_every_entry_can_be_imported(kind, name):
    assert callable(find_class(kind, name))
    assert find_class(kind, name.lower()) is find_class(kind, name)


@dataclass(frozen=True, kw_only=True)
class OwnSettings(OptimizerSettings):
    """The settings of an algorithm of a user, which sets one setting of the optimizer."""

    optimizer_epsilon: float = 0.5
    gamma: float = 0.9


class Own:
    """An algorithm of a user."""

    Settings = OwnSettings


class Foreign:
    """A class whose settings are not those of an algorithm."""

    Settings = dict


def test_the_section_of_an_own_algorithm_inherits_the_optimizer():
    section = make_agent_defaults(f"{__name__}:Own")["own_config"]
    assert section == {**load_inherited_defaults(), "optimizer_epsilon": 0.5, "gamma": 0.9}


@pytest.mark.parametrize("kind", ["algorithm", "auxiliaries"])
def test_settings_of_another_kind_are_an_error(kind):
    with pytest.raises(UserError, match="the class needs a dataclass Settings that inherits algorithm"):
        find_settings(kind, f"{__name__}:Foreign")


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in SETTINGS.items() for name in table])
def test_a_class_has_the_settings_of_the_table(kind, name):
    assert find_class(kind, name).Settings is find_settings(kind, name)
