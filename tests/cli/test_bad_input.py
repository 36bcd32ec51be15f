"""Mistakes of users: each ends with an exit status and one line that states what is wrong, where, and what is right."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.command_line import train_once

SHORT = {"max_step": 40, "log_every": 20, "n_envs": 1}
PROBE = {"env_type": "PROBE", "suggest_settings": False, "env_name": "choice", **SHORT}
SPACES = """from gymnasium import Env, spaces as s
from numpy import inf
BOX = s.Box(0, 1)
class Own(Env):
    observation_space, action_space = %s, %s
    def reset(self, **_):
        return self.observation_space.sample(), {}
make = Own
"""
NN = "from algorithm.networks import *\n"
BODY = (
    NN
    + """import torch
class Body(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.layer = size, torch.nn.Linear(size, size)
    def forward(self, x):
        %s
        return self.layer(x)
blueprint = Blueprint(body=Body)
"""
)
COUNTER = """import gymnasium, numpy
class Counter(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        self.steps = 0
        %s
        return numpy.zeros(1, numpy.float32), {}
    def step(self, action):
        self.steps += 1
        info = {}
        %s
        return numpy.zeros(1, numpy.float32), 1.0, self.steps == 9, False, info
make = %s
"""


def environment(config=None, **files) -> None:
    """Create the environment folder mine/task with these files; the default configuration is a probe."""
    folder = Path("envs/mine/task")
    folder.mkdir(parents=True)
    text = config if isinstance(config, str) else yaml.safe_dump(config or {"default": {"base_config": PROBE}})
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    for name, code in files.items():
        (folder / f"{name}.py").write_text(code, encoding="utf-8")


def default(**sections) -> dict:
    """Return a configuration of the probe with more settings."""
    base = {**PROBE, **sections.pop("base_config", {})}
    return {"default": {"base_config": base, **sections}}


def learning(algorithm: str, **base) -> dict:
    """Return a configuration of a short run of an algorithm, by default with the probe."""
    section = {} if algorithm in ("ACER", "A2C", "PPO") else {f"{algorithm.lower()}_config": {"learning_starts": 9}}
    return default(base_config={"algorithm": algorithm, **base}, **section)


def gym(env_name, **base) -> dict:
    """Return a configuration of a Gymnasium environment."""
    return {"default": {"base_config": {"env_type": "GYM", "env_name": env_name, **SHORT, **base}}}


# Command lines, with a part of the error.
COMMANDS = """
mine/task --rendr | did you mean --render?
-n a | name the environment folder first
mine/task --agents | --agents
mine/task --agents two | invalid int value: 'two'
mine/task --max_step -5 | base_config.max_step is -5
mine/task --max-iter 0 | --max-iter: it is 0; it must be at least 1
mine/task --seed 1.5 | invalid int value: '1.5'
mine/task --seed 010 | invalid int value: '010': 010 is not a decimal number
mine/task --seed -1 | base_config.seed is -1
mine/task --editor | --editor: base_config.unity_args.build_path is for env_type UNITY
mine/task --render | --render goes with --run, not with training
mine/task --video | --video goes with --run, not with training
mine/task --run --render --video | --video: not allowed with argument --render
mine/task --ckpt 5 | --ckpt goes with --run, not with training
mine/task --disable-sample | --disable-sample goes with --run
mine/task --use-env-nn | --use-env-nn goes with --resume and --run, not with training
mine/task --run --resume | --resume: not allowed with argument --run
mine/task --resume --force | --force goes with training, not with --resume
mine/task --run --max_step 5 | --max-step goes with
mine/task --run --seconds 5 | --seconds goes with training and --resume, not with --run
mine/task --run --config x | --config goes with training, not with --run
mine/task --resume --repeat 2 | --repeat goes with training
mine/task --jobs 2 | --jobs is the number of runs of --repeat
mine/task --repeat 2 --jobs 2 --set base_config.runtime=CLUSTER | --jobs is for runs of one machine
mine/task --lr 1e-3 | unknown option --lr; use --set acer_config.learning_rate=...
mine/tusk | did you mean mine/task?
nowhere | no environment folder 'nowhere' with a config.yaml under ./envs; the folders are mine/task
mine/task -n {tme} | with {time} for the start time
mine/task --run | there is no run under runs
mine/task --resume | train one with: python main.py mine/task
list | there is no run under runs yet
list mine/task | there is no run under runs/mine/task yet
init gym/a:b | expected group/name, for example gym/acrobot
init mine/task | exists already and was not changed
init gym/thing --set base_config.env_name=Thing-v1 | env_name 'Thing-v1'
init gym/chain --set base_config.env_type=PROBE | init writes folders for env_type GYM, ATARI, DM_CONTROL, PETT
init gym/own --set base_config.env_name=env.py | an env.py needs its own config.yaml
mine/task --env_args limit=1:30 | --env-args limit=1:30: the value cannot be read: 1:30 is not a decimal number
mine/task --env_args limit | --env-args limit: expected key=value
mine/task --nn other.py | there is no other.py
mine/task --repeat 1000000 | --repeat: it is 1000000; it must be at most 1000
"""
# Settings after --set, with a part of the error.
ASSIGNMENTS = """
auxiliaries.curiosity.strength=-1 | --set: auxiliaries.curiosity.strength is -1.0; it must be at least 0
auxiliaries.curiosity.strenght=1 | --set: unknown setting auxiliaries.curiosity.strenght; did you mean auxiliaries.curio
auxiliaries.curiosity.model=sideways | --set: auxiliaries.curiosity.model is 'sideways'; input should be 'both', 'forwar
auxiliaries.curiosity=3 | --set: auxiliaries.curiosity is a section; its settings go below it, not 3
auxiliaries.curious.strength=1 | auxiliaries 'curious' is unknown; use one of: curiosity
explorer.novel_action=0 | explorer.novel_action: n_samples is 0; it must be an integer
explorer.noise_repeat=16 | explorer.noise_repeat: noise_repeat is for continuous actions; for
gamma | --set gamma: expected section.key=value
=1 | --set =1: expected section.key=value
acer_config.gamma=[ | the value cannot be read: not YAML
base_config.seed=010 | the value cannot be read: 010 is not a decimal number
base_config.seed.x=1 | base_config.seed is {'x': 1}
acer_config.gamma=.nan | acer_config.gamma is nan
acer_config.learning_rate=true | acer_config.learning_rate is True
base_config.evaluate_greedy=1 | base_config.evaluate_greedy is 1
base_config.device=tpu | cuda:1 (the device with this index), gpu (the same as cuda), mps or auto
base_config.env_wrappers=TimeAware | base_config.env_wrappers is 'TimeAware'; it must be a list
base_config.env_wrappers=[TimeAware] | 'TimeAware' is neither module:Wrapper nor {module:Wrapper
base_config.env_wrappers=[3] | 3 is neither module:Wrapper nor
base_config.env_wrappers=[{'a:B':3}] | is neither module:Wrapper nor
base_config.ignore_observations=[mission] | a probe has only the observation obs
replay_config.capacity=5 | replay_config.capacity
nn_config.unitz=3 | nn_config does not fit the default network
acer_config.on_policy_updates=false acer_config.replay_ratio=0 | leaves nothing to learn from
acer_config.estimator=tree_backup acer_config.critic=state_value | tree_backup needs action values
base_config.algorithm=PPO ppo_config.clip_ratio_schedule=linear base_config.max_step=null | linear needs
base_config.algorithm=A2C a2c_config.rollout_length=2147483647 | rollouts of 2,147,483,647 rows for 1 ag
acer_config.optimizer_beta1=1 | optimizer_beta1 is 1.0; it must be at least 0 and below 1
acer_config.optimizer_decay=1 | optimizer_decay is 1.0; it must be at least 0 and below 1
base_config.algorithm=SAC sac_config.replay_ratio=0 | sac_config.replay_ratio is 0.0; it must be a
base_config.algorithm=SAC sac_config.target_d_alpha=1.01 | it must be from 0 to 1, the largest entropy
base_config.algorithm=SAC sac_config.target_c_alpha=-0.7 | it must be at least -0.6931, the largest
base_config.algorithm=REACTOR reactor_config.v_min=4.9999 reactor_config.reward_normalization=null | too close for 51
base_config.algorithm=REACTOR reactor_config.n_atoms=1 | is 1; it must be from 2 to 10,000
base_config.algorithm=REACTOR reactor_config.replay_ratio=0 | it must be above 0 and at most 10,000
base_config.algorithm=REACTOR reactor_config.learning_starts=9 reactor_config.burn_in_step=2 | no memory
acer_config.reward_clip=1e200 | reward_clip is 1e+200; it must be at most 3.40282e+38, the la
replay_config.capacity=1e18 | replay_config.capacity: 1,000,000,000,000,000,000 rows
replay_config.capacity=1e30 | replay_config.capacity is 1e+30; it must be
acer_config.batch_size=9223372036854775808 | it must be at most 2,147,483,647
base_config.seed=9223372036854775808 | it must be at most 9,223,372,036,854,775,807
acer_config.batch_size=2147483647 | batch_size: 2,147,483,647 sequences of 20 rows are
acer_config.rollout_length=2147483647 | replay_config.capacity: 50000 rows over 1 lanes hold no
base_config.algorithm=SAC base_config.max_step=2000 replay_config.capacity=1000 | stores at most 999
acer_config.on_policy_updates=false | acer_config.learning_starts is 1000, but base_config.max_step 40
"""
ROWS = [
    *(row.split(" | ") for row in COMMANDS.strip().splitlines()),
    *(f"mine/task --set {row}".split(" | ") for row in ASSIGNMENTS.strip().splitlines()),
    [f"mine/task --set {'a.' * 3000}b=1", "a setting is at most 40 levels deep"],
]

# Contents of config.yaml, with a part of the error.
CONFIGS = [
    (default(acer_config={"gama": 0.9}), "config.yaml: unknown setting acer_config.gama; did you mean"),
    (default(acer_config={"worker_steps": 5}), "use acer_config.rollout_length"),
    (default(goal=475), "goal is a section"),
    (default(explorer={3: [0, 1]}), "explorer: the name 3 is not text"),
    (default(auxiliaries={None: {}}), "auxiliaries: the name None is not text"),
    (default(auxiliaries={"rnd": {"gamma": 2}}), "config.yaml: auxiliaries.rnd.gamma is 2.0; it must be from 0 to 1"),
    (
        default(ma_config={"agent": {"auxiliaries": {"rnd": {"gamma": 2}}}}),
        "ma_config.agent: auxiliaries.rnd.gamma is 2.0",
    ),
    (default(ma_config={True: {}}), "ma_config: the name True is not text"),
    (default(nn_config={3: 4}), "nn_config: the name 3 is not text"),
    ({"default": None, "fast": {"inherit": ["default"]}}, "'fast' inherits ['default']; expected the name"),
    ({"default": None, "fast": {"inherit": 3}}, "'fast' inherits 3; expected the name of a variant"),
    (default(base_config={"n_envs": "many"}), "config.yaml: base_config.n_envs is 'many'"),
    ({"default": 3}, "the variant 'default' is 3"),
    ({"fast": None}, "no variant 'default'; use one of: fast"),
    ("default: [", "config.yaml: not YAML"),
    ("default: {goal: null}\ndefault: {}", "default is defined twice"),
    ("default:\n  base_config: {seed: 010}", "config.yaml: line 2: 010 is not a decimal number"),
    (f"default: {'[' * 3000}", "nest"),
    ({"default": None}, "base_config.env_name is not set"),
    (gym("Nothing-v1"), "env_name 'Nothing-v1'"),
    (gym("CartPole-v1", env_wrappers=["no_such_module:Wrapper"]), "no_such_module:Wrapper needs a package: "),
    (gym("CartPole-v1", ignore_observations=["mission"]), "there is no observation 'mission'; the environment has obs"),
    (gym("classic/rps_v2"), "'classic/rps_v2' needs env_type PETTINGZOO: set base_config.env_type to PETT"),
    (gym("ALE/Pong-v5"), "'ALE/Pong-v5' needs env_type ATARI"),
    (gym("no_such_module:Thing-v1"), "pip install no_such_module"),
    (default(base_config={"env_name": "chains"}), "the probes are"),
    (gym("env.py"), "there is no env.py"),
]
# Contents of env.py, with the exit status and a part of the error.
ENVS = [
    (SPACES % ("s.Text(3)", "s.Discrete(2)"), 2, "base_config: observation 'obs' is Text"),
    (SPACES % ("s.Dict(a=s.Dict(b=BOX))", "s.Discrete(2)"), 2, "observation 'a' is Dict"),
    (SPACES % ("s.Dict(a=s.Graph(BOX, None))", "s.Discrete(2)"), 2, "observation 'a' is Graph"),
    (SPACES % ("s.Sequence(BOX)", "BOX"), 2, "observation 'obs' is Sequence"),
    (SPACES % ("BOX", "s.Dict(gear=s.Text(3))"), 2, "action 'gear' is Text"),
    (SPACES % ("BOX", "s.Tuple([BOX, s.Dict(a=BOX)])"), 2, "action 1 is Dict"),
    (SPACES % ("s.Dict(a=BOX, action_mask=BOX)", "s.Discrete(3)"), 2, "of 3 values"),
    ("def make(:", 2, "env.py: SyntaxError"),
    ("import nothing_of_this_name", 2, "ModuleNotFoundError"),
    ("def make(): raise OSError('no\\ndisplay')", 3, "does not start: OSError: no display"),
    (COUNTER % ("assert options", "", "Counter"), 3, "env.py' does not start: AssertionError in"),
    (COUNTER % ("assert options", "", "lambda: Counter()"), 3, "env.py, line 6"),
    (COUNTER % ("", "", "Counter()"), 2, "expected a function make(**env_args)"),
    ("import functools\ndef made(x): return x\nmake = functools.partial(made, 3)", 3, "env.py' d"),
    ("class Own:\n    def __call__(self): return 3\nmake = Own()", 3, "env.py' does not start"),
    ("make = print", 3, "the environment 'print' does not start"),
    ("make = 3", 2, "expected a function make(**env_args)"),
    ("def make():\n    import nothing_of_this_name", 2, "env.py' needs a package"),
]
# Contents of nn.py, with a part of the error.
NETWORKS = [
    ("def blueprint(:", "nn.py: SyntaxError"),
    ("x = 1\n1/0", "nn.py, line 2: ZeroDivisionError"),
    ("import sys\nsys.exit(5)", "nn.py, line 2: SystemExit: 5"),
    ("def blueprint(): return 3", "expected `blueprint`"),
    ("def blueprint(units): ...", "nn_config does not fit"),
    ("def blueprint():\n    raise KeyError('x')", "nn.py, line 2: KeyError: 'x'"),
    (NN + "blueprint = Blueprint(encoders={'eye': Vector()})", "eye"),
    ("assert False", "nn.py, line 1: AssertionError\n"),
    ("def blueprint():\n    import sys\n    sys.exit(5)", "nn.py, line 3: SystemExit: 5"),
    (BODY % "raise KeyError('x')", "nn.py, line 8: KeyError: 'x'"),
    (NN + "blueprint = Blueprint(policy=Gru(4))", "Gru made a GruMemory, which has no `forward`"),
    (BODY % "assert False", "nn.py, line 8: AssertionError\n"),
    (BODY % "return x[:, :0]", "nn.py: RuntimeError"),
    (NN + "blueprint = Blueprint({}, Mlp(4))", "nn.py, line 2: TypeError: Blueprint.__init__() takes"),
    (BODY % "return None", "nn.py: "),
    ((BODY % "").replace("size)\n    def", "'x')\n    def"), "nn.py, line 6: TypeError"),
    *(
        (NN + f"blueprint = Blueprint({layers})", f"nn.py, line 2: ValueError: {name} has the size {size}")
        for layers, name, size in [
            ("body=Mlp(0)", "Mlp", "0"),
            ("body=Mlp(-3)", "Mlp", "-3"),
            ("body=Mlp(64, 2.5)", "Mlp", "2.5"),
            ("body=Mlp(2**63)", "Mlp", "9223372036854775808"),
            ("body=NoisyMlp('64')", "NoisyMlp", "'64'"),
            ("memory=Gru(0)", "Gru", "0"),
            ("memory=Lstm(None)", "Lstm", "None"),
            ("memory=Attention(0)", "Attention", "0"),
            ("encoders={'*': NatureCnn(0)}", "NatureCnn", "0"),
            ("encoders={'*': ImpalaResNet((0,))}", "ImpalaResNet", "0"),
            ("encoders={'*': FrameStack(2.0, Vector())}", "FrameStack", "2.0"),
        ]
    ),
]
NO_MEMORY = "Gru made a GruMemory, which has no `forward` and does not fit here; a memory goes into memory="


def case(message, config=None, status=2, **files) -> tuple:
    """Return a folder with a mistake, as `environment` takes it, with the exit status and a part of the error."""
    return config, files, status, message


def reactor(space: str) -> dict:
    """Return the arguments of a case of Reactor with this space of actions."""
    return {"config": learning("REACTOR", env_type="GYM", env_name="env.py"), "env": SPACES % ("BOX", space)}


FOLDERS = [
    *(case(message, config) for config, message in CONFIGS),
    *(case(message, gym("env.py"), status, env=code) for code, status, message in ENVS),
    case(
        "observation '1' is Sequence",
        gym("env.py", suggest_settings=False),
        env=SPACES % ("s.Tuple([BOX, s.Sequence(BOX)])", "BOX"),
    ),
    *(case(message, nn=code) for code, message in NETWORKS),
    case("auxiliaries.byol: both observations of a pair would be", default(auxiliaries={"byol": {}}), nn=BODY % ""),
    case("unbounded_action_limit is 0", gym("env.py", unbounded_action_limit=0), env=SPACES % ("BOX", "BOX")),
    case("unexpected keyword argument 'gravity_of_mars'", gym("CartPole-v1", env_args={"gravity_of_mars": 1}), 3),
    *(
        case(f"{NO_MEMORY}, and only Reactor", learning(algorithm), nn=NN + f"blueprint = Blueprint({part}=Gru(4))")
        for algorithm in ("ACER", "SAC", "A2C", "PPO")
        for part in ("policy", "critic")
    ),
    case(NO_MEMORY, learning("REACTOR"), nn=NN + "blueprint = Blueprint(body=Gru(4))"),
    case("REACTOR is for discrete actions, not for [1] float32 from 0 to 1; use ACER, SAC, ", **reactor("s.Box(0, 1)")),
    case("; use ACER, SAC, A2C or PPO\n", **reactor("s.Dict(gas=s.Box(0, 1), gear=s.Discrete(3))")),
    case("are 1000 combinations of discrete branches [10, 10, 10]; each has", **reactor("s.MultiDiscrete([10] * 3)")),
    *(
        case("int made a value of type int; it must", config, nn=NN + "blueprint = Blueprint(critic=int)")
        for config in (learning("REACTOR"), default(acer_config={"critic": "action_value"}))
    ),
    case("argument 'width'", default(nn_config={"width": 3}), nn=NN + "def blueprint(units=4): return Blueprint()"),
]
# Mistakes that are found during training.
LATER = [
    case(
        "env.py' returned info['action_mask'] with a step but not with its first reset; return it with every reset",
        gym("env.py"),
        env=COUNTER % ("", "info = {'action_mask': numpy.ones(2)}", "Counter"),
    ),
    case(
        "nn.py, line 8: AssertionError\n",
        default(acer_config={"batch_size": 4, "learning_starts": 8}),
        nn=BODY % "assert len(x) < 5",
    ),
]


@pytest.mark.parametrize(("line", "message"), ROWS, ids=[line for line, _ in ROWS])
def test_an_invalid_command_line_is_an_error_of_one_line_with_status_2(line, message, command):
    environment()
    assert message in command.fail(line)
    assert not list(Path.cwd().rglob("runs/**/config.yaml"))  # the name stays free


@pytest.mark.parametrize(("config", "files", "status", "message"), FOLDERS)
def test_an_invalid_folder_is_an_error_of_one_line_that_names_it(config, files, status, message, command):
    environment(config, **files)
    assert message in command.fail("mine/task -n a", status)
    assert not Path("runs/mine/task/a").exists()


@pytest.mark.parametrize(("config", "files", "status", "message"), LATER)
def test_an_error_during_training_is_one_line_that_names_its_place(config, files, status, message, command):
    environment(config, **files)
    assert message in command.fail("mine/task -n a", status)


@pytest.mark.parametrize(("name", "env_name"), [("nn", "choice"), ("env", "env.py")])
def test_a_folder_in_the_place_of_a_file_is_an_error_of_one_line(name, env_name, command):
    environment(default(base_config={"env_name": env_name, "env_type": "GYM" if name == "env" else "PROBE"}))
    Path(f"envs/mine/task/{name}.py").mkdir()
    assert command.fail("mine/task -n a") == f"{Path('envs/mine/task', name)}.py is a folder; expected a file\n"
    assert not Path("runs").exists()


def test_the_folder_of_these_tests_trains_without_a_fault(command):
    environment(nn=NN + "def blueprint(units=4): return Blueprint(body=Mlp(units))")
    command("mine/task -n a --set nn_config.units=8")
    command("mine/task -n b --set acer_config.batch-size=1e1 base-config.max_step=40.0 --agents 1.0")


def test_arguments_that_the_default_network_does_not_have_are_an_error_of_one_line(command):
    line = "CartPole-v1 -n a --max_step 40 --set nn_config.unitz=8"
    assert "nn_config does not fit the default network, without an nn.py: got an unexpected" in command.fail(line)


EXISTING = [
    ("mine/task -n a", "run runs/mine/task/a exists already; --resume continues it, --force replaces it"),
    ("mine/task -n b --repeat 2", "run runs/mine/task/b-2 exists already"),
    ("mine/task -n a --run --ckpt 39", "--ckpt 39: there is no such checkpoint; runs/mine/task/a has 40"),
    ("mine/task -n a --run --ckpt runs", "/runs is outside of"),
    ("mine/task -n a --run --nn other.py", "there is no other.py"),
    ("mine/task -n a --run --set acer_config.gama=1", "did you mean acer_config.gamma?"),
    ("mine/task -n a --run --render", "a probe cannot be rendered"),
    ("mine/task -n a --resume --use_env_nn", "--use-env-nn: there is no nn.py in "),
    ("mine/task -n a --resume --set base_config.env_name=chain", "the saved experience is of this environment"),
    ("mine/task -n a --resume --agents 3", "the saved replay has a lane for each environment"),
    ("mine/task -n . --run", "there is no run '.'"),
    ("list mine/other", "there is no run under runs/mine/other yet"),
    ("mine --force -n task", "no environment folder 'mine'"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A working directory with the runs a and b-2."""
    place = train_once(tmp_path_factory, "mine/task -n a", environment)
    shutil.copytree(place / "runs/mine/task/a", place / "runs/mine/task/b-2")
    return place


def files_of_runs() -> dict[Path, int]:
    """Return the modification time of each file except locks."""
    return {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*") if path.name != ".lock"}


@pytest.mark.parametrize(("line", "message"), EXISTING, ids=[line for line, _ in EXISTING])
def test_an_impossible_command_for_a_run_is_one_line_and_changes_nothing(line, message, trained, monkeypatch, command):
    monkeypatch.chdir(trained)
    before = files_of_runs()
    assert message in command.fail(line).replace("\\", "/")
    assert files_of_runs() == before


def test_an_unexpected_error_is_one_line_and_debug_shows_the_traceback(trained, monkeypatch, command):
    monkeypatch.chdir(trained)
    monkeypatch.setattr("algorithm.runs.results.format_record", lambda record: 1 / 0)
    line = command.fail("list", 1)
    assert line.startswith("ZeroDivisionError: division by zero (unexpected; --debug shows")
    shown = command("list --debug", 1).err
    assert "Traceback" in shown and "1 / 0" in shown
