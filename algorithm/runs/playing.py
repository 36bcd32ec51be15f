"""Episodes that trained agents play, and videos of the best, the median and the worst of them, as mp4 and gif."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from algorithm.adapters.adapter import Adapter, Recording, SimulatorError
from algorithm.adapters.demonstration_recorder import DemonstrationRecorder
from algorithm.agents.agent import Agent
from algorithm.config.loader import Settings
from algorithm.config.sections import count_evaluation_episodes
from algorithm.demonstrations import Demonstrations, check_new_recording, write_recording
from algorithm.errors import UserError
from algorithm.parts.components_builder import load_agent
from algorithm.parts.env_folder import VIDEO_FOLDER
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import EVALUATION, RunSeeds
from algorithm.parts.torch_setup import configure_torch
from algorithm.program import role_suffix
from algorithm.runs.callbacks import Callback
from algorithm.training.components import TrainingComponents
from algorithm.training.evaluator import EvaluationResult, Evaluator, get_mode_name
from algorithm.training.metrics import format_number
from algorithm.training.progress import Counters

GIF_WIDTH, GIF_FPS, GIF_SECONDS = 320, 12, 10  # for files that a README may contain

# Receives what is done with the episodes, then what `ShowEpisodes` receives.
ShowPlaying = Callable[[str, int, int, int], object]
# Plays the same episodes every time it is called, and records those of the argument, if any.
PlayEpisodes = Callable[[Recording | None], dict[str, EvaluationResult]]


def play(
    settings: Settings,
    folder: RunFolder,
    episodes: int,
    greedy: bool,
    render: bool = False,
    ckpt: str | None = None,
    n_envs: int | None = None,
    log: Callable[[str], None] = print,
    video: bool = False,
    show: ShowPlaying | None = None,
    record: Path | None = None,
) -> dict[str, EvaluationResult]:
    """Play whole episodes with the trained agents of a run.

    They repeat the evaluation of the same weights, if mode, number of episodes and number of environments are the same.

    Args:
        settings: the settings of the run.
        folder: the run folder.
        episodes: the least number of episodes of each role.
        greedy: whether actions are greedy; otherwise they are sampled.
        render: whether the environments are shown.
        ckpt: the checkpoint, by its env steps or its folder; None for the best.
        n_envs: the number of environments; None for the number that an evaluation uses.
        log: receives lines for the user.
        video: whether videos of the best, the median and the worst episode are recorded.
        show: receives the progress; None for no one.
        record: a new file that receives the episodes as demonstrations; None for none.

    Returns:
        {role or team: result}.
    """
    configure_torch()
    checkpoint = folder.read_checkpoint(ckpt, log)
    env_steps = checkpoint.counters.env_steps
    log(f"playing {folder} after {env_steps:,} env steps, {get_mode_name(greedy)}")
    seed = RunSeeds(settings.base.seed).get_seed(EVALUATION, env_steps)
    environments = Environments(settings, folder)
    n = n_envs or environments.count_evaluation_envs()
    mode = "rgb_array" if video else "human" if render else None
    agents: dict[str, Agent] = {}

    def get_agent(adapter: Adapter, role: str) -> Agent:
        if role not in agents:
            if role not in checkpoint.roles:
                raise UserError(
                    f"the environment has a role {role!r} that had not appeared in {folder} after {env_steps:,} env "
                    "steps: train longer (--resume)"
                )
            agents[role] = load_agent(settings, folder, checkpoint, role, adapter.roles[role])
        return agents[role]

    def play_episodes(recording: Recording | None) -> dict[str, EvaluationResult]:
        show_episodes = show and partial(show, "recording videos" if recording else "playing")
        with closing(environments.open(n, mode, recording)) as adapter:
            if record is None or recording:  # or the same episodes are played again, for videos
                return Evaluator(adapter, partial(get_agent, adapter), greedy).play(episodes, seed, show_episodes)
            recorder = DemonstrationRecorder(adapter)
            results = Evaluator(recorder, partial(get_agent, adapter), greedy).play(episodes, seed, show_episodes)
            counted = {name: result.lanes for name, result in results.items()}
            save_recording(record, recorder.collect(counted), log)
            return results

    if video:
        return record_videos(play_episodes, folder.path / VIDEO_FOLDER / str(env_steps), log)
    return play_episodes(None)


def save_recording(path: Path, by_role: Mapping[str, Demonstrations], log: Callable[[str], None]) -> None:
    """Write demonstrations to a new file; `log` receives a line for each role. Raises UserError if it exists."""
    check_new_recording(path)
    write_recording(path, by_role)
    for role, each in by_role.items():
        mean = np.mean([episode.rewards.sum() for episode in each.episodes])
        steps = f"{len(each.episodes)} episodes, {len(each):,} rows, mean return {format_number(float(mean))}"
        log(f"recorded{role_suffix(role)}: {steps} in {path}")


def choose_episodes(returns: Sequence[float]) -> dict[str, int]:
    """Return the numbers of the best, the median and the worst episode; fewer if there are fewer than three."""
    order = np.argsort(returns, kind="stable")
    chosen = {"best": order[-1], "worst": order[0], "median": order[(len(order) - 1) // 2]}
    return {label: int(number) for label, number in list(chosen.items())[: len(order)]}


def record_videos(play_episodes: PlayEpisodes, target: Path, log: Callable[[str], None]) -> dict[str, EvaluationResult]:
    """Play episodes, then repeat them and record three of them: `target`-best.mp4, -median and -worst, each with a gif.

    Only the recorded environments render their steps, and only when they are played for the second time.

    Args:
        play_episodes: Plays the episodes, in environments that return pictures.
        target: Folder of the videos, and the start of their names.
        log: Receives a line for each video.

    Returns:
        The results of the first time, as `Evaluator.play` returns them.

    Raises:
        UserError: The environments have no pictures, or the extra `video` is missing.
        SimulatorError: The environments do not start, for example because nothing can render without a display.
    """
    results = play_episodes(None)
    (result,) = results.values()  # environments that can be recorded have one role
    chosen = choose_episodes(result.returns)
    recorded: dict[int, list[int]] = {}
    for number in chosen.values():
        lane, episode = result.locate(number)
        recorded.setdefault(lane, []).append(episode)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".recording-") as folder:
        recording = Recording(Path(folder), recorded)
        (repeated,) = play_episodes(recording).values()
        for label, number in chosen.items():
            _keep_video(recording.get_path(*result.locate(number)), Path(f"{target}-{label}.mp4"))
            log(_describe_video(Path(f"{target}-{label}.mp4"), label, result, repeated, number))
    return results


def prepare_videos(settings: Settings, environments: Environments, evaluates: bool) -> None:
    """Prepare a run that records videos of its evaluations, before it opens environments.

    Raises:
        UserError: The run has no evaluations, or nothing can record videos of its environments.
    """
    if settings.report.video_every:
        if not evaluates or environments.find_evaluation_obstacle():
            raise UserError("report_config.video_every needs evaluations: set base_config.evaluate_every")
        environments.prepare_recording()


@dataclass(eq=False)
class VideoRecorder(Callback):
    """A callback that records videos of the agents of a run after every n-th evaluation (`report_config.video_every`).

    They show the episodes that an evaluation at these env steps plays.
    """

    settings: Settings
    environments: Environments
    training: TrainingComponents  # has the agents, and the timer that assigns the time to evaluation
    counters: Counters
    folder: RunFolder
    log: Callable[[str], None]  # receives the reason if recording is not possible; the run continues without videos

    def __post_init__(self) -> None:
        self.every, self.evaluations = self.settings.report.video_every, 0

    def on_evaluation(self, results: Mapping[str, EvaluationResult]) -> None:
        self.evaluations += 1
        if self.every is None or self.evaluations % self.every:
            return
        try:
            record_videos(self.play, self.folder.path / VIDEO_FOLDER / str(self.counters.env_steps), self.log)
        except (UserError, SimulatorError) as error:
            self.log(f"no videos (report_config.video_every): {error}")
            self.every = None
        self.training.timer.lap("evaluation")

    def play(self, recording: Recording | None) -> dict[str, EvaluationResult]:
        """Play the episodes of an evaluation."""
        base, n_envs = self.settings.base, self.environments.count_evaluation_envs()
        episodes = count_evaluation_episodes(self.settings.goal)
        seed = RunSeeds(base.seed).get_seed(EVALUATION, self.counters.env_steps)
        with closing(self.environments.open(n_envs, "rgb_array", recording)) as adapter:
            evaluator = Evaluator(adapter, lambda role: self.training.get(role, adapter).agent, base.evaluate_greedy)
            return evaluator.play(episodes, seed)


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
