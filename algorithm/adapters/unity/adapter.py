"""Unity: scenes in the editor or in built players, each in a process of its own, all stepped together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvironmentFailed, UnsupportedEnvironment, later_seed
from algorithm.adapters.unity.behavior import TEAM, Offer, agent_name, role_name
from algorithm.adapters.unity.curriculum import Scene
from algorithm.adapters.unity.lanes import Batch, Crowded, Lanes
from algorithm.adapters.unity.launch import Gone, Launch, Tick
from algorithm.adapters.unity.statistics import Statistics
from algorithm.adapters.unity.supervised_scene import LOOK, Player
from algorithm.rollout import Step
from algorithm.specs import Role

LOG = logging.getLogger(__name__)
COLOURS = (1, 3)  # channels of what a camera shows

Ended = Callable[[str, float], None]  # role and return


class UnityAdapter(Adapter):
    """Copies of one scene, each with any number of agents of any behaviors; each team of a behavior is a role.

    At first a role has in each environment one lane for each agent of its behavior that requests a decision together
    with the first one. A lane is added for each agent that finds no free lane; `agents` limits their number. `scene`
    holds the parameters of the scene, `ended` receives the return of each episode. Unity takes a seed only when it
    starts, so that every reset starts all players again.

    A copy that breaks is started again after a pause, while the others go on; its episodes are cut there and their last
    observations not known. In the editor that is no restart: Stop ends the episodes, and the next Play goes on.

    Raises EnvironmentFailed where a copy does not open at a reset, UnsupportedEnvironment for more agents than the
    limit and for cameras that show nothing.
    """

    def __init__(
        self,
        launch: Launch,
        copies: int,
        agents: Mapping[str, int] | int | None,
        scene: Scene,
        ended: Ended | None = None,
    ):
        self.launch, self.scene, self._ended = launch, scene, ended or (lambda role, episode_return: None)
        self.roles: dict[str, Role] = {}
        self._agents = agents
        self._players = [Player(launch, number) for number in range(copies)]
        self._offers: dict[str, Offer] = {}  # of each behavior that was seen
        self._behaviors: dict[str, str] = {}  # of each role
        self._agent_of: dict[str, str] = {}  # the agent of each role: one plays all teams of a behavior
        self._lanes: dict[str, list[Lanes]] = {}  # of each role in each copy
        self._statistics = Statistics()
        self._ticks: dict[int, Tick] = {}  # of the copies that have answered
        self._gathering = False  # others have not
        self._following: dict[str, Step] | None = None  # what comes after final rows
        self._asked: dict[str, Step] = {}  # each role's rows that await a decision
        self._due = False  # final rows were answered, so that `_asked` is known already and yet to be shown

    @property
    def shared_agents(self) -> Mapping[str, str]:
        return self._agent_of

    def reset(self, seed: int) -> dict[str, Step]:
        self._following, self._asked, self._gathering = None, {}, False
        for player in self._players:
            self._forget(player)
            player.start(later_seed(seed, player.number), self.scene.parameters)
        self._ask_for_play()
        ticks: dict[int, Tick] = {}
        while len(ticks) < len(self._players):
            self._wait()
            for player in self._players:
                answer = player.receive()
                if isinstance(answer, Gone):
                    self.close()
                    raise EnvironmentFailed(answer.why)
                if answer is not None:
                    ticks[player.number] = answer
        return self._show(ticks)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        self.send(actions)
        return self.receive()

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        self._due = False
        if self._following is not None:
            self._asked, self._following = self._following, None
            self._due = bool(self._asked)
        if self._due or self._gathering:
            return
        for player in self._players:
            if player.awaiting:
                player.send(self._for(player.number, actions), self.scene.parameters)
        self._asked, self._ticks = {}, {}

    def receive(self) -> dict[str, Step]:
        if self._due:
            return self._asked
        self._gathering = not self._gather()
        return {} if self._gathering else self._show(self._ticks)

    def statistics(self) -> dict[str, float]:
        lessons = {f"lesson/{name}": float(course.place) for name, course in self.scene.curricula.items()}
        return {**self._statistics.take(), **lessons}

    def close(self) -> None:
        for player in self._players:
            player.close()

    def _for(self, number: int, actions: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the agents of one copy do, by behavior."""
        return {
            self._behaviors[role]: self._lanes[role][number].in_order(step.lane, actions[role])
            for role, step in self._asked.items()
            if self._lanes[role][number].asked is not None
        }

    def _gather(self) -> bool:
        """Receive what each copy that was asked shows next, beside those that opened again; whether that is all.

        It is not where a copy takes long, or all of them are being started again: then a tick without news lets others
        have their turn, who may have been told to stop.
        """
        until = time.monotonic() + LOOK
        while time.monotonic() < until:
            for player in self._players:
                player.start_if_due(self.scene.parameters)
            self._wait()
            broke = False
            for player in self._players:
                answer = player.receive()
                if isinstance(answer, Gone):
                    self._give_up(player, answer)
                    broke = True
                elif answer is not None:
                    self._ticks[player.number] = answer
            if (self._ticks or broke) and not any(player.asked for player in self._players):
                return True
        return False

    def _wait(self) -> None:
        """Until something can be received, or is due; for a short while at most."""
        pipes = [player.pipe for player in self._players if player.pipe is not None and not player.awaiting]
        patience = min((player.patience for player in self._players if not player.awaiting), default=0.0)
        if pipes:
            wait(pipes, patience)
        else:  # for which Windows does not wait
            time.sleep(patience)

    def _give_up(self, player: Player, gone: Gone) -> None:
        self._forget(player)
        seconds = player.pause(gone)
        if self.launch.path is None:
            LOG.warning(f"{gone.why}; its episodes are cut")
            self._ask_for_play()
            return
        self.restarts += 1
        which = f" (copy {player.number} of {len(self._players)})" if len(self._players) > 1 else ""
        LOG.warning(f"{gone.why}{which}; its episodes are cut, and it is started again in {seconds:g} seconds")

    def _forget(self, player: Player) -> None:
        for copies in self._lanes.values():
            copies[player.number].lose()

    def _ask_for_play(self) -> None:
        if self.launch.path is None:
            where = "" if self.launch.port is None else f" on port {self.launch.port}"
            LOG.warning(f"press Play in Unity: it is waited for{where}")

    def _show(self, ticks: Mapping[int, Tick]) -> dict[str, Step]:
        """The final rows of all copies, if there are any; otherwise the rows that await a decision."""
        for tick in ticks.values():
            self._offers |= tick.offers
            self._statistics.add(tick.statistics)
        self._meet(ticks)
        finals, following = {}, {}
        for role, behavior in self._behaviors.items():
            shown = [
                self._in_lanes(role, number, *tick.batches[behavior])
                for number, tick in sorted(ticks.items())
                if behavior in tick.batches
            ]
            if over := [final for final, _ in shown if final is not None]:
                finals[role] = _joined(over)
            if asking := [rows for _, rows in shown if rows is not None]:
                following[role] = _joined(asking)
        if finals:
            self._following = following
            return finals
        self._asked = following
        return following

    def _in_lanes(self, role: str, number: int, decided: Batch, ended: Batch) -> tuple[Step | None, Step | None]:
        lanes = self._lanes[role][number]
        try:
            final, following, returns = lanes(decided, ended)
        except Crowded as error:
            raise self._crowded(role) from error
        for episode_return in returns:
            self._ended(role, episode_return)
        return final, following

    def _meet(self, ticks: Mapping[int, Tick]) -> None:
        """Make a role of each behavior whose agents ask for the first time."""
        for behavior, offer in self._offers.items():
            asking = [tick.batches[behavior][0] for tick in ticks.values() if behavior in tick.batches]
            count = max(map(len, asking), default=0)
            if behavior in self._behaviors.values() or not count:
                continue
            role, agent = role_name(behavior), agent_name(behavior)
            for other, known in self._behaviors.items():
                teams = TEAM.sub("", known) == TEAM.sub("", behavior)  # of one behavior
                if other == role or (self._agent_of[other] == agent and not teams):
                    raise UnsupportedEnvironment(
                        f"the behaviors {known!r} and {behavior!r} would both be called {agent!r} here; "
                        "give one of them another name in Unity"
                    )
            self._check_cameras(offer, asking)
            limit = self._limit(role)
            if limit is not None and count > limit:
                raise self._crowded(role)
            self._behaviors[role], self._agent_of[role] = behavior, agent
            add = partial(self._add_lane, role)
            self._lanes[role] = [Lanes(player.number * count, count, add=add) for player in self._players]
            self.roles[role] = Role(count * len(self._players), offer.obs_specs, offer.action_spec)

    def _add_lane(self, role: str, there: int) -> int:
        """Add a lane to a role, in a copy that has `there` lanes, and return its number. Raise Crowded at the limit."""
        if there == self._limit(role):
            raise Crowded
        number = self.roles[role].lanes
        self.roles[role] = replace(self.roles[role], lanes=number + 1)
        return number

    def _limit(self, role: str) -> int | None:
        """Return the limit of the agents of a role in one environment; None for no limit."""
        return self._agents.get(role) if isinstance(self._agents, Mapping) else self._agents

    def _crowded(self, role: str) -> UnsupportedEnvironment:
        self.close()
        return UnsupportedEnvironment(
            f"more than {self._limit(role)} agents of role {role!r} are in one scene at a time, which is the limit "
            "base_config.unity_args.agents: raise it, or set it to null for any number"
        )

    def _check_cameras(self, offer: Offer, asking: Sequence[Batch]) -> None:
        """Without graphics a camera shows one colour, for ever."""
        if not self.launch.no_graphics or self.launch.path is None:
            return
        for name, spec in offer.obs_specs.items():
            camera = len(spec.shape) == 3 and spec.shape[0] in COLOURS
            if camera and all(np.ptp(batch.obs[name]) == 0 for batch in asking if len(batch)):
                self.close()
                raise UnsupportedEnvironment(
                    f"the sensor {name!r} shows nothing but one colour: cameras need graphics, and "
                    "base_config.unity_args.no_graphics is true; set it to false"
                )


def _joined(steps: Sequence[Step]) -> Step:
    """Return the rows of several environments as one Step, in the order of their lanes."""
    if len(steps) == 1:
        return steps[0]
    parts = [step.arrays() for step in steps]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if (np.diff(arrays["lane"]) < 0).any():  # lanes that were added come after those of all copies
        order = np.argsort(arrays["lane"])
        arrays = {name: value[order] for name, value in arrays.items()}
    return Step.of(arrays)
