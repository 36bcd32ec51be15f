"""Videos show the best, the median and the worst episode, all of their steps, or a line states why there are none."""

import os
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from algorithm import train
from algorithm.adapters.adapter import EnvironmentStartError, Recording, UnsupportedEnvironment
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.recording import choose_offscreen_backends
from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from algorithm.runs import playing
from algorithm.runs.playing import GIF_SECONDS, VideoRecorder, _keep_video, choose_episodes, play, record_videos
from algorithm.training.evaluator import Evaluator
from algorithm.training.progress import Counters
from algorithm.training.timer import Timer
from tests.adapters.configs import config
from tests.adapters.spaced import Pictured
from tests.doubles import ParityAgent
from tests.task_folder import write_task

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="the extra video is not installed")


def open_recorded(make, n_envs, recording):
    return GymAdapter(config(make, n_envs, render_mode="rgb_array", recording=recording))


@pytest.fixture(autouse=True)
def _no_fork(monkeypatch):
    """Start the reader of videos without fork, after which threads of gRPC may write to the output of the reader."""
    monkeypatch.setenv("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")


@pytest.fixture
def no_gifs(monkeypatch):
    """Write no gif, which takes a while."""
    monkeypatch.setattr(playing, "_keep_video", lambda source, video: source.replace(video))


def record(folder, make=Pictured, n_envs=5, episodes=5):
    lines = []
    agent = ParityAgent(rollout_length=4)

    def play(recording):
        with closing(open_recorded(make, n_envs, recording)) as adapter:
            return Evaluator(adapter, lambda role: agent, True).play(episodes, 3)

    return record_videos(play, folder / "videos" / "100", lines.append)["agent"], lines


def read_brightness(path):
    """Return the number of the step that each frame shows, read without moviepy, which drops a frame at the end."""
    frames = imageio_ffmpeg.read_frames(str(path), output_params=["-fps_mode", "passthrough"])
    next(frames)  # a record of the format
    return [np.frombuffer(frame, np.uint8).mean() / 20 for frame in frames]


def read_steps(folder):
    """Return the number of steps in each video of a folder."""
    return {path.stem.rpartition("-")[2]: len(read_brightness(path)) - 1 for path in folder.glob("*.mp4")}


def test_best_median_and_worst_are_chosen():
    assert choose_episodes([3.0, 1.0, 2.0]) == {"best": 0, "worst": 1, "median": 2}
    lower = {"best": 1, "worst": 0, "median": 3}  # the lower one of the two in the middle
    assert choose_episodes([1.0, 4.0, 3.0, 2.0]) == lower
    assert choose_episodes([1.0, 2.0]) == {"best": 1, "worst": 0}
    assert choose_episodes([1.0]) == {"best": 0}


def test_videos_have_a_frame_for_each_observation_of_the_chosen_episodes(tmp_path):
    result, lines = record(tmp_path, n_envs=2, episodes=7)
    expected = {label: result.lengths[number] for label, number in choose_episodes(result.returns).items()}
    assert len(set(expected.values())) == 3
    for label, length in expected.items():
        brightness = read_brightness(tmp_path / "videos" / f"100-{label}.mp4")
        np.testing.assert_allclose(brightness, range(length + 1), atol=0.3)
        assert (tmp_path / "videos" / f"100-{label}.gif").stat().st_size > 0
        assert any(f"{label} episode" in line and f"{length} steps" in line for line in lines)
    assert len(list((tmp_path / "videos").iterdir())) == 6  # nothing else is left
    assert not any("does not repeat" in line for line in lines)


def test_a_run_records_its_evaluations_and_playing_repeats_them(no_gifs):
    base = {"max_step": 60, "evaluate_every": 60, "n_envs": 2}
    goal = {"return": 99.0, "evaluation_episodes": 4}
    settings = {"base_config": base, "report_config": {"video_every": 1, "report": False}, "goal": goal}
    result = train(Pictured, settings=settings, algorithm="A2C")
    folder, shown = RunFolder(result.folder), []
    steps = read_steps(folder.path / "videos")
    assert steps["best"] >= steps["median"] >= steps["worst"]

    def show(activity, done, planned, env_steps):
        shown.append((activity, done, planned))

    folder.make_env, n = Pictured, len(result.evaluation["agent"].returns)
    played = play(folder.load_settings(), folder, n, True, ckpt="60", log=[].append, video=True, show=show)
    assert played["agent"].returns == result.evaluation["agent"].returns
    assert {activity: done for activity, done, _ in shown} == {"playing": n, "recording videos": n}
    assert steps == read_steps(folder.path / "videos")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
@pytest.mark.parametrize("seconds", [3, 14])
def test_a_gif_shows_the_first_seconds_and_no_file_is_written_through_a_link(tmp_path, seconds):
    from moviepy import ColorClip

    (victim := tmp_path / "victim").write_text("keep")
    (tmp_path / "folder").mkdir()
    (tmp_path / "best.mp4").symlink_to(tmp_path / "folder")
    (tmp_path / "best.gif").symlink_to(victim)
    clip = ColorClip((64, 48), color=(200, 40, 40), duration=seconds)
    clip.write_videofile(str(tmp_path / "episode.mp4"), fps=10, logger=None)
    _keep_video(tmp_path / "episode.mp4", tmp_path / "best.mp4")
    assert not (tmp_path / "episode.mp4").exists()
    assert victim.read_text() == "keep" and not list((tmp_path / "folder").iterdir())
    for name, expected in (("best.mp4", seconds), ("best.gif", min(seconds, GIF_SECONDS))):
        assert not (tmp_path / name).is_symlink()
        _, duration = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / name))
        assert duration == pytest.approx(expected, abs=0.2)


class Dim(Pictured):
    """Its pictures are small and their pixels are fractions of the full brightness, like those of MinAtar."""

    def render(self):
        picture = np.zeros((10, 8, 3), np.float32)
        picture[2:4, 4:6] = [1, 0.5, 0]
        return picture


def test_small_pictures_of_fractions_are_visible(tmp_path, no_gifs):
    record(tmp_path, make=Dim)
    frames = imageio_ffmpeg.read_frames(str(tmp_path / "videos" / "100-best.mp4"))
    width, height = next(frames)["size"]
    assert (width, height) == (128, 160)
    picture = np.frombuffer(next(frames), np.uint8).reshape(height, width, 3)
    np.testing.assert_allclose(picture[40:56, 72:88].mean((0, 1)), [255, 128, 0], atol=12)
    assert picture[80:].max() < 20


def test_an_environment_that_does_not_repeat_its_episodes_is_reported(tmp_path, no_gifs):
    _, lines = record(tmp_path, make=partial(Pictured, noise=True))
    assert all("the environment does not repeat its episodes" in line for line in lines)


def test_the_reset_that_looks_for_masks_is_no_episode(tmp_path):
    """Discrete actions may have masks, so that the adapter resets once before the evaluation."""
    recording = Recording(tmp_path, {0: [0]})
    adapter = open_recorded(Pictured, 1, recording)
    step = adapter.reset(5)["agent"]
    length = 0
    while not length or not step.first[0]:
        step, length = adapter.step({"agent": np.zeros((1, 1), np.float32)})["agent"], length + 1
    adapter.close()
    np.testing.assert_allclose(read_brightness(recording.get_path(0, 0)), range(length), atol=0.3)


class Shown(Pictured):
    metadata = {"render_modes": ["human"]}

    def __init__(self, render_mode=None):
        super().__init__("human")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pictured("rgb_array"), "no parameter render_mode"),
        (Shown, "its render modes are human, without rgb_array"),
        (None, r"videos need the package moviepy: pip install .*\[video\]"),
    ],
)
def test_an_environment_without_pictures_and_a_missing_package_are_one_line(tmp_path, make, message, monkeypatch):
    if make is None:
        monkeypatch.setattr("algorithm.adapters.recording.find_spec", lambda name: None)
    with pytest.raises(UnsupportedEnvironment, match=message):
        record(tmp_path, make=make or Pictured)


@pytest.fixture
def without_display(monkeypatch):
    """Let the system be Linux without a display, and without a choice of how to render."""
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # also what the test sets is removed at its end


def test_pictures_that_cannot_be_rendered_are_an_error_of_the_start(tmp_path, monkeypatch, without_display):
    class Dark(Pictured):
        def render(self):
            raise RuntimeError("no display")

    advice = "; without a display, MuJoCo and the Control Suite need EGL or OSMesa"
    monkeypatch.setenv("MUJOCO_GL", "egl")
    for display, end in ((":0", ""), ("", advice)):
        monkeypatch.setenv("DISPLAY", display)
        error = f"cannot render pictures: RuntimeError: no display{end}"
        with pytest.raises(EnvironmentStartError, match=error) as raised:
            record(tmp_path, make=Dark)
        assert ("OSMesa" in str(raised.value)) == bool(end) and "\n" not in str(raised.value)


# Installed libraries and an environment variable, with the backend of MuJoCo.
BACKENDS = ["EGL OSMesa | | egl", "OSMesa | | osmesa", "| |", "EGL | DISPLAY=:0 |", "EGL | MUJOCO_GL=glfw | glfw"]


@pytest.mark.parametrize("row", BACKENDS)
def test_offscreen_backends_are_chosen_only_without_a_display(row, monkeypatch, without_display):
    libraries, variable, expected = (part.strip() for part in row.split("|"))
    monkeypatch.setattr("algorithm.adapters.recording.find_library", lambda name: name in libraries.split())
    if variable:
        monkeypatch.setenv(*variable.split("="))
    choose_offscreen_backends()
    assert os.environ.get("MUJOCO_GL", "") == expected
    assert os.environ.get("SDL_VIDEODRIVER") == (None if "DISPLAY" in variable else "dummy")


def test_every_nth_evaluation_is_recorded_until_that_fails(monkeypatch):
    record = Mock(side_effect=[None, None, UserError("nothing to see")])
    monkeypatch.setattr(playing, "record_videos", record)
    settings, lines = resolve([("test", {"report_config": {"video_every": 2}})]), []
    training, folder = SimpleNamespace(timer=Timer()), SimpleNamespace(path=Path("run"))
    recorder = VideoRecorder(settings, None, training, Counters(env_steps=7), folder, lines.append)
    for evaluation in range(1, 11):
        recorder.on_evaluation({})
        assert record.call_count == min(evaluation // 2, 3)
    assert lines == ["no videos (report_config.video_every): nothing to see"]
    assert record.call_args.args[1] == Path("run/videos/7")


IMPORTED = "import os\nraise ValueError(f'imported with {os.environ.get(\"MUJOCO_GL\")}')\n"
TASK = "default: {base_config: {env_type: GYM, env_name: env.py, max_step: 100, evaluate_every: 50}}\n"


def test_the_backend_is_chosen_before_an_environment_is_imported(monkeypatch, without_display):
    """The Control Suite reads it when it is imported, by the training environments if these are opened first."""
    monkeypatch.setattr("algorithm.adapters.recording.find_library", lambda name: name == "EGL")
    folder = write_task(TASK)
    (folder / "env.py").write_text(IMPORTED)
    with pytest.raises(UserError, match="imported with None"):
        train("mine/task")
    with pytest.raises(UserError, match="imported with egl"):
        train("mine/task", settings={"report_config.video_every": 1})
    monkeypatch.delenv("MUJOCO_GL")
    settings = resolve([("test", {"base_config": {"env_name": "env.py"}})])
    with pytest.raises(UserError, match="imported with egl"):
        Environments(settings, RunFolder(folder)).open(1, "rgb_array")
