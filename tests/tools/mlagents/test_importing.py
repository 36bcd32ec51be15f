"""The command import-mlagents writes folders that can be trained, and reports every key without a counterpart."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from algorithm.adapters.curriculum import Gaussian, MultiRange, Uniform
from algorithm.config.loader import check_effects, resolve
from algorithm.config.yaml_layers import find_value, iterate_settings, nest, read_variant
from algorithm.parts.components_builder import make_agent
from algorithm.parts.env_folder import is_file_name
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.user_code import load_blueprint
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.tools.mlagents import importing
from algorithm.tools.mlagents.importing import choose_folder_names, import_file
from tests.tools.mlagents.configurations import EXAMPLES, HYPERPARAMETERS, OF_ANY, OF_RUN
from tests.unity_player.launcher import make_player

OBSERVED = {
    "VectorSensor_size8": ObsSpec((8,)),
    "BufferSensor": ObsSpec((3, 2)),
    "Camera": ObsSpec((3, 40, 40), "uint8", high=255.0),
}


def write(text: str | dict, name: str = "trainer.yaml") -> Path:
    path = Path(name)
    path.write_text(text if isinstance(text, str) else yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
    return path


def settings_of(name: str):
    """Return the settings of a folder that was written."""
    config = Path("envs/unity", name, "config.yaml")
    layers = [(str(config), read_variant(config, "default"))]
    settings = resolve(layers)
    check_effects(settings, layers)
    return settings


def select(tree: dict, expected: dict) -> dict:
    """Return the part of a tree of settings that has the keys of another."""
    return {
        key: select(tree[key], value) if isinstance(value, dict) and key != "reset_config" else tree[key]
        for key, value in expected.items()
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_becomes_folders_that_fit(name):
    example = EXAMPLES[name]
    imported = import_file(write(example.text), force=False)
    assert [folder.as_posix() for folder in imported.folders] == [f"envs/unity/{role}" for role in example.settings]
    assert set(imported.unsupported) == example.lost
    assert all(imported.unsupported.values())
    for role, expected in example.settings.items():
        settings = settings_of(role)
        assert select(settings.tree, expected) == expected
        assert example.nn.get(role, "Mlp") in Path("envs/unity", role, "nn.py").read_text()
        for action in (ActionSpec(continuous=2), ActionSpec(branches=(3, 2))):  # the network reads every sensor
            folder = RunFolder(Path("envs/unity", role))
            agent = make_agent(settings, folder, Role(2, OBSERVED, action), np.random.default_rng(0))
            assert sum(parameter.numel() for parameter in agent.policy.parameters()) > 1000
        algorithm = f"becomes {settings.base.algorithm}"
        assert any(f"behaviors.{role}.trainer_type: " in note and algorithm in note for note in imported.notes)


def without(tree: dict, path: str) -> dict:
    tree, (section, _, key) = copy.deepcopy(tree), path.rpartition(".")
    del (find_value(tree, section) if section else tree)[key]
    return tree


def texts_and_lost(tree: dict):
    imported = import_file(write(tree), force=True)
    config, nn = ((imported.folders[0] / file).read_text() for file in ("config.yaml", "nn.py"))
    return yaml.safe_load(config), nn, imported.unsupported


@pytest.mark.parametrize("trainer", HYPERPARAMETERS)
def test_every_key_of_ml_agents_has_an_effect_or_is_reported(trainer):
    behavior = {"trainer_type": trainer, "hyperparameters": HYPERPARAMETERS[trainer], **OF_ANY}
    whole = {"behaviors": {"A": behavior}, **OF_RUN}
    config, nn, lost = texts_and_lost(whole)
    assert not [key for key, why in lost.items() if "no such key" in why]
    keys = [f"behaviors.A.{path}" for path in dict(iterate_settings(behavior)) if path != "trainer_type"]
    keys += dict(iterate_settings(OF_RUN))
    assert len(keys) > 100
    # Other notes report these keys: even_checkpoints covers the first, the shared memory the second.
    hidden = ["behaviors.A.checkpoint_interval", "behaviors.A.hyperparameters.shared_critic"]
    for key in keys:
        others = trainer != "ppo" and ".hyperparameters." not in key  # keys that are the same for all trainers
        if key not in lost and key not in hidden and not others and not key.endswith("demo_path"):  # is required
            less = without(whole, key)
            if key == "env_settings.env_path":  # which other keys need
                less["env_settings"] = {"timeout_wait": 77}
            assert texts_and_lost(less)[:2] != (config, nn), key
    interval = without(whole, "behaviors.A.even_checkpoints")
    assert texts_and_lost(interval)[0] != texts_and_lost(without(interval, hidden[0]))[0]
    assert "behaviors.A.reward_signals.gail.use_vail" in lost


def test_a_comment_names_the_origin_of_a_value():
    import_file(write(EXAMPLES["Crawler"].text), force=False)
    text = Path("envs/unity/Crawler/config.yaml").read_text()
    assert "# 'Crawler' of trainer.yaml" in text
    lines = {line.split(":")[0].strip(): line for line in text.splitlines() if ": " in line}
    assert lines["init_log_alpha"].endswith("# hyperparameters.init_entcoef: 1.0")
    assert lines["capacity"].endswith("# hyperparameters.buffer_size")
    assert lines["n_envs"].endswith("# ML-Agents' default of env_settings.num_envs")
    import_file(write(EXAMPLES["Hallway"].text), force=False)
    assert "gamma" not in Path("envs/unity/Hallway/config.yaml").read_text()  # Samara's default is the same


def test_policy_and_critic_are_separate_if_possible():
    for memory, shared, heads, is_lost in [
        (None, False, "policy=hidden, critic=hidden", False),
        (None, True, "body=hidden)", False),
        ({}, True, "body=hidden, memory=", False),
        ({}, False, "body=hidden, memory=", True),
    ]:
        networks = {"hyperparameters": {"shared_critic": shared}, "network_settings": {"memory": memory}}
        _, nn, lost = texts_and_lost({"behaviors": {"A": {"trainer_type": "ppo", **networks}}})
        assert heads in nn
        assert ("behaviors.A.hyperparameters.shared_critic" in lost) is is_lost


def behavior(trainer: str = "ppo", **keys) -> dict:
    return {"behaviors": {"A": {"trainer_type": trainer, **keys}}}


def test_a_key_that_ml_agents_ignores_is_reported():
    given = behavior(network_settings={"num_layer": 3}, self_play={"windw": 3})
    lost = import_file(write(given | {"torch_settings": {"devise": "cpu"}}), force=False).unsupported
    assert lost["behaviors.A.network_settings.num_layer"] == (
        "ML-Agents has no such key and ignores it; did you mean network_settings.num_layers?"
    )
    assert lost.keys() > {"behaviors.A.self_play.windw", "torch_settings.devise"}


def test_default_settings_alone_apply_to_any_behavior():
    given = {"default_settings": {"trainer_type": "sac", "max_steps": 77, "network_settings": {"hidden_units": 33}}}
    imported = import_file(write(given, "my trainer.yaml"), force=False)
    assert [folder.as_posix() for folder in imported.folders] == ["envs/unity/my_trainer"]
    settings = settings_of("my_trainer")
    assert (settings.base.algorithm, settings.base.max_step) == ("SAC", 77)
    assert "units: int = 33" in Path("envs/unity/my_trainer/nn.py").read_text()
    assert imported.notes[0].startswith("default_settings: they apply to any behavior; envs/unity/my_trainer has")


def test_different_defaults_of_the_engine_are_reported():
    def notes(**engine):
        given = behavior() | {"engine_settings": engine}
        return [note for note in import_file(write(given), force=True).notes if "its default in ML-Agents" in note]

    assert notes(time_scale=3) == [
        "engine_settings.quality_level is not in the file: its default in ML-Agents is 5, "
        "base_config.unity_args.quality_level is 1",
        "engine_settings.no_graphics is not in the file: its default in ML-Agents is false, "
        "base_config.unity_args.no_graphics is true",
    ]
    assert notes(quality_level=1, no_graphics=True) == []


@pytest.mark.parametrize(
    ("path", "value", "setting", "kept"),
    [
        ("env_settings.seed", -1, "base_config.seed", 0),
        ("env_settings.num_envs", 2, "base_config.n_envs", 1),
        ("env_settings.base_port", 5005, "base_config.unity_args.base_port", None),
        ("checkpoint_settings.run_id", "{day}", "base_config.name", "{time}"),
        ("behaviors.A.reward_signals.extrinsic.strength", -1, "ppo_config.reward_scale", 1.0),
    ],
)
def test_a_value_without_a_counterpart_is_reported_and_another_is_used(path, value, setting, kept):
    given = {"behaviors": {"A": {}}} | nest(path, value)
    assert import_file(write(given), force=False).unsupported.keys() == {path}
    assert find_value(settings_of("A").tree, setting) == kept


# Keys of a behavior, the settings that follow, and the keys of reward_signals without a counterpart.
DEFAULTS = yaml.safe_load("""
- [{trainer_type: sac}, {sac_config: {batch_size: 128, learning_starts: 128, init_log_alpha: 0}}, []]
- [{trainer_type: sac, hyperparameters: {init_entcoef: 0.1}}, {sac_config: {init_log_alpha: -2.3026}}, []]
- - {trainer_type: sac, hyperparameters: {learning_rate: 0.002}}
  - {sac_config: {learning_rate_critic: 0.002, learning_rate_policy: 0.002, learning_rate_alpha: 0.002}}
  - []
- [{reward_signals: {extrinsic: &plain {strength: 1.0}}}, {auxiliaries: {}}, []]
- - {reward_signals: {extrinsic: *plain, curiosity: {}}}
  - {auxiliaries: {curiosity: {strength: 1.0, learning_rate: 0.0003}}}
  - []
- - {reward_signals: {extrinsic: *plain, curiosity: {gamma: 0.9, strength: 0.3}}}
  - {auxiliaries: {curiosity: {strength: 0.3, learning_rate: 0.0003}}}
  - [curiosity.gamma]
- - {reward_signals: {extrinsic: *plain, curiosity: {learning_rate: 0.001}}}
  - {auxiliaries: {curiosity: {strength: 1.0, learning_rate: 0.001}}}
  - []
- - {reward_signals: {extrinsic: {}, rnd: {gamma: 0.9, network_settings: {hidden_units: 32, num_layers: 3}}}}
  - {auxiliaries: {rnd: {strength: 1.0, gamma: 0.9, learning_rate: 0.0001, units: 32, outputs: 32}}}
  - [rnd.network_settings.num_layers]
""")


@pytest.mark.parametrize(("keys", "expected", "lost"), DEFAULTS)
def test_missing_keys_have_the_defaults_of_ml_agents(keys, expected, lost):
    imported = import_file(write({"behaviors": {"A": keys}}), force=False)
    ((section, values),) = expected.items()
    tree = settings_of("A").tree[section]
    if section == "auxiliaries":
        assert tree == values
    else:
        assert select(tree, values) == pytest.approx(values, abs=1e-4)
    assert list(imported.unsupported) == [f"behaviors.A.reward_signals.{key}" for key in lost]


def test_samplers_have_the_defaults_of_ml_agents():
    named = {name: {"sampler_type": name, "sampler_parameters": {}} for name in ("uniform", "gaussian")}
    named["ranges"] = {"sampler_type": "multirangeuniform", "sampler_parameters": None}
    import_file(write({"behaviors": {"A": {}}, "environment_parameters": named}), force=False)
    assert settings_of("A").reset == {
        "uniform": Uniform(0.0, 1.0),
        "gaussian": Gaussian(1.0, 1.0),
        "ranges": MultiRange([[0.0, 1.0]]),
    }


def test_images_of_a_fully_connected_encoder_are_flat_and_from_0_to_1():
    flat = {"behaviors": {"A": {"network_settings": {"vis_encode_type": "fully_connected"}}}}
    (folder,) = import_file(write(flat), force=False).folders
    encoder = load_blueprint(folder, "nn.py", settings_of("A").nn).encoders["*"](OBSERVED["Camera"])
    white = torch.full((1, *OBSERVED["Camera"].shape), 255, dtype=torch.uint8)
    assert encoder(white).shape == (1, 4800)
    torch.testing.assert_close(encoder(white), torch.ones(1, 4800))


LESSON = "{name: a, value: 1, completion_criteria: {behavior: A, threshold: 1}}"
# The keys of a behavior A whose trainer is ppo, with a part of the error.
BEHAVIORS = """
hyperparameters: {learning_rat: 1} | A.hyperparameters.learning_rat: ML-Agents has no such key; did you mean hyperparame
num_layers: 3 | A.num_layers: ML-Agents has no such key; did you mean network_settings.num_layers?
netwrk_settings: {normalize: true} | A.netwrk_settings: ML-Agents has no such key; did you mean network_settings?
max_step: 3 | behaviors.A.max_step: ML-Agents has no such key; did you mean max_steps?
reward_signals: {curiosty: {strength: 1}} | reward_signals.curiosty: ML-Agents has no such key; did you
reward_signals: {rnd: {strengh: 1}} | rnd.strengh: ML-Agents has no such key
reward_signals: {curiosity: {strength: much}} | curiosity.strength is 'much'; input should be a valid number
reward_signals: {curiosity: 3} | reward_signals.curiosity is 3; it must be a mapping of keys
reward_signals: {gail: {strength: 1}} | reward_signals.gail has no demo_path, which ML-Agents
reward_signals: {extrinsic: {gamma: 2}} | A.reward_signals.extrinsic.gamma becomes ppo_config.gamma is 2
self_play: 3 | behaviors.A.self_play is 3; it must be a mapping of keys
self_play: {window: 0} | behaviors.A.self_play.window is 0; it must be above 0
hyperparameters: {beta_schedule: cosine} | beta_schedule is 'cosine'; input should be 'linear' or 'constant'
hyperparameters: {batch_size: 32}, network_settings: {memory: {}} | A has a sequence_length of 64 and a batch_size of
time_horizon: long | behaviors.A.time_horizon is 'long'; input should be a valid integer
time_horizon: null | behaviors.A.time_horizon has no value, which ML-Agents requires
max_steps: 0 | behaviors.A.max_steps is 0; it must be above 0
network_settings: {normalize: 1} | behaviors.A.network_settings.normalize is 1; input should be a valid boolean
network_settings: {vis_encode_type: Simple} | vis_encode_type is 'Simple'; input should be 'simple', 'nature_cnn', 'res
network_settings: {goal_conditioning_type: film} | goal_conditioning_type is 'film'; input should be 'hyper' or
network_settings: {memory: {memory_size: 7}} | memory.memory_size is 7; it must be an even number above 0
"""
# Sections alongside a behavior A without keys, with a part of the error.
SECTIONS = """
engine_setings: {width: 3} | engine_setings: ML-Agents has no such key; did you mean eng
engine_settings: {time_scale: 500} | engine_settings.time_scale becomes base_config.unity_args.time_scale is 500
env_settings: {num_env: 1} | env_settings.num_env: ML-Agents has no such key
env_settings: {num_areas: 0} | env_settings.num_areas is 0; it must be above 0
env_settings: {env_args: -a} | env_settings.env_args is '-a'; input should be a valid list
default_settings: [1] | default_settings is [1]; it must be a mapping
"""
# Whole files, with a part of the error.
FILES = """
behaviors: [1 | not YAML
[1] | expected a mapping
debug: true | there is no `behaviors` and no `default_settings`
behaviours: {A: {}} | behaviours: ML-Agents has no such key; did you mean behaviors?
behaviors: [A] | behaviors is ['A']; it must be a mapping
behaviors: {A: } | behaviors.A has no value, which ML-Agents requires
behaviors: {A: {max_steps: 1, max_steps: 2}} | max_steps is defined twice
behaviors: {A: {trainer_type: a2c}} | behaviors.A.trainer_type is 'a2c'; use one of: ppo, poca, sac
behaviors: {A: {trainer_type: sac, hyperparameters: {beta: 1}}} | A.hyperparameters.beta: it is a key of ppo, not of sac
behaviors: {A: {trainer_type: poca, hyperparameters: {shared_critic: true}}} | it is a key of ppo, not of poca, which
behaviors: {A: {hyperparameters: {beta: 1}}} | A has hyperparameters and no trainer_type, which ML-Agents requires then
{behaviors: {A: {trainer_type: sac}}, default_settings: {max_steps: 3}} | behaviors.A.trainer_type is 'sac', but default
"""
# Values of an environment parameter p, with a part of the error.
PARAMETERS = """
x | environment_parameters.p is 'x'; it must be a number, or sampler_type and
{sampler_type: unifrom, sampler_parameters: {}} | p.sampler_type is 'unifrom'; the samplers are uniform
{sampler_type: uniform, sampler_parameters: {min_value: a}} | p.sampler_parameters.min_value is 'a'; input should be a
{sampler_type: uniform, sampler_parameters: {min_value: 2}} | environment_parameters.p: 2.0 is above 1.0
{sampler_type: multirangeuniform, sampler_parameters: {intervals: [[1]]}} | intervals.0 is [1]; value should have at
{curriculum: []} | p.curriculum is []; it must be a list of lessons
{curriculum: [{name: a, value: 1}, LESSON]} | p.curriculum[0] is
{curriculum: [{name: a, value: 1, completion_criteria: {threshold: 1}}, LESSON]} | completion_criteria.behavior is
{curriculum: [{name: a, value: 1, completion_criteria: {behavior: A, measure: progress, threshold: 9}}, LESSON]} | is 9
{curriculum: [{name: a, value: 1, completion_criteria: {behavior: A, measure: x}}, LESSON]} | measure is 'x'; input
"""


def make_files(form: str, rows: str) -> list[list[str]]:
    """Return a file, with a part of the error, for each row."""
    return [
        [form.replace("ROW", text), message] for text, message in (row.split(" | ") for row in rows.splitlines()[1:])
    ]


INVALID = [
    *make_files("behaviors: {A: {trainer_type: ppo, ROW}}", BEHAVIORS),
    *make_files("behaviors: {A: {}}\nROW", SECTIONS),
    *make_files("ROW", FILES),
    *make_files("behaviors: {A: {}}\nenvironment_parameters: {p: ROW}", PARAMETERS.replace("LESSON", LESSON)),
]


@pytest.mark.parametrize(("text", "message"), [*INVALID, (None, "the file does not exist")])
def test_an_invalid_file_is_one_line_and_writes_nothing(text, message, command):
    if text is not None:
        write(text)
    error = command.fail("import-mlagents trainer.yaml")
    assert message in error and "trainer.yaml" in error and not Path("envs").exists()


def test_a_folder_is_overwritten_only_by_force(command):
    write({"behaviors": {"A": {"max_steps": 7}, "B": {}}})
    own = Path("envs/unity/B/mine.py")
    own.parent.mkdir(parents=True)
    own.write_text("1")
    assert "B exists already; --force replaces it" in command.fail("import-mlagents trainer.yaml")
    assert not Path("envs/unity/A").exists()
    command("import-mlagents trainer.yaml --force")
    write({"behaviors": {"A": {"max_steps": 8}}})
    command("import-mlagents trainer.yaml --force")
    assert settings_of("A").base.max_step == 8
    assert sorted(file.name for file in own.parent.iterdir()) == ["config.yaml", "mine.py", "nn.py"]
    assert own.read_text() == "1"


def test_an_error_while_writing_leaves_nothing(monkeypatch, command):
    written = []

    def full(path, text):
        if len(written) == 3:
            raise OSError("no space left on the device")
        path.write_text(text)
        written.append(path)

    monkeypatch.setattr(importing, "replace_text", full)
    write({"behaviors": {"A": {}, "B": {}}})
    assert "no space left" in command("import-mlagents trainer.yaml", 1).err
    assert len(written) == 3
    assert list(Path("envs/unity").iterdir()) == []


def test_names_of_folders_are_valid_and_unique_on_every_system():
    behaviors = ["My Behavior", "a/b", "a:b", "A?B", "..", "con", "CON", "Läufer", "x" * 300, "x" * 301, ".x", "A_B-2"]
    names = choose_folder_names(dict.fromkeys(behaviors))
    assert list(names) == behaviors
    assert all(is_file_name(name) and " " not in name for name in names.values())
    assert len({name.casefold() for name in names.values()}) == len(behaviors)
    assert names["Läufer"] == "Läufer"
    imported = import_file(write({"behaviors": {"a/b": {}, 'quoted """ \\': {}}}), force=False)
    assert [folder.name for folder in imported.folders] == ["a_b", "quoted______"]
    assert "behaviors.a/b: its folder is a_b; the role has the name of the behavior" in imported.notes


def test_scripts_get_folders_and_the_keys_without_a_counterpart(command):
    write(EXAMPLES["SoccerTwos"].text)
    printed = command.json("import-mlagents trainer.yaml")
    assert printed["folders"] == ["envs/unity/SoccerTwos"]
    assert printed["not_served"].keys() == EXAMPLES["SoccerTwos"].lost


def test_a_written_folder_names_the_command_that_trains_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["samara"])
    (folder,) = import_file(write(EXAMPLES["SoccerTwos"].text), force=False).folders
    first_line = (folder / "config.yaml").read_text().splitlines()[0]
    assert first_line.endswith("a trainer configuration of ML-Agents: samara unity/SoccerTwos")


def test_without_json_each_key_is_one_line(command):
    write(EXAMPLES["WallJump"].text)
    lines = command("import-mlagents trainer.yaml").out.splitlines()
    for key in EXAMPLES["WallJump"].lost:
        assert [line for line in lines if line.startswith(f"{key}: not supported: ")], key
    assert "train it: python main.py unity/SmallWallJump" in lines
    assert [line for line in lines if "unless ma_config.SmallWallJump there holds the ppo_config" in line]


def test_a_run_has_one_algorithm():
    both = {"A": {"trainer_type": "sac"}, "B": {"trainer_type": "ppo"}}
    notes = import_file(write({"behaviors": both}), force=False).notes
    assert [note for note in notes if "B, too, trains it in the same run: unity/A by the algorithm of A" in note]
    alike = import_file(write({"behaviors": {**both, "B": both["A"]}}), force=True).notes
    assert [note for note in alike if "unless ma_config.B there holds the sac_config and replay_config" in note]


def test_a_lesson_for_an_unknown_behavior_is_reported():
    for lesson, is_reported in ((LESSON, False), (LESSON.replace("behavior: A", "behavior: Other"), True)):
        text = f"behaviors: {{A: {{}}}}\nenvironment_parameters: {{p: {{curriculum: [{lesson}, {LESSON}]}}}}"
        notes = import_file(write(text), force=True).notes
        line = (
            "p.curriculum[0].completion_criteria.behavior: Other is no behavior of trainer.yaml; without one the lesson"
        )
        assert any(line in note for note in notes) is any("never ends" in note for note in notes) is is_reported


@pytest.mark.parametrize("trainer", ["ppo", "sac"])
def test_an_imported_folder_trains_and_plays(trainer, tmp_path, command):
    record = tmp_path / "recorded.jsonl"
    player = make_player(tmp_path, "balance_ball", "--record", str(record))
    text = EXAMPLES["3DBall"].text + EXAMPLES["3DBall_randomize"].text.partition("threaded: false\n")[2]
    tree = yaml.safe_load(text) | {"env_settings": {"env_path": str(player), "num_envs": 2, "timeout_wait": 20}}
    network, hyperparameters = {"normalize": True, "memory": {}}, {"learning_rate": 0.00025, "batch_size": 96}
    tree["behaviors"]["3DBall"] |= {"max_steps": 600, "summary_freq": 200, "network_settings": network}
    tree["behaviors"]["3DBall"] |= {"trainer_type": trainer, "hyperparameters": hyperparameters}
    write(tree)
    command("import-mlagents trainer.yaml")
    quick = {
        "ppo": {"rollout_length": 20},
        "sac": {"learning_starts": 100, "batch_size": 2, "sequence_length": 20, "burn_in_step": 0},
    }
    changes = [f"{trainer}_config.{key}={value}" for key, value in quick[trainer].items()]
    command(f"unity/3DBall -n a --set {' '.join(changes)}")
    counters = RunFolder.find("unity/3DBall", "a").find_latest().counters
    assert counters.env_steps >= 600 and counters.updates > 2
    command("unity/3DBall -n a --run --max_iter 1")
    recorded = record.read_text()
    for name in ("mass", "gravity", "scale", "friction"):
        assert f'"{name}"' in recorded
