"""Every algorithm of the registry fulfils the contract of agents."""

from __future__ import annotations

from algorithm.config.registry import AGENTS
from tests.agents.contract import AgentContract


class TestAcer(AgentContract):
    algorithm = "ACER"


class TestAcerWithStateValues(AgentContract):
    algorithm = "ACER"
    changes = {"critic": "state_value", "estimator": "vtrace"}


class TestAcerInAFullTrustRegion(AgentContract):
    algorithm = "ACER"
    changes = {"trust_region": "full"}
    reads_values = True


class TestSac(AgentContract):
    algorithm = "SAC"


class TestSacOfSeveralSteps(AgentContract):
    algorithm = "SAC"
    changes = {"n_step": 3, "sequence_length": 6}


class TestReactor(AgentContract):
    algorithm = "REACTOR"
    kinds = ("discrete", "branches")


class TestReactorWithAScalarCritic(AgentContract):
    algorithm = "REACTOR"
    kinds = ("discrete", "branches")
    changes = {"critic": "scalar"}


class TestA2C(AgentContract):
    algorithm = "A2C"


class TestPpo(AgentContract):
    algorithm = "PPO"
    changes = {"normalize_advantages": False}


class TestPoca(AgentContract):
    algorithm, has_teams = "POCA", True
    kinds = ("branches", "hybrid")  # the policies are those of PPO
    changes = {"normalize_advantages": False, "team_size": 3, "team_units": 8}


def test_every_algorithm_is_tested():
    assert {contract.algorithm for contract in AgentContract.__subclasses__()} == AGENTS.keys()
