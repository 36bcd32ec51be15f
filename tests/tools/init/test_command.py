"""The command init writes folders that train."""

import json
from pathlib import Path

import gymnasium
import pytest
import yaml

from algorithm import load
from algorithm.cli import main
from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import read_variant
from algorithm.errors import UserError
from algorithm.tools.init.folder import write_folder

NO_EVALUATION = "base_config.evaluate_every=null"
MISSION = "base_config.env_name=tests.adapters.spaced:Mission-v0"


@pytest.mark.parametrize(
    ("name", "env_name", "solved"),
    [
        ("gym/cart_pole", "CartPole-v1", 475),
        ("gym/acrobot", "Acrobot-v1", -100),
        ("gym/MountainCar", "MountainCar-v0", -110),
    ],
)
def test_a_folder_has_the_id_and_the_goal_of_its_name(name, env_name, solved, capsys):
    tree = write(name)
    assert f"python main.py {name}" in capsys.readouterr().out
    assert (tree["base_config"]["env_name"], tree["goal"]["return"]) == (env_name, solved)
    config = Path("envs") / name / "config.yaml"
    resolve([(str(config), read_variant(config, "large"))])


def test_a_folder_and_its_variant_train():
    write("gym/cart_pole")
    short = ["--max_step", "400", "--agents", "2", "--set", "acer_config.learning_starts=100"]
    train("gym/cart_pole", *short, "base_config.log_every=200")
    assert json.loads(Path("runs/gym/cart_pole/a/result.json").read_text())["env_steps"] >= 400
    assert main.main(["gym/cart_pole", "-n", "b", "-c", "large", "--max_step", "100"]) == 0


def write(name, *changes):
    """Write a folder with changed settings, and return the settings in it."""
    assert main.main(["init", name, *(["--set", *changes] if changes else [])]) == 0
    return written(name)


def train(name, *options):
    """Train a run in a folder that init wrote."""
    assert main.main([name, "-n", "a", *options]) == 0


def test_every_line_has_a_comment_and_the_spaces_are_described(capsys):
    assert main.main(["init", "gym/acrobot"]) == 0
    text = Path("envs/gym/acrobot/config.yaml").read_text()
    assert "# observes obs: float32 [6]" in text
    assert "# acts with one of 3\n" in text
    settings = [line for line in text.split("# A variant")[0].splitlines() if line.startswith("    ")]
    assert len(settings) > 5 and all("# " in line for line in settings)
    assert '"""' in Path("envs/gym/acrobot/nn.py").read_text()


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("gym/pendulum", ["--set", "base_config.algorithm=ACER"], ["# acts with [1] float32 from -2 to 2"]),
        (
            "toy/car",
            ["--set", "base_config.env_name=MountainCarContinuous-v0", "acer_config.gamma=0.99"],
            ["# acts with [1] float32 from -1 to 1"],
        ),
        ("gym/blackjack", [], ["# observes 0: uint8 [32], one-hot of 32", "# acts with one of 2"]),
        ("gym/taxi", [], ["# observes obs: uint8 [500], one-hot of 500", "# receives the mask action_mask"]),
    ],
)
def test_a_folder_for_any_space_trains(name, options, expected):
    assert main.main(["init", name, *options]) == 0
    text = Path("envs", name, "config.yaml").read_text()
    assert [line for line in expected if line not in text] == []
    assert ("std: learned" in text) == ("float32 from" in text)
    short = ["--max_step", "200", "--set", "acer_config.learning_starts=50", "acer_config.batch_size=4", "goal=null"]
    assert main.main([name, "-n", "a", *short]) == 0


def test_the_comments_state_why_a_value_was_chosen(capsys):
    assert main.main(["init", "gym/acrobot", "--set", "base_config.n_envs=3"]) == 0
    text = Path("envs/gym/acrobot/config.yaml").read_text()
    lines = {line.split(":")[0].strip(): line for line in text.splitlines() if ": " in line}
    assert "factor of the rewards in learning; null: " in lines["reward_scale"]
    assert "Here: rewards of about 1; discounted" in lines["reward_scale"]
    assert "all 999 random actions had the same reward" in lines["action_repeat"]
    assert "ACER learns several times from each step" in lines["algorithm"]
    assert "Here" not in lines["n_envs"]  # which was given


def test_the_same_seed_writes_the_same_files():
    texts = []
    for _ in range(2):
        assert main.main(["init", "gym/acrobot", "--force", "--seed", "3"]) == 0
        texts.append([path.read_text() for path in sorted(Path("envs/gym/acrobot").iterdir())])
    assert texts[0] == texts[1]


def test_an_environment_that_fails_under_random_actions_gets_a_folder_and_a_line(capsys):
    named = "base_config.env_name=tests.adapters.fragile:Fragile-v0"
    mode = ["--env_args", "vectorization_mode=vector_entry_point"]
    assert main.main(["init", "toy/fragile", "--set", named, *mode]) == 0
    assert (
        capsys.readouterr().out.count("crashed: RuntimeError: a motor is broken, during a play of random actions") == 1
    )
    assert written("toy/fragile")["acer_config"]["reward_normalization"] == "return_std"


def test_a_table_has_no_hidden_layers_and_no_variant_with_more_units():
    write("gym/frozen_lake")
    assert "Mlp" not in Path("envs/gym/frozen_lake/nn.py").read_text()
    assert "units" not in Path("envs/gym/frozen_lake/config.yaml").read_text()


def test_given_and_suggested_settings_must_be_compatible(capsys):
    assert main.main(["init", "gym/pendulum", "--set", "acer_config.std_min=0.6"]) == 2
    assert "std_init 0.5 must be above std_min 0.6" in capsys.readouterr().err
    words = ["base_config.algorithm=ACER", "sac_config.gamma=0.6"]
    assert main.main(["init", "gym/pendulum", "--set", *words]) == 2
    assert "--set: sac_config.gamma is for algorithm SAC, not for ACER" in capsys.readouterr().err
    assert not Path("envs/gym").exists()


def test_settings_of_the_command_line_are_written_to_the_folder():
    asked = ["--set", "base_config.env_name=MountainCar-v0", "acer_config.gamma=0.9", "goal=null", "--agents", "2"]
    assert main.main(["init", "toy/pole", *asked, "--env_args", "max_episode_steps=50"]) == 0
    config = Path("envs/toy/pole/config.yaml")
    settings = resolve([(str(config), read_variant(config, "default"))])
    assert (settings.base.env_name, settings.base.n_envs, settings.agent.gamma) == ("MountainCar-v0", 2, 0.9)
    assert settings.base.env_args == {"max_episode_steps": 50}
    assert settings.goal is None


def test_nothing_is_written_for_an_unsupported_environment(capsys):
    words = "base_config.env_name=tests.adapters.spaced:Words-v0"
    assert main.main(["init", "toy/words", "--set", words]) == 2
    assert "observation 'obs' is Text" in capsys.readouterr().err
    assert not Path("envs/toy").exists()


def test_a_folder_is_never_overwritten(capsys):
    folder = Path("envs/gym/acrobot")
    folder.mkdir(parents=True)
    assert main.main(["init", "gym/acrobot"]) == 2
    assert "was not changed" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "ratio"),
    [
        ([], 1.0),
        (["base_config.n_envs=8"], 8.0),
        (["base_config.n_envs=2", "sac_config.rollout_length=3"], 6.0),
    ],
)
def test_sac_has_a_section_with_one_update_for_each_env_step(changes, ratio):
    tree = write("gym/pendulum", "base_config.algorithm=SAC", *changes)
    assert "acer_config" not in tree
    assert tree["sac_config"]["replay_ratio"] == ratio
    if ratio == 6:
        train("gym/pendulum", "--max_step", "96", "--set", "sac_config.learning_starts=0", NO_EVALUATION)
        result = json.loads(Path("runs/gym/pendulum/a/result.json").read_text())
        assert result["updates"] == pytest.approx(result["env_steps"], abs=ratio)


def written(name):
    """Return the settings of the folder that init wrote."""
    config = Path("envs", name, "config.yaml")
    resolve([(str(config), read_variant(config, "default"))])
    return yaml.safe_load(config.read_text())["default"]


@pytest.mark.parametrize(
    ("package", "name", "env_name", "env_type", "expected"),
    [
        ("ale_py", "atari/freeway", "ALE/Freeway-v5", "ATARI", "ALE/Freeway-v5"),
        ("ale_py", "atari/freeway", None, "ATARI", "freeway"),
        ("shimmy", "dm/walk", "dm_control/walker-walk-v0", "DM_CONTROL", "dm_control/walker-walk-v0"),
        ("shimmy", "dm_control/walker_walk", None, "DM_CONTROL", "walker_walk"),
        ("minatar", "small/freeway", "MinAtar/Freeway-v1", "GYM", "MinAtar/Freeway-v1"),
        ("minatar", "minatar/space_invaders", None, "GYM", "MinAtar/SpaceInvaders-v1"),
        ("minigrid", "minigrid/empty", "minigrid:MiniGrid-Empty-5x5-v0", "GYM", "minigrid:MiniGrid-Empty-5x5-v0"),
        ("pettingzoo", "zoo/rps", "classic/rps_v2", "PETTINGZOO", "classic/rps_v2"),
        (
            "pybullet_envs_gymnasium",
            "bullet/hopper",
            "pybullet_envs_gymnasium:HopperBulletEnv-v0",
            "GYM",
            "pybullet_envs_gymnasium:HopperBulletEnv-v0",
        ),
    ],
)
def test_the_type_of_an_environment_follows_from_its_id_or_its_group(package, name, env_name, env_type, expected):
    pytest.importorskip(package)
    base = write(name, *([f"base_config.env_name={env_name}"] if env_name else []))["base_config"]
    assert (base["env_type"], base["env_name"]) == (env_type, expected)


def test_several_agents_train_in_a_folder_that_init_wrote():
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    write("zoo/rps", "base_config.env_name=classic/rps_v2")
    assert (
        "# player_0, player_1:\n# observes obs: uint8 [4], one-hot of 4" in Path("envs/zoo/rps/config.yaml").read_text()
    )
    train("zoo/rps", "--max_step", "3000", "--agents", "4")
    result = json.loads(Path("runs/zoo/rps/a/result.json").read_text())
    assert set(result["returns"]) == {"player_0", "player_1"} == set(result["evaluation"])
    assert result["updates"] > 50
    train("zoo/rps", "--resume", "--max_step", "3100")
    train("zoo/rps", "--run")


def test_no_nn_is_written_for_roles_that_need_different_networks():
    pytest.importorskip("pettingzoo")
    named = ["base_config.env_type=PETTINGZOO", "base_config.env_name=tests.adapters.parallel:make"]
    write("zoo/race", *named, "base_config.env_args={continuous: true}")
    assert not Path("envs/zoo/race/nn.py").exists()
    text = Path("envs/zoo/race/config.yaml").read_text()
    assert "# ant:\n" in text and "# bee:\n" in text and "large:" not in text
    train("zoo/race", "--max_step", "300")


def test_unsupported_observations_are_ignored():
    assert write("grid/mission", MISSION)["base_config"]["ignore_observations"] == ["mission"]
    assert "Vector(normalize=True)" in Path("envs/grid/mission/nn.py").read_text()
    train("grid/mission", "--max_step", "200")
    obs, _ = gymnasium.make("Mission-v0").reset(seed=0)
    assert "mission" in obs
    assert load("runs/grid/mission/a").act(obs) in (0, 1)


def test_large_color_images_become_small_and_gray():
    pytest.importorskip("cv2")
    named = "base_config.env_name=tests.adapters.spaced:Camera-v0"
    assert write("seen/camera", named)["base_config"]["env_wrappers"] == [
        {"gymnasium.wrappers:ResizeObservation": {"shape": [84, 84]}},
        "gymnasium.wrappers:GrayscaleObservation",
    ]
    assert "# observes obs: uint8 [1, 84, 84]" in Path("envs/seen/camera/config.yaml").read_text()
    small = ["acer_config.rollout_length=4", "replay_config.capacity=100", "acer_config.learning_starts=50"]
    train("seen/camera", "--max_step", "12", "--agents", "1", "--set", *small, NO_EVALUATION)
    write("seen/colors", named, "base_config.env_wrappers=[]")
    assert "# observes obs: uint8 [3, 90, 96]" in Path("envs/seen/colors/config.yaml").read_text()


@pytest.mark.parametrize(
    ("changes", "goal", "every"),
    [
        (["base_config.env_name=CartPole-v1"], 475, None),
        (["base_config.env_name=Pendulum-v1"], None, 50000),
        (["base_config.env_name=Pendulum-v1", "base_config.max_step=8000"], None, 400),
        (["base_config.env_name=Pendulum-v1", "goal.return=-200"], -200, None),
        (["base_config.env_name=Pendulum-v1", "base_config.evaluate_every=70"], None, 70),
    ],
)
def test_a_run_without_a_goal_has_evaluations(changes, goal, every):
    tree = write("toy/any", *changes)
    assert (tree["goal"]["return"], tree["base_config"]["evaluate_every"]) == (goal, every)


def test_a_missing_limit_of_steps_is_reported(capsys):
    write("grid/mission", MISSION)
    assert "registers no limit of steps per episode" in capsys.readouterr().out
    train("grid/mission", "--max_step", "20", "--set", NO_EVALUATION)
    assert "registers no limit of steps per episode" in capsys.readouterr().out
    write("grid/limited", MISSION, "base_config.max_step_each_iter=9")
    train("grid/limited", "--max_step", "20", "--set", NO_EVALUATION)
    assert main.main(["init", "grid/args", "--set", MISSION, "--env_args", "max_episode_steps=9"]) == 0
    write("gym/acrobot")
    assert "registers no limit" not in capsys.readouterr().out


def test_force_replaces_the_two_files_and_leaves_the_others(capsys):
    assert main.main(["init", "gym/acrobot"]) == 0
    folder = Path("envs/gym/acrobot")
    (folder / "env.py").write_text("# mine")
    (folder / "nn.py").write_text("# mine")
    assert main.main(["init", "gym/acrobot"]) == 2
    assert "replace its config.yaml and nn.py with --force" in capsys.readouterr().err
    assert main.main(["init", "gym/acrobot", "--force", "--set", "acer_config.gamma=0.9"]) == 0
    assert written("gym/acrobot")["acer_config"]["gamma"] == 0.9
    assert "blueprint" in (folder / "nn.py").read_text()
    assert (folder / "env.py").read_text() == "# mine"


@pytest.mark.parametrize(
    ("env_name", "instead"),
    [
        ("MiniGrid-Empty-5x5-v0", "use minigrid:MiniGrid-Empty-5x5-v0"),
        ("HopperBulletEnv-v0", "use pybullet_envs_gymnasium:HopperBulletEnv-v0"),
    ],
)
def test_an_id_that_a_module_registers_is_suggested_with_the_module(env_name, instead, capsys, monkeypatch):
    monkeypatch.delitem(gymnasium.registry, env_name, raising=False)  # as before any test has imported its module
    assert main.main(["init", "toy/bare", "--set", f"base_config.env_name={env_name}"]) == 2
    assert instead in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("toy/MiniGrid-Empty-5x5-v0", "minigrid:MiniGrid-Empty-5x5-v0"),
        ("toy/HopperBulletEnv-v0", "pybullet_envs_gymnasium:HopperBulletEnv-v0"),
        ("sisl/pursuit_v5", "sisl/pursuit_v5"),
        ("toy/Nothing", "ID"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_setting_that_names_the_id(name, instead, capsys, monkeypatch):
    for spec in [spec for spec in gymnasium.registry if spec in name]:  # as before any test has imported its module
        monkeypatch.delitem(gymnasium.registry, spec)
    assert main.main(["init", name]) == 2
    assert capsys.readouterr().err.endswith(f"name one with --set base_config.env_name={instead}\n")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("HalfCheetah-v5", "init gym/half_cheetah --set base_config.env_name=HalfCheetah-v5"),
        (
            "minigrid:MiniGrid-Empty-5x5-v0",
            "init minigrid/mini_grid_empty_5x5 --set base_config.env_name=minigrid:MiniGrid-Empty-5x5-v0",
        ),
    ],
)
def test_an_id_is_an_error_with_the_full_command(name, command):
    with pytest.raises(UserError) as error:
        write_folder(name, [])
    assert str(error.value) == f"init {name}: expected group/name; for this id: python main.py {command}"
