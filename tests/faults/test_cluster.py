"""Runs and a population on Ray: short ones, and some whose processes or machines are killed, or hang."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from algorithm.cli import main
from algorithm.training.metrics import read_table
from tests.faults.namespaces import HEAD, LINK, MAIN, ON_OTHER, OTHER, ROOT, NamespaceRun, start_run, two_machines  # noqa: F401
from tests.faults.runs import (
    ARGUMENTS,
    SLOW_CARTPOLE,
    assert_playable,
    read_last_metric,
    run_folder,
    saved_steps,
    write_task,
)
from tests.population.members import CONFIG, read_state
from tests.task_folder import write_task as write_environment_folder

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs network namespaces"),
    pytest.mark.usefixtures("start_run"),
]
SETTINGS = ["--set", "cluster_config.token_auth=false", "base_config.max_env_restarts=4"]
RUN = [*MAIN, *ARGUMENTS]
ENDLESS = [*RUN, "--ray", "local", *SETTINGS, "base_config.max_step=null", "base_config.save_every=500"]
ACTOR, EVALUATION = "ray::Actor", "ray::Evaluator.call"
# 127.0.0.1, the same as an IPv6 address, and ::1, as the system writes them in /proc.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def count_env_steps() -> int:
    """Return the env steps of the last row of metrics."""
    with suppress(Exception):
        return int(read_last_metric("env_steps"))
    return 0


def wait_for_steps(run, more: int) -> None:
    """Wait until the run has made more env steps."""
    target = count_env_steps() + more
    run.wait_until(lambda: count_env_steps() >= target)


@pytest.mark.timeout(240)
def test_two_actors_on_ray_train_an_agent(start_run):  # noqa: F811
    write_task()
    home = ["env", f"HOME={Path.cwd()}"]
    run = start_run(*home, *RUN, "--ray", "local", "--set", "base_config.evaluate_every=300")
    run.wait_until(lambda: run.find(ACTOR))
    assert_private(run)
    assert run.wait() == 0, run.out.read_text()
    assert saved_steps()[-1] >= 600
    assert_playable()
    rows = read_table(run_folder().path / "metrics.csv").rows
    assert any(row["cluster/actors"] and float(row["cluster/actors"]) == 2 for row in rows)
    assert all(float(row["cluster/restarts"] or 0) == 0 for row in rows)
    evaluated = [int(row["env_steps"]) for row in rows if row["eval/return"]]
    assert len(evaluated) > 1 and set(evaluated) <= set(saved_steps())
    assert run_folder().find_best().folder.name in {f"{env_steps:012d}" for env_steps in evaluated}
    assert main.main(["export", *ARGUMENTS]) == 0
    assert (run_folder().path / "agent.onnx").is_file()


def assert_private(run) -> None:
    """Check that other machines cannot connect to a local cluster, and that it has tokens and no dashboard."""
    (raylet,) = run.find("raylet/raylet")
    environ = Path(f"/proc/{raylet}/environ").read_text().split("\0")
    assert {"RAY_AUTH_MODE=token", "RAY_USAGE_STATS_ENABLED=0"} <= set(environ)
    assert Path(".ray/auth_token").is_file()
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{raylet}/net/{name}").open()]
    listening = [line[1].split(":") for line in lines if line[3] == "0A"]
    assert listening and {address for address, _ in listening} <= LOOPBACK
    assert f"{8265:04X}" not in {port for _, port in listening}  # of the dashboard


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_continues_without_actors_that_are_killed_or_hang(start_run):  # noqa: F811
    write_task(SLOW_CARTPOLE)
    run = start_run(*ENDLESS, "cluster_config.timeout=20")
    run.wait_for("steps/s")
    first, second = run.find(ACTOR)
    os.kill(first, signal.SIGKILL)
    run.wait_for("another actor replaces it")
    wait_for_steps(run, 500)
    os.kill(second, signal.SIGSTOP)
    run.wait_for("has not replied for 20 s")
    run.wait_until(lambda: second not in run.find(ACTOR))
    run.wait_until(lambda: read_last_metric("cluster/actors") == 2)
    for pid in run.find(ACTOR):
        os.kill(pid, signal.SIGKILL)
    run.wait_until(lambda: read_last_metric("cluster/restarts") == 4)
    wait_for_steps(run, 500)
    assert read_last_metric("cluster/lost_env_steps") > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_resumes_without_its_learner_and_continues_without_its_evaluator(start_run):  # noqa: F811
    write_task(SLOW_CARTPOLE)
    run = start_run(*ENDLESS)
    run.wait_for("steps/s")
    run.wait_until(saved_steps)
    run.kill()  # with all processes of the namespace
    saved = saved_steps()[-1]
    resumed = start_run(*RUN, "--resume", "--set", "base_config.evaluate_every=500")
    kill_evaluator(resumed)
    os.kill(resumed.find("main.py")[0], signal.SIGTERM)
    assert resumed.wait() == 143, resumed.out.read_text()
    assert "Terminated. Checkpoint saved" in resumed.out.read_text()
    assert saved_steps()[-1] > saved
    assert_playable()


def kill_evaluator(run) -> None:
    """Kill the evaluation actor of a run, and wait until another one has repeated the evaluation."""
    run.wait_until(lambda: run.find(EVALUATION))
    for pid in run.find(EVALUATION):
        os.kill(pid, signal.SIGKILL)
    run.wait_for("another actor repeats the evaluation")
    run.wait_for("evaluation at ")
    wait_for_steps(run, 500)


RAY_START = f"{sys.executable} -m ray.scripts.scripts start --num-cpus=1 --disable-usage-stats"
# Ray's time limits are shorter than by default, so that it reports the cut after seconds.
JOIN = f"on_other {RAY_START} --address={HEAD}:6379 --node-ip-address={OTHER}"
LINKED_CLUSTER = f"""
{LINK}
export RAY_worker_niceness=0 RAY_raylet_start_wait_time_s=120
export RAY_grpc_client_keepalive_timeout_ms=4000 RAY_gcs_rpc_server_reconnect_timeout_s=4
export RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=4000 RAY_health_check_failure_threshold=3
{RAY_START} --head --port=6379 --node-ip-address={HEAD} --include-dashboard=false
{JOIN}
"""
LINKED_RUN = [*RUN, "--ray", f"{HEAD}:6379", *SETTINGS, "base_config.max_step=null", "base_config.save_every=500"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("two_machines")
def test_a_run_continues_without_a_machine_that_is_cut_off_or_killed(start_run):  # noqa: F811
    write_task(SLOW_CARTPOLE)
    run = start_run("bash", "-c", LINKED_CLUSTER + '"$@"', "bash", *LINKED_RUN)
    run.wait_for("steps/s")
    assert read_last_metric("cluster/actors") == 2
    run.execute("ip", "link", "set", "near", "down")
    run.wait_for("another actor replaces it")
    wait_for_steps(run, 500)
    assert read_last_metric("cluster/actors") == 1
    assert read_last_metric("cluster/lost_env_steps") > 0
    run.execute("ip", "link", "set", "near", "up")
    run.execute("bash", "-c", ON_OTHER + JOIN)
    run.wait_until(lambda: read_last_metric("cluster/actors") == 2)
    assert read_last_metric("cluster/restarts") == 1
    for raylet in run.find(f"--node_ip_address={OTHER}"):
        os.kill(raylet, signal.SIGKILL)
    run.wait_until(lambda: read_last_metric("cluster/restarts") == 2)
    wait_for_steps(run, 500)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("two_machines")
def test_a_run_that_is_cut_off_from_the_head_ends_and_resumes(start_run):  # noqa: F811
    write_task(SLOW_CARTPOLE)
    run = start_run("bash", "-c", f'{LINKED_CLUSTER} on_other "$@"', "bash", *LINKED_RUN)
    run.wait_for("steps/s")
    wait_for_steps(run, 500)
    run.execute("ip", "link", "delete", "near")
    assert run.wait() == 1, run.out.read_text()
    assert "Failed to connect to GCS" in run.out.read_text()
    saved = saved_steps()[-1]
    resumed = start_run(*RUN, "--resume", "--ray", "local", *SETTINGS, f"base_config.max_step={saved + 1000}")
    assert resumed.wait() == 0, resumed.out.read_text()
    assert saved_steps()[-1] >= saved + 1000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_loses_a_learner_ends_and_resumes(start_run):  # noqa: F811
    write_task(SLOW_CARTPOLE)
    run = start_run(*ENDLESS, "cluster_config.learners=2", "cluster_config.timeout=20")
    lose_learner(run, signal.SIGKILL)
    assert "learner 1 ended" in run.out.read_text()
    saved = saved_steps()[-1]
    resumed = start_run(*RUN, "--resume")
    resumed.wait_until(lambda: saved_steps()[-1] > saved)
    lose_learner(resumed, signal.SIGSTOP)
    assert "did not answer within 20 s" in resumed.out.read_text()
    assert len(read_table(run_folder().path / "metrics.csv").rows) > 3
    assert_playable()


def lose_learner(run, number: int) -> None:
    """Send a signal to learner 1 when the run has learned for some time, and wait for the end of the run."""
    run.wait_for("steps/s")
    wait_for_steps(run, 500)
    (learner,) = run.find("ray::Learner")
    os.kill(learner, number)
    assert run.wait() == 1, run.out.read_text()


POPULATION = ["mine/task", "-n", "there", "--population", "4", "--ray", "local", *SETTINGS[:2]]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_population_that_is_stopped_is_resumed_and_equals_one_in_processes_of_this_machine(start_run):  # noqa: F811
    write_environment_folder(CONFIG.replace("save_every: null", "save_every: 20"))
    run = start_run(*MAIN, *POPULATION, "population_config.processes=2")
    run.wait_for("interval 1")
    os.kill(run.find("main.py")[0], signal.SIGTERM)
    assert run.wait() == 143, run.out.read_text()
    assert "Terminated. Checkpoints saved" in run.out.read_text()
    resumed = start_run(*MAIN, "mine/task", "-n", "there", "--resume")
    resumed.wait_for("interval 2")
    resumed.kill()  # with all processes of the namespace
    assert main.main("mine/task -n there --resume --set base_config.runtime=LOCAL".split()) == 0
    arguments = "mine/task -n here --population 4 --max_step 180 --set population_config.processes=2"
    assert main.main(arguments.split()) == 0
    there, here = (Path(f"runs/mine/task/{name}/lineage.jsonl").read_text() for name in ("there", "here"))
    assert there == here and there.count("\n") == 12
    there, here = map(read_state, ("there", "here"))
    assert there.keys() == here.keys()
    assert all(there[name] == here[name] for name in here if name.endswith((".pt", ".npz")))
