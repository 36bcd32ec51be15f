"""Videos of a trained agent: the best, the median and the worst of the episodes that it played, as mp4 and gif."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from algorithm.adapters.adapter import Adapter, Recording, SimulatorError
from algorithm.agents.agent import Agent
from algorithm.config.loader import Settings
from algorithm.config.sections import count_evaluation_episodes
from algorithm.errors import UserError
from algorithm.parts.env_folder import VIDEO_FOLDER
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import RunSeeds
from algorithm.runs.callbacks import Callback
from algorithm.training.components import Timer, TrainingComponents
from algorithm.training.evaluator import EvaluationResult, Evaluator
from algorithm.training.metrics import format_number
from algorithm.training.progress import Counters

GIF_WIDTH, GIF_FPS, GIF_SECONDS = 320, 12, 10  # for files that a README may contain

OpenRecorded = Callable[[Recording | None], Adapter]
# Receives what is done with the episodes, then what `ShowEpisodes` receives.
ShowPlaying = Callable[[str, int, int, int], object]


def choose_episodes(returns: Sequence[float]) -> dict[str, int]:
    """Return the numbers of the best, the median and the worst episode; fewer if there are fewer than three."""
    order = np.argsort(returns, kind="stable")
    chosen = {"best": order[-1], "worst": order[0], "median": order[(len(order) - 1) // 2]}
    return {label: int(number) for label, number in list(chosen.items())[: len(order)]}


def record_videos(
    open_recorded: OpenRecorded,
    get_agent: Callable[[str, Adapter], Agent],
    greedy: bool,
    episodes: int,
    seed: int,
    target: Path,
    log: Callable[[str], None],
    show: ShowPlaying | None = None,
) -> dict[str, EvaluationResult]:
    """Play episodes, then repeat them and record three of them: `target`-best.mp4, -median and -worst, each with a gif.

    Only the recorded environments render their steps, and only when they are played for the second time.

    Args:
        open_recorded: Opens environments that return pictures, and record these episodes.
        get_agent: Returns the agent of a role of an adapter.
        greedy: Whether actions are greedy; otherwise they are sampled.
        episodes: The least number of episodes.
        seed: Seeds the environments and the sampled actions.
        target: Folder of the videos, and the start of their names.
        log: Receives a line for each video.
        show: Receives the progress; None for no one.

    Returns:
        The results of the first time, as `Evaluator.play` returns them.

    Raises:
        UserError: The environments have no pictures, or the extra `video` is missing.
        SimulatorError: The environments do not start, for example because nothing can render without a display.
    """

    def play(recording: Recording | None) -> dict[str, EvaluationResult]:
        show_episodes = show and partial(show, "recording videos" if recording else "playing")
        with closing(open_recorded(recording)) as adapter:
            return Evaluator(adapter, lambda role: get_agent(role, adapter), greedy).play(episodes, seed, show_episodes)

    results = play(None)
    (result,) = results.values()  # environments that can be recorded have one role
    chosen = choose_episodes(result.returns)
    recorded: dict[int, list[int]] = {}
    for number in chosen.values():
        lane, episode = result.locate(number)
        recorded.setdefault(lane, []).append(episode)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".recording-") as folder:
        recording = Recording(Path(folder), recorded)
        (repeated,) = play(recording).values()
        for label, number in chosen.items():
            _keep_video(recording.get_path(*result.locate(number)), Path(f"{target}-{label}.mp4"))
            log(_describe_video(Path(f"{target}-{label}.mp4"), label, result, repeated, number))
    return results


def prepare_videos(environments: Environments, evaluates: bool) -> None:
    """Check that a run can record videos of its evaluations, before it opens environments, and prepare that.

    Raises:
        UserError: The run has no evaluations, or nothing can record videos of its environments.
    """
    if not evaluates or environments.find_evaluation_obstacle():
        raise UserError("report_config.video_every needs evaluations: set base_config.evaluate_every")
    environments.prepare_recording()


class VideoRecorder(Callback):
    """A callback that records videos of the agents of a run after every n-th evaluation.

    Args:
        every: The number n; None for no videos.
        record: Records videos of the current agents.
        timer: Assigns the time to evaluation.
        log: Receives the reason if recording is not possible; the run then continues without videos.
    """

    def __init__(self, every: int | None, record: Callable[[], object], timer: Timer, log: Callable[[str], None]):
        self.every, self.record, self.timer, self.log = every, record, timer, log
        self.evaluations = 0

    def on_evaluation(self, results: Mapping[str, EvaluationResult]) -> None:
        self.evaluations += 1
        if self.every is None or self.evaluations % self.every:
            return
        try:
            self.record()
        except (UserError, SimulatorError) as error:
            self.log(f"no videos (report_config.video_every): {error}")
            self.every = None
        self.timer.lap("evaluation")


def make_video_recorder(
    settings: Settings,
    environments: Environments,
    training: TrainingComponents,
    counters: Counters,
    folder: RunFolder,
    log: Callable[[str], None],
) -> VideoRecorder:
    """Return the recorder of a run, whose videos show the episodes that an evaluation at these env steps plays."""
    base = settings.base

    def get_agent(role: str, adapter: Adapter) -> Agent:
        return training.get(role, adapter).agent

    def record() -> None:
        open_recorded = partial(environments.open_recorded, environments.count_evaluation_envs())
        seed = RunSeeds(base.seed).get_evaluation_seed(counters.env_steps)
        target = folder.path / VIDEO_FOLDER / str(counters.env_steps)
        record_videos(
            open_recorded, get_agent, base.evaluate_greedy, count_evaluation_episodes(settings.goal), seed, target, log
        )

    return VideoRecorder(settings.report.video_every, record, training.timer, log)


def _keep_video(source: Path, video: Path) -> None:
    """Write a gif of the first seconds of a video, and move both to their place."""
    from moviepy import VideoFileClip

    with VideoFileClip(str(source)) as clip:
        start = clip.subclipped(0, min(clip.duration, GIF_SECONDS)).resized(width=GIF_WIDTH)
        start.write_gif(str(source.with_suffix(".gif")), fps=GIF_FPS, logger=None)
    for suffix in (".mp4", ".gif"):  # a rename replaces a link, which writing would follow
        source.with_suffix(suffix).replace(video.with_suffix(suffix))


def _describe_video(video: Path, label: str, result: EvaluationResult, repeated: EvaluationResult, number: int) -> str:
    """Return a line on a video; it states if the recorded episode was not the one that was to be repeated."""
    place = result.locate(number)
    again = next(i for i in range(len(repeated.returns)) if repeated.locate(i) == place)
    shown, chosen = repeated.returns[again], result.returns[number]
    line = f"video: {video} and .gif: {label} episode, return {format_number(shown)}, {repeated.lengths[again]:,} steps"
    if shown != chosen:
        line += f" (not the return {format_number(chosen)} of before: the environment does not repeat its episodes)"
    return line
