"""ML-Agents' client can be imported with current versions of protobuf and with versions that match its messages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mlagents_envs")
from algorithm.adapters.unity import compat  # noqa: E402
from tests.missing_packages import ROOT, run_without  # noqa: E402

LOADED = """
from algorithm.adapters.unity import compat
api = compat.load_api()
message = api.UnityMessageProto(unity_output={"rl_output": {"side_channel": b"x"}})
assert api.UnityMessageProto.FromString(message.SerializeToString()).unity_output.rl_output.side_channel == b"x"
print(sys.modules[compat.MESSAGES + ".observation_pb2"].__doc__, "distutils" in sys.modules)
"""


def load(*paths: Path) -> str:
    """Return what LOADED prints in a process that imports packages from `paths` first."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
    command = [sys.executable, "-c", "import sys\n" + LOADED]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def folder():
    compat.load_api()
    import mlagents_envs

    return Path(mlagents_envs.__file__).parent


@pytest.fixture(scope="module")
def regenerated(folder, tmp_path_factory):
    """Return the package with its messages as current versions of protobuf generate them."""
    target = tmp_path_factory.mktemp("regenerated") / "mlagents_envs"
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (target / "communicator_objects").glob("*_pb2.py"):
        data, name = compat._read_descriptor(file), f"{compat.MESSAGES}.{file.stem}"
        needed = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("from mlagents")]
        lines = [
            *needed,
            "from google.protobuf import descriptor_pool",
            "from google.protobuf.internal import builder",
            f"DESCRIPTOR = descriptor_pool.Default().AddSerializedFile({data!r})",
            "builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())",
            f"builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, {name!r}, globals())",
        ]
        file.write_text("\n".join(lines), encoding="utf-8")
    return target


def test_only_messages_that_cannot_be_imported_are_rebuilt(regenerated):
    assert load().startswith("Messages of ML-Agents, rebuilt from their descriptors. False")
    assert load(regenerated.parent).startswith("None False")


def test_messages_in_the_form_of_current_protobuf_can_be_rebuilt(folder, regenerated):
    for file in folder.glob("communicator_objects/*_pb2.py"):
        assert compat._read_descriptor(regenerated / file.relative_to(folder)) == compat._read_descriptor(file)


@pytest.mark.parametrize(
    ("package", "is_checkout", "command"),
    [
        *((package, True, "pip install -e .") for package in ("mlagents_envs", "grpc", "google", "PIL")),
        ("grpc", False, "pip install samara-rl"),
    ],
)
def test_a_missing_package_is_one_line_with_the_command(package, is_checkout, command):
    code = f"""
from algorithm import program
program.IS_CHECKOUT = {is_checkout}
from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.unity import compat
try:
    compat.load_api()
except UnsupportedEnvironment as error:
    print(error)
"""
    message = run_without(package, code)
    assert message.startswith("env_type UNITY needs a package that is missing (No module named ")
    assert message.endswith(f"): {command}") and "\n" not in message


def test_a_file_without_messages_is_an_error_that_names_it(tmp_path):
    file = tmp_path / "strange_pb2.py"
    file.write_text("DESCRIPTOR = None\n", encoding="utf-8")
    with pytest.raises(compat.UnsupportedEnvironment, match="strange_pb2.py holds no message descriptor"):
        compat._read_descriptor(file)


def test_a_line_about_a_scene_is_logged_once(caplog):
    compat.load_api()
    from mlagents_envs.side_channel.side_channel_manager import SideChannelManager

    message = bytes(range(16)) + b"\x00\x00\x00\x00"
    for _ in range(3):
        SideChannelManager([]).process_side_channel_message(message)
    assert len([line for line in caplog.messages if "Unknown side channel" in line]) == 1
