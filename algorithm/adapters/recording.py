"""Videos of episodes: environments inside Gymnasium's RecordVideo, and off-screen rendering without a display."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from ctypes.util import find_library
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import RecordVideo

from algorithm.adapters.adapter import EnvironmentStartError, Recording, UnsupportedEnvironment
from algorithm.adapters.env_errors import EnvName, describe_error, get_env_name, suppress_warnings
from algorithm.program import get_install_command

PIXELS = "rgb_array"  # the render mode in which an environment returns pictures
MIN_PICTURE_SIZE = 160  # pixels of the longer side; smaller pictures, for example MinAtar's 10x10, are enlarged
# MuJoCo's off-screen backends and their libraries, in the order of their speed. Without MUJOCO_GL it takes GLFW, which
# needs a display.
OFFSCREEN_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
ADVICE = "without a display, MuJoCo and the Control Suite need EGL or OSMesa, for example: apt install libegl1"

EnvMaker = Callable[[], gymnasium.Env]


def make_recording_makers(make: EnvMaker, name: EnvName, n_envs: int, recording: Recording | None) -> list[EnvMaker]:
    """Return the maker of each environment, those with an episode in `recording` inside RecordVideo.

    `make` makes an environment that returns pictures.

    Raises:
        UnsupportedEnvironment: The package that writes videos is missing. The makers raise it, too, for an environment
            without pictures.
    """
    if find_spec("moviepy") is None:
        raise UnsupportedEnvironment(f"videos need the package moviepy: {get_install_command('video')}")
    return [partial(_make_recorded, make, name, recording, number) for number in range(n_envs)]


def has_display() -> bool:
    """Return whether this machine has a display; only Linux may have none."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def choose_offscreen_backends() -> None:
    """Set backends of MuJoCo and pygame that need no display, if there is none and the user has set no backend.

    The Control Suite reads the one of MuJoCo when it is imported.
    """
    if has_display():
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame's, which would print that it finds no display
    if os.environ.get("MUJOCO_GL"):
        return
    for backend, library in OFFSCREEN_LIBRARIES.items():
        if find_library(library):
            os.environ["MUJOCO_GL"] = backend
            return


def _make_recorded(make: EnvMaker, name: EnvName, recording: Recording | None, number: int) -> gymnasium.Env:
    """Return environment `number`, inside RecordVideo if it has an episode in `recording`."""
    with suppress_warnings():  # about the render mode, which is checked here, and a folder that contains videos
        env = make()
        if env.render_mode != PIXELS:
            modes = ", ".join(env.metadata.get("render_modes", ())) or "none"
            env.close()
            raise UnsupportedEnvironment(
                f"the environment {get_env_name(name)!r} has no pictures for a video: its render modes are {modes}, "
                f"without {PIXELS}"
            )
        env = VideoPictures(env, name)
        if recording is None or number not in recording.episodes:
            return env
        return SeededRecordVideo(
            env,
            str(recording.folder),
            episode_trigger=frozenset(recording.episodes[number]).__contains__,
            name_prefix=recording.get_prefix(number),
            disable_logger=True,
        )


class VideoPictures(gymnasium.Wrapper):
    """A wrapper that returns pictures as the writer of videos expects them: bytes, and not smaller than visible."""

    def __init__(self, env: gymnasium.Env, name: EnvName):
        super().__init__(env)
        self._name = name

    def render(self) -> Any:
        """Return the picture [H, W, 3] as uint8.

        Fractions of the full brightness (MinAtar) are scaled to bytes, and the pixels of a small picture repeated.

        Raises:
            EnvironmentStartError: The environment cannot render.
        """
        try:
            with suppress_warnings():  # of libraries that open a display, before they raise an exception
                picture = np.asarray(self.env.render())
        except Exception as error:
            problem = describe_error(self._name, "cannot render pictures", error)
            raise EnvironmentStartError(problem if has_display() else f"{problem}; {ADVICE}") from error
        if picture.dtype.kind == "f":
            picture = np.rint(picture * 255).astype(np.uint8)
        factor = -(-MIN_PICTURE_SIZE // max(picture.shape[:2]))
        return picture.repeat(factor, axis=0).repeat(factor, axis=1)


class SeededRecordVideo(RecordVideo):
    """A RecordVideo that counts episodes from the last reset with a seed, which starts an evaluation.

    An adapter may reset its environments before that, for example to find out whether actions are masked.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; episode 0 begins if there is a seed."""
        if seed is not None:
            self.episode_id = -1
        return super().reset(seed=seed, options=options)

    def stop_recording(self) -> None:
        """Write the video with all of its frames.

        moviepy writes int(duration * fps) of them, one too few where the sum of their durations is rounded down. The
        frames per second are raised by less than 0.01% to a number with which it is not.
        """
        frames, fps = len(self.recorded_frames), self.frames_per_sec
        rates: Iterator[Any] = (fps * (1 + 1e-6 * step) for step in range(100))
        self.frames_per_sec = next((rate for rate in rates if int(sum([1 / rate] * frames) * rate) == frames), fps)
        with suppress_warnings():  # about an episode without a frame, whose error is reported
            super().stop_recording()
        self.frames_per_sec = fps
