"""`--init` writes folders that train."""

import json
from pathlib import Path

import pytest
import yaml

import main
from algorithm.experiment.settings import read_variant, resolve


@pytest.mark.parametrize(
    ("name", "env_name", "solved"),
    [
        ("gym/cart_pole", "CartPole-v1", 475),
        ("gym/acrobot", "Acrobot-v1", -100),
        ("gym/MountainCar", "MountainCar-v0", -110),
    ],
)
def test_a_folder_that_init_wrote_trains(name, env_name, solved, capsys):
    assert main.main(["--init", name]) == 0
    assert f"python main.py {name}" in capsys.readouterr().out
    config = Path("envs") / name / "config.yaml"
    tree = yaml.safe_load(config.read_text())["default"]
    assert tree["base_config"]["env_name"] == env_name
    assert tree["goal"]["return"] == solved
    for variant in ("default", "large"):
        resolve([(str(config), read_variant(config, variant))])
    short = ["--max_step", "400", "--agents", "2", "--set", "acer_config.replay_start=100", "base_config.log_every=200"]
    assert main.main([name, "-n", "a", *short]) == 0
    assert main.main([name, "-n", "b", "-c", "large", "--max_step", "100"]) == 0
    assert json.loads(Path("runs", name, "a", "result.json").read_text())["env_steps"] >= 400


def test_every_line_is_explained_and_the_spaces_are_told(capsys):
    assert main.main(["--init", "gym/acrobot"]) == 0
    text = Path("envs/gym/acrobot/config.yaml").read_text()
    assert "# observes obs: float32 [6]" in text
    assert "# acts with one of 3\n" in text
    settings = [line for line in text.split("# A variant")[0].splitlines() if line.startswith("    ")]
    assert len(settings) > 5 and all("# " in line for line in settings)
    assert '"""' in Path("envs/gym/acrobot/nn.py").read_text()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gym/pendulum", [], ["# acts with [1] float32 from -2 to 2"]),
        (
            "toy/car",
            ["--set", "base_config.env_name=MountainCarContinuous-v0"],
            ["# acts with [1] float32 from -1 to 1"],
        ),
        ("gym/blackjack", [], ["# observes 0: uint8 [32], one-hot of 32", "# acts with one of 2"]),
        ("gym/taxi", [], ["# observes obs: uint8 [500], one-hot of 500", "# is told what is allowed by action_mask"]),
    ],
)
def test_a_folder_for_any_space_trains(name, options, said):
    assert main.main(["--init", name, *options]) == 0
    text = Path("envs", name, "config.yaml").read_text()
    assert [line for line in said if line not in text] == []
    assert ("std: learned" in text) == ("float32 from" in text)
    short = ["--max_step", "200", "--set", "acer_config.replay_start=50", "acer_config.batch_size=4", "goal=null"]
    assert main.main([name, "-n", "a", *short]) == 0


def test_what_is_asked_for_has_to_fit_what_is_suggested(capsys):
    assert main.main(["--init", "gym/pendulum", "--set", "acer_config.std_floor=0.6"]) == 2
    assert "std_init 0.5 must be above std_floor 0.6" in capsys.readouterr().err
    assert main.main(["--init", "gym/pendulum", "--set", "sac_config.gamma=0.6"]) == 2
    assert "--set: sac_config.gamma is for algorithm SAC, not for ACER" in capsys.readouterr().err
    assert not Path("envs/gym").exists()


def test_what_is_set_on_the_command_line_stands_in_the_folder():
    asked = ["--set", "base_config.env_name=MountainCar-v0", "acer_config.gamma=0.9", "goal=null", "--agents", "2"]
    assert main.main(["--init", "toy/pole", *asked, "--env_args", "max_episode_steps=50"]) == 0
    config = Path("envs/toy/pole/config.yaml")
    settings = resolve([(str(config), read_variant(config, "default"))])
    assert (settings.base.env_name, settings.base.n_envs, settings.agent.gamma) == ("MountainCar-v0", 2, 0.9)
    assert settings.base.env_args == {"max_episode_steps": 50}
    assert settings.goal is None


def test_nothing_is_written_where_the_environment_cannot_be_served(capsys):
    words = "base_config.env_name=tests.adapters.spaced:Words-v0"
    assert main.main(["--init", "toy/words", "--set", words]) == 2
    assert "observation 'obs' is Text" in capsys.readouterr().err
    assert not Path("envs/toy").exists()


def test_a_folder_is_never_overwritten(capsys):
    folder = Path("envs/gym/acrobot")
    folder.mkdir(parents=True)
    assert main.main(["--init", "gym/acrobot"]) == 2
    assert "left as it is" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_another_algorithm_is_suggested_nothing_of_acer(capsys):
    assert main.main(["--init", "gym/pendulum", "--set", "base_config.algorithm=SAC"]) == 0
    text = Path("envs/gym/pendulum/config.yaml").read_text()
    assert "algorithm: SAC" in text and "acer_config" not in text
