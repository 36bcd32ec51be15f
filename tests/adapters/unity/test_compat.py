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


def run(code: str, path: Path = ROOT) -> subprocess.CompletedProcess:
    paths = os.pathsep.join([str(path), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", "import sys\n" + code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def folder():
    compat.load_api()
    import mlagents_envs

    return Path(mlagents_envs.__file__).parent


def regenerated(folder: Path, target: Path) -> None:
    """Copy the package, with its messages as current versions of protobuf generate them."""
    shutil.copytree(folder, target / "mlagents_envs", ignore=shutil.ignore_patterns("__pycache__"))
    for file in (target / "mlagents_envs" / "communicator_objects").glob("*_pb2.py"):
        data, name = compat._read_descriptor(file), f"{compat.MESSAGES}.{file.stem}"
        needed = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("from mlagents")]
        file.write_text(
            "\n".join(
                [
                    *needed,
                    "from google.protobuf import descriptor_pool",
                    "from google.protobuf.internal import builder",
                    f"DESCRIPTOR = descriptor_pool.Default().AddSerializedFile({data!r})",
                    "builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())",
                    f"builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, {name!r}, globals())",
                ]
            ),
            encoding="utf-8",
        )


def test_messages_that_cannot_be_imported_are_rebuilt():
    result = run(LOADED)
    assert result.stdout.startswith("Messages of ML-Agents, rebuilt from their descriptors. False"), result.stderr


def test_messages_that_can_be_imported_are_not_rebuilt(folder, tmp_path):
    regenerated(folder, tmp_path)
    result = run(LOADED, path=tmp_path)
    assert result.stdout.startswith("None False"), result.stderr


def test_messages_in_the_form_of_current_protobuf_can_be_rebuilt(folder, tmp_path):
    regenerated(folder, tmp_path)
    for file in sorted(folder.glob("communicator_objects/*_pb2.py")):
        assert compat._read_descriptor(
            tmp_path / "mlagents_envs" / file.relative_to(folder)
        ) == compat._read_descriptor(file)


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
