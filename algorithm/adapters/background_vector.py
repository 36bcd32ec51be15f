"""Vector environments that step in the background: worker processes with a timeout, and EnvPool."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.env_errors import suppress_warnings
from algorithm.adapters.env_wrappers import EnvFactory
from algorithm.adapters.process_setup import CONTEXT_NAME

CLOSE_SECONDS = 5.0  # seconds after which a worker process that does not exit is killed
SEED_LIMIT = 2**31  # EnvPool's and ALE's seeds are int32


class BackgroundVectorEnv(VectorEnv):
    """A vector environment that steps in separate processes or threads, so that the caller can do something else.

    A subclass implements `send` and `recv`, the two halves of `step`.
    """

    def send(self, actions: Any) -> None:
        """Start a step of all environments."""
        raise NotImplementedError

    def recv(self) -> Any:
        """Wait until the step that `send` started has ended, and return what `step` returns."""
        raise NotImplementedError

    def step(self, actions: Any) -> Any:
        """Step all environments in parallel."""
        self.send(actions)
        return self.recv()


class BackgroundVectorWrapper(BackgroundVectorEnv, VectorWrapper):
    """A wrapper of a vector environment that steps in the background."""

    env: Any

    def send(self, actions: Any) -> None:
        """Start a step of all environments."""
        self.env.send(actions)


class TimeoutAsyncVectorEnv(BackgroundVectorEnv, AsyncVectorEnv):
    """Environments in spawned worker processes that must respond within `timeout` seconds; closing never blocks.

    The seconds count from the call that waits for the response. `send`, `recv` and `reset` raise RuntimeError, with the
    numbers of the environments, if worker processes exit or time out.

    Args:
        factories: A factory for each environment.
        timeout: Seconds; None is no limit.
        first_env: Number of the first environment, for messages.
        vector_kwargs: Arguments of AsyncVectorEnv.
    """

    def __init__(self, factories: list[EnvFactory], timeout: float | None, first_env: int = 0, **vector_kwargs: Any):
        self.timeout, self.first_env = timeout, first_env
        self.close_seconds = CLOSE_SECONDS
        try:
            super().__init__(factories, **{"context": CONTEXT_NAME, **vector_kwargs})
        except BaseException:  # a signal, for example: the processes that have started would fail with tracebacks
            for process in getattr(self, "processes", []):
                if process.pid is not None:  # otherwise it was not started
                    process.kill()
            raise

    def send(self, actions: Any) -> None:
        """Start a step of all environments."""
        with self._describe_failures():
            self.step_async(actions)

    def recv(self) -> Any:
        """Wait until the step that `send` started has ended, and return what `step` returns."""
        with self._describe_failures():
            return self.step_wait(self.timeout)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all environments in parallel."""
        with self._describe_failures():
            self.reset_async(seed, options)
            return self.reset_wait(self.timeout)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Request all worker processes to exit, after the step that they execute, and kill those that do not."""
        for pipe in self.parent_pipes:
            with suppress(OSError, AttributeError):  # the process has exited
                pipe.send(("close", None))
        deadline = time.monotonic() + self.close_seconds
        for process, pipe in zip(self.processes, self.parent_pipes, strict=True):
            with suppress(OSError, EOFError, AttributeError):  # until the process has exited
                while pipe.poll(max(0.0, deadline - time.monotonic())):
                    pipe.recv()  # a process blocks while its pipe is full
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self.parent_pipes:
            if pipe is not None:
                pipe.close()

    @contextmanager
    def _describe_failures(self) -> Iterator[None]:
        """Convert the exceptions of worker processes that have exited or do not respond."""
        try:
            yield
        except multiprocessing.TimeoutError as error:
            self.close_seconds = 0.0
            late = [str(self.first_env + i) for i, pipe in enumerate(self.parent_pipes) if not pipe.poll()]
            raise RuntimeError(f"environment {', '.join(late)} did not respond within {self.timeout:g} s") from error
        except (EOFError, OSError) as error:
            for process in self.processes:
                process.join(0.2)
            exited = [
                f"{self.first_env + i} (exit code {process.exitcode})"
                for i, process in enumerate(self.processes)
                if not process.is_alive()
            ]
            raise RuntimeError(f"the worker process of environment {', '.join(exited)} has exited") from error

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raise the error of a worker process, without the traceback that Gymnasium prints."""
        if not all(successes):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                super()._raise_if_errors(successes)


class EnvPoolVectorEnv(BackgroundVectorEnv):
    """EnvPool, which runs many environments in threads of one process, as a vector environment of Gymnasium.

    Environment i of a reset with a seed has this seed plus i. EnvPool accepts seeds only when a pool is made, so every
    such reset makes another pool. Raises UnsupportedEnvironment for a task that EnvPool does not have.
    """

    def __init__(self, task: str, n_envs: int, settings: Mapping[str, Any]):
        import envpool

        if task not in envpool.list_all_envs():
            raise UnsupportedEnvironment(f"EnvPool has no environment {task!r}; use another vectorization_mode")
        self._task, self._settings = task, {"num_envs": n_envs, **settings}
        self.num_envs = n_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        with suppress_warnings():
            spec = envpool.make_spec(task, **self._settings)
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = spec.gymnasium_action_space
        self.observation_space = batch_space(self.single_observation_space, n_envs)
        self.action_space = batch_space(self.single_action_space, n_envs)
        self._pool: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode in every environment."""
        import envpool

        with suppress_warnings():
            if seed is not None or self._pool is None:
                self.close_extras()
                seeds = (int(seed or 0) + np.arange(self.num_envs)) % SEED_LIMIT
                self._pool = envpool.make(self._task, env_type="gymnasium", seed=seeds.tolist(), **self._settings)
            return self._pool.reset(options=options)

    def send(self, actions: Any) -> None:
        """Start a step of all environments; the step after an episode's end starts the next episode."""
        self._pool.send(actions)

    def recv(self) -> Any:
        """Wait until the step that `send` started has ended, and return what `step` returns."""
        return self._pool.recv()

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
