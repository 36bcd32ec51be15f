"""The record of networks: parts with their inputs, shapes and parameters, for every algorithm."""

from __future__ import annotations

import json
from typing import Any

import pytest

from algorithm.networks import Blueprint, Gru, Mlp
from algorithm.networks.precision import Placement
from algorithm.parts.network_record import NETWORKS_FILE, describe_network, record_network
from algorithm.records_io import read_json
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import make_a2c, make_acer, make_ppo, make_reactor, make_role, make_sac

ROLE = Role(2, {"obs": ObsSpec((3,)), "picture": ObsSpec((3, 36, 36), "uint8")}, ActionSpec(branches=(4,)))
MAKERS = {"ACER": make_acer, "SAC": make_sac, "A2C": make_a2c, "PPO": make_ppo, "REACTOR": make_reactor}


def count_nodes(network) -> int:
    return sum(node["parameters"] for node in network["nodes"])


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize(
    "blueprint", [Blueprint(body=Mlp(16, 8)), Blueprint(body=Mlp(16), memory=Gru(8))], ids=["body", "memory"]
)
def test_every_parameter_is_in_one_part(make, blueprint):
    agent = make(ROLE, blueprint)
    network = describe_network(agent)
    trained = {id(each): each.numel() for group in agent.groups.values() for each in group.module.parameters()}
    assert network["parameters"] == sum(trained.values()) == count_nodes(network)
    for index, node in enumerate(network["nodes"]):
        assert all(source < index for source in node["inputs"])
        assert node["count"] * sum(layer["parameters"] for layer in node["layers"]) == node["parameters"]
    sources = [node["name"] for node in network["nodes"] if not node["inputs"] and not node["layers"]]
    assert sources == ["obs", "picture"]
    assert network["targets"].keys() == agent.target_networks.keys()
    json.dumps(network)


def test_the_shapes_of_a_small_network_and_the_number_of_equal_critics():
    network = describe_network(make_acer(make_role(size=3, actions=2), Blueprint(body=Mlp(16))))
    nodes = {node["name"]: node for node in network["nodes"]}
    assert nodes["obs"]["output"] == "3" and nodes["obs"]["type"] == "float32"
    assert [layer["shape"] for layer in nodes["body"]["layers"]] == ["3 → 16"]
    (heads,) = [node for name, node in nodes.items() if "policy" in name]
    assert heads["output"] == "2 + 2" and [layer["shape"] for layer in heads["layers"]] == ["16 → 4"]
    assert network["parameters"] == (3 + 1) * 16 + (16 + 1) * 4
    network = describe_network(make_sac(ensemble_q_num=3))
    (critics,) = [node for node in network["nodes"] if "critic" in node["name"]]
    assert critics["count"] == 3 and critics["parameters"] % 3 == 0


def test_roles_are_recorded_one_by_one_and_a_damaged_file_is_replaced(tmp_path):
    for name in ("red", "blue"):
        record_network(tmp_path, name, make_acer(), Placement())
    networks = read_json(tmp_path / NETWORKS_FILE, dict[str, Any])
    assert list(networks) == ["red", "blue"] and networks["red"] == networks["blue"]
    assert "learning and acting on cpu" in networks["red"]["device"]
    for content in ("{", "[]", "3"):
        (tmp_path / NETWORKS_FILE).write_text(content)
        record_network(tmp_path, "red", make_acer(), Placement())
        assert list(read_json(tmp_path / NETWORKS_FILE, dict[str, Any])) == ["red"]
