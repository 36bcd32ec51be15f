"""The command init writes folders that train."""

import json
from pathlib import Path

import gymnasium
import pytest
import yaml

from algorithm import load
from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import read_variant
from algorithm.errors import UserError
from algorithm.tools.init.folder import write_folder

NO_EVALUATION = "base_config.evaluate_every=null"
MISSION = "base_config.env_name=tests.adapters.spaced:Mission-v0"
CAMERA = "base_config.env_name=tests.adapters.spaced:Camera-v0"


@pytest.fixture
def init(command):
    """A function that writes a folder with changed settings; it returns the settings, and the text in config.yaml."""

    def write(name, *changes, options=()):
        command(["init", name, *options, *(["--set", *changes] if changes else [])])
        config = Path("envs", name, "config.yaml")
        resolve([(str(config), read_variant(config, "default"))])
        text = config.read_text()
        return yaml.safe_load(text)["default"], text

    return write


def read_nn(name):
    return Path("envs", name, "nn.py").read_text()


def read_result(name):
    return json.loads(Path("runs", name, "a/result.json").read_text())


@pytest.mark.parametrize(
    ("name", "env_name", "solved"),
    [
        ("gym/cart_pole", "CartPole-v1", 475),
        ("gym/acrobot", "Acrobot-v1", -100),
        ("gym/MountainCar", "MountainCar-v0", -110),
    ],
)
def test_a_folder_has_the_id_and_the_goal_of_its_name(name, env_name, solved, init):
    tree, text = init(name)
    assert text.startswith(f"# {env_name}: python main.py {name}\n")
    assert (tree["base_config"]["env_name"], tree["goal"]["return"]) == (env_name, solved)
    config = Path("envs") / name / "config.yaml"
    resolve([(str(config), read_variant(config, "large"))])


def test_a_folder_and_its_variant_train(init, command):
    init("gym/cart_pole")
    command("gym/cart_pole -n a --max_step 400 --agents 2 --set acer_config.learning_starts=100")
    assert read_result("gym/cart_pole")["env_steps"] >= 400
    command("gym/cart_pole -n b -c large --max_step 100")


def test_every_line_has_a_comment_and_spaces_and_reasons_are_described(init):
    _, text = init("gym/acrobot", "base_config.n_envs=3")
    assert "# observes obs: float32 [6]" in text
    assert "# acts with one of 3\n" in text
    settings = [line for line in text.split("# A variant")[0].splitlines() if line.startswith("    ")]
    assert len(settings) > 5 and all("# " in line for line in settings)
    assert '"""' in read_nn("gym/acrobot")
    lines = {line.split(":")[0].strip(): line for line in text.splitlines() if ": " in line}
    assert "factor of the rewards in learning; null: " in lines["reward_scale"]
    assert "Here: rewards of about 1; discounted" in lines["reward_scale"]
    assert "all 999 random actions had the same reward" in lines["action_repeat"]
    assert "ACER learns several times from each step" in lines["algorithm"]
    assert "Here" not in lines["n_envs"]  # which was given


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("gym/pendulum", ["base_config.algorithm=ACER"], ["# acts with [1] float32 from -2 to 2"]),
        (
            "toy/car",
            ["base_config.env_name=MountainCarContinuous-v0", "acer_config.gamma=0.99"],
            ["# acts with [1] float32 from -1 to 1"],
        ),
        ("gym/blackjack", [], ["# observes 0: uint8 [32], one-hot of 32", "# acts with one of 2"]),
        ("gym/taxi", [], ["# observes obs: uint8 [500], one-hot of 500", "# receives the mask action_mask"]),
    ],
)
def test_a_folder_for_any_space_trains(name, changes, expected, init, command):
    _, text = init(name, *changes)
    assert all(line in text for line in expected)
    assert ("std: learned" in text) == ("float32 from" in text)
    short = "acer_config.learning_starts=50 acer_config.batch_size=4 goal=null"
    command(f"{name} -n a --max_step 200 --set {short}")


def test_the_same_seed_writes_the_same_files(init):
    first, second = ((init("gym/acrobot", options=["--force", "--seed", "3"]), read_nn("gym/acrobot")) for _ in "ab")
    assert first == second


def test_an_environment_that_fails_under_random_actions_gets_a_folder_and_a_line(init, command):
    named = "base_config.env_name=tests.adapters.spaced:Fragile-v0"
    shown = command(f"init toy/fragile --set {named} --env_args vectorization_mode=vector_entry_point").out
    assert shown.count("crashed: RuntimeError: a motor is broken, during a play of random actions") == 1
    text = Path("envs/toy/fragile/config.yaml").read_text()
    assert yaml.safe_load(text)["default"]["acer_config"]["reward_normalization"] == "return_std"


def test_a_table_has_no_hidden_layers_and_no_variant_with_more_units(init):
    _, text = init("gym/frozen_lake")
    assert "Mlp" not in read_nn("gym/frozen_lake") and "units" not in text


def test_settings_of_the_command_line_are_written_to_the_folder(init):
    given = ["base_config.env_name=MountainCar-v0", "acer_config.gamma=0.9", "goal=null"]
    tree, _ = init("toy/pole", *given, options=["--agents", "2", "--env_args", "max_episode_steps=50"])
    base = tree["base_config"]
    assert (base["env_name"], base["n_envs"], tree["acer_config"]["gamma"]) == ("MountainCar-v0", 2, 0.9)
    assert base["env_args"] == {"max_episode_steps": 50} and tree["goal"] is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gym/pendulum --set acer_config.std_min=0.6", "std_init 0.5 must be above std_min 0.6"),
        (
            "gym/pendulum --set base_config.algorithm=ACER sac_config.gamma=0.6",
            "--set: sac_config.gamma is for algorithm SAC, not for ACER",
        ),
        ("toy/words --set base_config.env_name=tests.adapters.spaced:Words-v0", "observation 'obs' is Text"),
    ],
)
def test_nothing_is_written_for_settings_that_are_incompatible_and_unsupported_environments(line, message, command):
    assert message in command.fail(f"init {line}")
    assert not Path("envs").exists()


@pytest.mark.parametrize(
    ("changes", "ratio"),
    [([], 1.0), (["base_config.n_envs=8"], 8.0), (["base_config.n_envs=2", "sac_config.rollout_length=3"], 6.0)],
)
def test_sac_has_a_section_with_one_update_for_each_env_step(changes, ratio, init, command):
    tree, _ = init("gym/pendulum", "base_config.algorithm=SAC", *changes)
    assert "acer_config" not in tree
    assert tree["sac_config"]["replay_ratio"] == ratio
    if ratio == 6:
        command(f"gym/pendulum -n a --max_step 96 --set sac_config.learning_starts=0 {NO_EVALUATION}")
        result = read_result("gym/pendulum")
        assert result["updates"] == pytest.approx(result["env_steps"], abs=ratio)


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
    ],
)
def test_the_type_of_an_environment_follows_from_its_id_or_its_group(package, name, env_name, env_type, expected, init):
    pytest.importorskip(package)
    base = init(name, *([f"base_config.env_name={env_name}"] if env_name else []))[0]["base_config"]
    assert (base["env_type"], base["env_name"]) == (env_type, expected)


def test_several_agents_train_in_a_folder_that_init_wrote(init, command):
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    _, text = init("zoo/rps", "base_config.env_name=classic/rps_v2")
    assert "# player_0, player_1:\n# observes obs: uint8 [4], one-hot of 4" in text
    command("zoo/rps -n a --max_step 3000 --agents 4")
    result = read_result("zoo/rps")
    assert set(result["returns"]) == {"player_0", "player_1"} == set(result["evaluation"])
    assert result["updates"] > 50
    command("zoo/rps -n a --resume --max_step 3100")
    command("zoo/rps -n a --run")


def test_no_nn_is_written_for_roles_that_need_different_networks(init, command):
    pytest.importorskip("pettingzoo")
    named = ["base_config.env_type=PETTINGZOO", "base_config.env_name=tests.adapters.parallel:Race"]
    _, text = init("zoo/race", *named, "base_config.env_args={continuous: true}")
    assert not Path("envs/zoo/race/nn.py").exists()
    assert "# ant:\n" in text and "# bee:\n" in text and "large:" not in text
    command("zoo/race -n a --max_step 300")


def test_unsupported_observations_are_ignored(init, command):
    assert init("grid/mission", MISSION)[0]["base_config"]["ignore_observations"] == ["mission"]
    assert "Vector(normalize=" in read_nn("grid/mission")
    command("grid/mission -n a --max_step 200")
    obs, _ = gymnasium.make("Mission-v0").reset(seed=0)
    assert "mission" in obs
    assert load("runs/grid/mission/a").act(obs) in (0, 1)


def test_large_color_images_become_small_and_gray(init, command):
    pytest.importorskip("cv2")
    tree, text = init("seen/camera", CAMERA)
    assert tree["base_config"]["env_wrappers"] == [
        {"gymnasium.wrappers:ResizeObservation": {"shape": [42, 42]}},
        "gymnasium.wrappers:GrayscaleObservation",
    ]
    assert "# observes obs: uint8 [1, 42, 42]" in text
    small = "acer_config.rollout_length=4 replay_config.capacity=100 acer_config.learning_starts=50"
    command(f"seen/camera -n a --max_step 12 --agents 1 --set {small} {NO_EVALUATION}")
    assert "# observes obs: uint8 [3, 90, 96]" in init("seen/colors", CAMERA, "base_config.env_wrappers=[]")[1]


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
def test_a_run_without_a_goal_has_evaluations(changes, goal, every, init):
    tree, _ = init("toy/any", *changes)
    assert (tree["goal"]["return"], tree["base_config"]["evaluate_every"]) == (goal, every)


def test_a_missing_limit_of_steps_is_reported(init, command):
    line = "registers no limit of steps per episode"
    assert line in command(f"init grid/mission --set {MISSION}").out
    assert line in command(f"grid/mission -n a --max_step 20 --set {NO_EVALUATION}").out
    assert line not in command(f"init grid/limited --set {MISSION} base_config.max_step_each_iter=9").out
    assert line not in command(f"grid/limited -n a --max_step 20 --set {NO_EVALUATION}").out
    assert line not in command(f"init grid/args --set {MISSION} --env_args max_episode_steps=9").out
    assert line not in command("init gym/acrobot").out


def test_a_folder_is_never_overwritten_and_force_replaces_two_files(init, command):
    folder = Path("envs/gym/acrobot")
    folder.mkdir(parents=True)
    line = command.fail("init gym/acrobot")
    assert "was not changed" in line and "replace its config.yaml and nn.py with --force" in line
    assert list(folder.iterdir()) == []
    for name in ("env.py", "nn.py"):
        (folder / name).write_text("# mine")
    tree, _ = init("gym/acrobot", "acer_config.gamma=0.9", options=["--force"])
    assert tree["acer_config"]["gamma"] == 0.9
    assert "blueprint" in (folder / "nn.py").read_text()
    assert (folder / "env.py").read_text() == "# mine"


def forget_ids(monkeypatch, name):
    """Remove registered ids in a name, as before any test has imported their module."""
    for spec in [spec for spec in gymnasium.registry if spec in name]:
        monkeypatch.delitem(gymnasium.registry, spec)


@pytest.mark.parametrize(
    ("env_name", "instead"),
    [
        ("MiniGrid-Empty-5x5-v0", "use minigrid:MiniGrid-Empty-5x5-v0"),
        ("HopperBulletEnv-v0", "use pybullet_envs_gymnasium:HopperBulletEnv-v0"),
    ],
)
def test_an_id_that_a_module_registers_is_suggested_with_the_module(env_name, instead, command, monkeypatch):
    forget_ids(monkeypatch, env_name)
    assert instead in command.fail(f"init toy/bare --set base_config.env_name={env_name}")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("toy/MiniGrid-Empty-5x5-v0", "minigrid:MiniGrid-Empty-5x5-v0"),
        ("toy/HopperBulletEnv-v0", "pybullet_envs_gymnasium:HopperBulletEnv-v0"),
        ("sisl/pursuit_v5", "sisl/pursuit_v5"),
        ("toy/Nothing", "ID"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_setting_that_names_the_id(name, instead, command, monkeypatch):
    forget_ids(monkeypatch, name)
    assert command.fail(f"init {name}").endswith(f"name one with --set base_config.env_name={instead}\n")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("HalfCheetah-v5", "init gym/half_cheetah --set base_config.env_name=HalfCheetah-v5"),
        (
            "minigrid:MiniGrid-Empty-5x5-v0",
            "init minigrid/mini_grid_empty_5x5 --set base_config.env_name=minigrid:MiniGrid-Empty-5x5-v0",
        ),
    ],
)
def test_an_id_is_an_error_with_the_full_command(name, line):
    with pytest.raises(UserError) as error:
        write_folder(name, [])
    assert str(error.value) == f"init {name}: expected group/name; for this id: python main.py {line}"
