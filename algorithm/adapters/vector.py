"""Vector environments, of ids and of the function `make` of an env.py: in this process, worker processes or threads.

Worker processes have a timeout. They and EnvPool's threads step in the background. Single environments are inside the
wrappers of the settings, and inside one that rebuilds an environment that raised.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment, derive_seed
from algorithm.adapters.env_errors import convert_start_errors, describe_missing, suppress_warnings
from algorithm.adapters.gym_ids import find_spec
from algorithm.adapters.process_setup import CONTEXT_NAME, prepare_worker, start_garbage_collection
from algorithm.adapters.recording import PIXELS, make_recording_makers
from algorithm.errors import format_traceback, is_stop, summarize_error, summarize_with_place

EnvMaker = Callable[..., gymnasium.Env]
Wrappers = Sequence[tuple[str, Mapping[str, Any]]]  # pairs of `module:Wrapper` and keyword arguments

CLOSE_SECONDS = 5.0  # seconds after which a worker process that does not exit is killed
SEED_LIMIT = 2**31  # EnvPool's and ALE's seeds are int32
NATIVE_MIN_ENVS = 5  # environments from which a native vector environment is faster than sync (measured on CartPole)
# Keys in the info of an environment that raised, with the traceback as value, whose last line is the summary.
STEP_ERROR = "samara_step_error"  # a step raised: the episode is truncated, its final observation is unknown
RESET_ERROR = "samara_reset_error"  # a reset raised: the environment was rebuilt and reset
ERROR_CONSEQUENCES = {
    STEP_ERROR: "in a step; its episode is truncated and the environment rebuilt",
    RESET_ERROR: "in a reset; the environment is rebuilt",
}


def make_vector(config: EnvConfig) -> VectorEnv:
    """Return the vector environment of an id or of the function `make` of an env.py.

    Raises:
        UnsupportedEnvironment, EnvironmentStartError: As `GymAdapter` raises them.
    """
    name = config.name
    if callable(name):
        return make_from_function(config, name)
    spec = find_spec(name)
    limit_args: dict[str, Any] = {"max_episode_steps": config.max_episode_steps} if config.max_episode_steps else {}
    use_native = spec.vector_entry_point is not None and config.n_envs >= NATIVE_MIN_ENVS and not config.wrappers
    use_native = use_native and not config.args.get("vector_kwargs")
    mode = config.args.get("vectorization_mode", "vector_entry_point" if use_native else "sync")
    if config.render_mode or mode in ("sync", "async"):
        return make_sync_or_async(config, partial(gymnasium.make, spec, **limit_args))
    _, vector_kwargs, env_args = split_env_args({**config.args, **limit_args})
    reject_single_settings(config, f"vectorization_mode {mode}")
    with convert_start_errors(name):
        if mode == "envpool":
            return EnvPoolVectorEnv(spec.id, config.n_envs, {**env_args, **vector_kwargs})
        return gymnasium.make_vec(name, config.n_envs, mode, vector_kwargs=vector_kwargs, **env_args)


def make_from_function(config: EnvConfig, make: EnvMaker) -> VectorEnv:
    """Return the vector environment of the function `make` of an env.py, whose keyword arguments are `config.args`.

    It returns a single environment, or a vector environment if it has a parameter `num_envs`. Raises what `GymAdapter`
    raises.
    """
    parameters = inspect.signature(make).parameters
    if config.render_mode and not {"render_mode", "kwargs"} & parameters.keys():
        raise UnsupportedEnvironment("make in env.py has no parameter render_mode, so that nothing can be shown")
    if "num_envs" not in parameters:
        return make_sync_or_async(config, partial(limit_episode_steps, make, config.max_episode_steps))
    reject_single_settings(config, "a VectorEnv of env.py")
    if config.render_mode == PIXELS:
        raise UnsupportedEnvironment("videos need single environments: make in env.py returns a VectorEnv")
    if config.max_episode_steps and "max_episode_steps" not in parameters:
        raise UnsupportedEnvironment(
            "max_step_each_iter: a VectorEnv limits its own episodes; add a parameter max_episode_steps to make "
            "in env.py"
        )
    optional = {"max_episode_steps": config.max_episode_steps, "render_mode": config.render_mode}
    with convert_start_errors(make):
        env = make(**config.args, num_envs=config.n_envs, **{key: value for key, value in optional.items() if value})
    if not isinstance(env, VectorEnv) or env.num_envs != config.n_envs:
        found = f"a VectorEnv of {env.num_envs}" if isinstance(env, VectorEnv) else type(env).__name__
        raise UnsupportedEnvironment(
            f"make(num_envs={config.n_envs}) in env.py must return a gymnasium.vector.VectorEnv of {config.n_envs} "
            f"environments; it returned {found}"
        )
    return env


def make_sync_or_async(config: EnvConfig, make: EnvMaker) -> VectorEnv:
    """Return fault-tolerant environments, in this process (sync) or each in a worker process (async).

    `make` returns a single environment. `config.args` contain `vectorization_mode`, `vector_kwargs` and its keyword
    arguments; `config.name` is the name in messages. Raises what `GymAdapter` raises.
    """
    mode, vector_kwargs, env_args = split_env_args(config.args)
    timeout = config.timeout
    if config.render_mode:
        mode, timeout, env_args = "sync", None, {**env_args, "render_mode": config.render_mode}
    make_env = partial(_make_wrapped, partial(make, **env_args), tuple(config.wrappers))
    makers: list[EnvMaker] = [make_env] * config.n_envs
    if config.render_mode == PIXELS:
        makers = make_recording_makers(make_env, config.name, config.n_envs, config.recording)
    factories: list[EnvMaker] = [partial(make_fault_tolerant, maker, os.getpid()) for maker in makers]
    with convert_start_errors(config.name):
        if mode == "async":
            # The space of an ignored observation may be one that shared memory does not support.
            vector_kwargs = {"shared_memory": not config.ignore_observations, **vector_kwargs}
            return TimeoutAsyncVectorEnv(factories, timeout, config.first_env, **vector_kwargs)
        reject_timeout(timeout)
        # The observations of a Step are valid until the next call, so no copy is needed.
        return SyncVectorEnv(factories, **{"copy": False, **vector_kwargs})


def split_env_args(env_args: Mapping[str, Any]) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """Return `vectorization_mode` (None if missing), `vector_kwargs`, and the arguments of the environment itself."""
    remaining = dict(env_args)
    return remaining.pop("vectorization_mode", None), remaining.pop("vector_kwargs", {}), remaining


def limit_episode_steps(make: EnvMaker, limit: int | None, /, **env_args: Any) -> gymnasium.Env:
    """Return the environment that `make` makes, with episodes of at most `limit` steps unless that is None."""
    env = make(**env_args)
    return gymnasium.wrappers.TimeLimit(env, limit) if limit else env


def reject_single_settings(config: EnvConfig, kind: str) -> None:
    """Raise UnsupportedEnvironment for wrappers and a timeout, since this kind has no single environments."""
    if config.wrappers:
        names = ", ".join(path for path, _ in config.wrappers)
        raise UnsupportedEnvironment(f"env_wrappers ({names}) wrap single environments, and {kind} has none")
    reject_timeout(config.timeout)


def reject_timeout(timeout: float | None) -> None:
    """Raise UnsupportedEnvironment for a timeout where no worker processes exist."""
    if timeout is not None:
        raise UnsupportedEnvironment(
            f"env_timeout is {timeout:g}, but only worker processes can time out: "
            "set env_args.vectorization_mode to async"
        )


def _make_wrapped(make: EnvMaker, wrappers: Wrappers) -> gymnasium.Env:
    """Return a single environment inside its wrappers; each worker process calls this function."""
    env = make()
    if isinstance(env, VectorEnv):
        raise UnsupportedEnvironment(
            "the function returns a VectorEnv: return a single environment, of which base_config.n_envs are made, or "
            "add a parameter num_envs"
        )
    return apply_wrappers(env, wrappers)


def apply_wrappers(env: Any, wrappers: Wrappers) -> Any:
    """Return an environment of Gymnasium or PettingZoo inside all wrappers, the last one outermost.

    Lists among their arguments are converted to tuples, which YAML cannot express. Raises UnsupportedEnvironment for a
    wrapper that does not exist, or raises an error.
    """
    for path, arguments in wrappers:
        try:
            env = load_callable(path)(env, **{key: _to_tuple(value) for key, value in arguments.items()})
        except UnsupportedEnvironment as error:
            raise UnsupportedEnvironment(f"env_wrappers: {error}") from error
        except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise UnsupportedEnvironment(f"env_wrappers: {path} {describe_missing(path, error)}") from error
        except Exception as error:  # a wrapper may raise any exception
            raise UnsupportedEnvironment(f"env_wrappers: {path}: {summarize_error(error)}") from error
    return env


def load_callable(path: str) -> Callable[..., Any]:
    """Import the function or class of a path `module:name`. Raises UnsupportedEnvironment if the module lacks it."""
    module, _, name = path.partition(":")
    function = getattr(import_module(module), name, None)
    if not callable(function):
        raise UnsupportedEnvironment(f"{module} has no function or class {name!r}")
    return function


def _to_tuple(value: Any) -> Any:
    return tuple(_to_tuple(part) for part in value) if isinstance(value, list) else value


def make_fault_tolerant(make: Callable[[], gymnasium.Env], owner_pid: int) -> FaultTolerantEnv:
    """Return one fault-tolerant environment, in the process `owner_pid` or in one of its worker processes."""
    if os.getpid() == owner_pid:
        return FaultTolerantEnv(make)
    prepare_worker()
    # The main process ends its workers. Programs that an environment starts do not inherit this handler.
    signal.signal(signal.SIGTERM, lambda *_: None)
    env = FaultTolerantEnv(make)
    start_garbage_collection()
    return env


class FaultTolerantEnv(gymnasium.Wrapper):
    """A wrapper that rebuilds its environment with `make` when a step or a reset raises.

    A step that raises truncates the episode, so that a reset follows in every autoreset mode. Such a step returns the
    first observation of the episode, which must be ignored; STEP_ERROR in the info marks it. A reset is repeated once
    after a rebuild, except the first reset, whose exception is raised.
    """

    def __init__(self, make: Callable[[], gymnasium.Env]):
        self._make = partial(call_simulator, make)
        super().__init__(self._make())
        self._seed: int | None = None
        self._has_started = False
        self._rebuilds = 0
        self._is_rebuilt = False  # rebuilt and not yet reset

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment; rebuild it if it raises."""
        try:
            return self.env.step(action)
        except BaseException as error:  # an environment may raise any exception
            if is_stop(error):
                raise
            error_text = _describe(error)
        self._rebuild()
        return self._start_obs, 0.0, False, True, {STEP_ERROR: error_text}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; rebuild it and reset it again if it raises."""
        if seed is not None:
            self._seed = seed
        try:
            return self._reset(seed, options)
        except Exception as error:  # an environment may raise any exception
            if not self._has_started:
                raise
            error_text = _describe(error)
        self._rebuild()
        obs, info = self._reset(seed, options)
        return obs, {**info, RESET_ERROR: error_text}

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        if self._is_rebuilt and seed is None and self._seed is not None:
            seed = derive_seed(self._seed, self._rebuilds)
        self._start_obs, info = call_simulator(self.env.reset, seed=seed, options=options)
        self._has_started, self._is_rebuilt = True, False
        return self._start_obs, info

    def _rebuild(self) -> None:
        with suppress(Exception, SystemExit):  # closing a broken environment may raise too
            self.env.close()
        self.env = self._make()
        self._rebuilds += 1
        self._is_rebuilt = True


def _describe(error: BaseException) -> str:
    """Return the traceback of an error, whose last line is its summary with the place in the user's code."""
    return f"{format_traceback(error)}\n{summarize_with_place(error)}"


def call_simulator(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of an environment.

    Raises RuntimeError for what is no Exception and must not end this process: `sys.exit`, or a class of the user.
    """
    try:
        return call(*args, **kwargs)
    except SystemExit as error:
        raise RuntimeError(f"sys.exit({'' if error.code is None else repr(error.code)}) was called") from error
    except BaseException as error:
        if isinstance(error, Exception) or is_stop(error):
            raise
        raise RuntimeError(f"{summarize_error(error)} was raised") from error


class TimeoutAsyncVectorEnv(AsyncVectorEnv):
    """Environments in spawned worker processes that must respond within `timeout` seconds; closing never blocks.

    The seconds count from the call that waits for the response. `send`, `recv` and `reset` raise RuntimeError, with the
    numbers of the environments, if worker processes exit or time out.

    Args:
        factories: A factory for each environment.
        timeout: Seconds; None is no limit.
        first_env: Number of the first environment, for messages.
        vector_kwargs: Arguments of AsyncVectorEnv.
    """

    steps_in_background = True

    def __init__(self, factories: list[EnvMaker], timeout: float | None, first_env: int = 0, **vector_kwargs: Any):
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
            if None in self.parent_pipes:  # an environment raised it, and Gymnasium has closed its pipe
                raise
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
            with suppress_warnings():
                super()._raise_if_errors(successes)


class EnvPoolVectorEnv(VectorEnv):
    """EnvPool, which runs many environments in threads of one process, as a vector environment of Gymnasium.

    It steps by `send` and `recv` only. Environment i of a reset with a seed has this seed plus i. EnvPool accepts seeds
    only when a pool is made, so every such reset makes another pool. Raises UnsupportedEnvironment for a task that
    EnvPool does not have.
    """

    steps_in_background = True

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
