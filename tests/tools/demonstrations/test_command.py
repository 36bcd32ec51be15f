"""The commands demonstrations and record, and --run --record."""

from __future__ import annotations

from pathlib import Path

import pytest

import algorithm
from algorithm.adapters import env_episodes
from algorithm.demonstrations import write_recording
from tests.adapters.test_env_episodes import steps_of
from tests.auxiliaries.test_demonstrations import make_player
from tests.builders import make_role


def test_a_file_is_described(command):
    write_recording(Path("a.npz"), {"Red": make_player(make_role()), "Blue": make_player(make_role(size=3), 40)})
    shown = command("demonstrations a.npz").out
    assert all(word in shown for word in ("Red", "Blue", "obs [3]", "one of 3", "10", "200"))
    about = command.json("demonstrations a.npz")["roles"]["Blue"]
    assert (about["episodes"], about["steps"], about["mean_return"]) == (2, 40, 0.0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("demonstrations none.npz", "there is no file none.npz"),
        ("record CartPole-v1 a.txt", "give the name of a new file that ends with .npz"),
        ("record CartPole-v1 a.npz --keys left=1", "--keys left=1: expected a letter and the number"),
        ("record CartPole-v1 a.npz", "CartPole-v1 defines no keys"),
        ("record unity/3dball a.npz", "the keyboard plays environments of GYM"),
        ("gym/cartpole --run --record a.txt", "--record a.txt: it is not a new file"),
        ("gym/cartpole --record a.npz", "--record"),
    ],
)
def test_what_cannot_be_done_is_one_line(command, line, message):
    assert message in command.fail(line)
    assert not Path("a.npz").exists()


def test_a_person_plays_and_another_agent_learns_from_it(command, monkeypatch):
    """The thin path: play, train with what was played, record the trained agent."""

    def play(env, callback, **_):
        steps_of(env, [1, 0] * 100, callback)

    monkeypatch.setattr(env_episodes.play_by_hand, "__defaults__", (play,))
    assert "in player.npz" in command("record gym/cartpole player.npz --keys a=1").out
    given = ["base_config.max_step=300", "demonstration_config.sources=[player.npz]", "goal=null"]
    given += ["auxiliaries={behavior_cloning: {pretraining_updates: 20}}"]
    assert "behavior_cloning: 20 updates before the run" in command(["gym/cartpole", "-n", "a", "--set", *given]).out
    assert "in agent.npz" in command("gym/cartpole -n a --run --record agent.npz").out
    (recorded,) = algorithm.read_demonstrations("agent.npz").values()
    assert len(recorded.episodes) >= 20
