"""A scripted scene that speaks the protocol of Godot RL Agents: `python -m tests.godot_scene TASK --port=N`.

An agent counts its steps in an episode. Its observation is (its number, steps), its reward 1 for the right action: the
number of steps modulo 3 as the branch, and half of its number as the number.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = (4, 6, 3)  # of the episodes of each agent
BOX = {"space": "box", "size": [2]}
ACTIONS = {"turn": {"size": 3, "action_type": "discrete"}, "push": {"size": 1, "action_type": "continuous"}}
POLICIES = {  # of each agent
    "policies": ["hunter", "prey", "hunter"],
    "unnamed": [None, "prey", "prey"],
    "merged": ["shared_policy", "agent", "agent"],
    "dots": ["..", "prey", "prey"],
}
# Observations that do not suit their spaces.
KINDS: dict[str, Any] = {
    "fraction": {"kind": 0.9, "view_2d": "0001"},
    "numbers": {"kind": 0, "view_2d": [0.5, -0.7]},
    "null": None,
}
IMAGE = bytes(range(48))  # 4 rows, 4 columns, 3 channels


def make_scene(folder: Path, task: str) -> Path:
    """Write an executable file that runs a task into `folder`, and return its path."""
    path = folder / f"{task}.x86_64"
    command = shlex.join([sys.executable, "-m", "tests.godot_scene", task])
    path.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {command} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


class Scene:
    """The agents of a task, and the connection to a trainer."""

    def __init__(self, task: str, port: int):
        self.task, self.n = task, len(LENGTHS)
        self.steps = [0] * self.n
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")

    def receive(self) -> Any:
        """Return the trainer's next message; None if it has ended."""
        size = self.file.read(4)
        return json.loads(self.file.read(int.from_bytes(size, "little"))) if size else None

    def send(self, message: Any, garble: Any = lambda text: text) -> None:
        """Send a message; `garble` changes its text."""
        text = garble(json.dumps(message)).encode()
        self.socket.sendall(len(text).to_bytes(4, "little") + text)

    def describe(self) -> dict[str, Any]:
        """Return the agents' policies and spaces."""
        obs_space: Any = {"obs": BOX}
        if self.task == "images":
            obs_space = {"view_2d": {"space": "box", "size": [4, 4, 3]}, "kind": {"space": "discrete", "size": 4}}
        elif self.task in KINDS:
            obs_space = {"kind": {"space": "discrete", "size": 4}, "view_2d": {"space": "box", "size": [2]}}
        elif self.task == "unknown":
            obs_space = {"obs": {"space": "repeated", "size": [2]}}
        info: dict[str, Any] = {
            "type": "env_info",
            "n_agents": self.n,
            "observation_space": obs_space,
            "action_space": [ACTIONS] * self.n,
        }
        if self.task in POLICIES:
            info["agent_policy_names"] = POLICIES[self.task]
        elif self.task == "different":
            info["observation_space"] = [obs_space, obs_space, {"obs": {**BOX, "size": [3]}}]
        elif self.task == "empty":
            info |= {"n_agents": 0, "action_space": []}
        return info

    def observe(self, agent: int) -> dict[str, Any]:
        """Return the observation of an agent."""
        if self.task == "images":
            return {"view_2d": IMAGE.hex() if agent else base64.b64encode(IMAGE).decode(), "kind": agent}
        if self.task in KINDS:
            return KINDS[self.task]
        return {"obs": [agent, self.steps[agent], 0][: 3 if self.task == "wide" else 2]}

    def step(self, actions: list[dict[str, Any]]) -> dict[str, Any]:
        """Execute actions, and return the reply."""
        reply: dict[str, Any] = {"type": "step", "obs": [], "reward": [], "done": []}
        final: list[Any] = []
        for agent, action in enumerate(actions):
            right = action["turn"] == self.steps[agent] % 3, abs(action["push"][0] - agent / 2) < 1e-6
            self.steps[agent] += 1
            done = self.steps[agent] == LENGTHS[agent]
            final.append(self.observe(agent) if done and agent == 0 else None)
            self.steps[agent] = 0 if done else self.steps[agent]
            reply["reward"].append(float(sum(right)))
            reply["done"].append(done)
            reply["obs"].append(self.observe(agent))
        if self.task == "truncating":
            reply |= {"truncated": [True, True, False], "final_obs": final}
        return reply

    def run(self) -> None:
        """Answer the trainer until it closes the scene; each fault follows the third step."""
        self.receive()
        self.receive()
        if self.task == "silent":
            time.sleep(60)
        self.send(self.describe())
        n_steps = 0
        while (message := self.receive()) and message["type"] != "close":
            if message["type"] == "reset":
                self.steps = [0] * self.n
                self.send({"type": "reset", "obs": [self.observe(agent) for agent in range(self.n)]})
                continue
            n_steps += 1
            reply, garble = self.step(message["action"]), lambda text: text
            if n_steps == 3 and self.task in FAULTS:
                garble = FAULTS[self.task] or garble
            self.send(reply, garble)


def crash(text: str) -> str:
    print("the ball is lost", flush=True)
    os._exit(3)


def hang(text: str) -> str:
    time.sleep(60)
    return text


FAULTS = {
    "crashing": crash,
    "hanging": hang,
    "nan": lambda text: text.replace('"obs": [0', '"obs": [nan', 1),
    "infinite": lambda text: text.replace('"obs": [0', '"obs": [Infinity', 1),
    "garbage": lambda text: text[:-2],
    "nameless": lambda text: text.replace('{"obs": [0', '{"abs": [0', 1),
    "fewer": lambda text: text.replace('"obs": [', '"obs": [{"obs": [0, 0]}, ', 1),
}


if __name__ == "__main__":
    named = dict(word.lstrip("-").split("=") for word in sys.argv[2:] if "=" in word)
    print("arguments", *sys.argv[2:], flush=True)
    Scene(sys.argv[1], int(named["port"])).run()
