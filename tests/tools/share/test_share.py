"""Runs on the Hugging Face Hub: uploaded to a stand-in server on loopback, and read again."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("huggingface_hub.constants")

import algorithm  # noqa: E402
from algorithm.errors import UserError  # noqa: E402
from tests.task_folder import write_task  # noqa: E402
from tests.tools.share.hub_server import HubServer  # noqa: E402

TOKEN = "hf_of-these-tests"
RUN = Path("runs/mine/task/a")
CONFIG = """
default:
  base_config: {env_type: GYM, env_name: CartPole-v1, n_envs: 2, max_step: 200, tracker: none}
  acer_config: {rollout_length: 8, sequence_length: 12, batch_size: 4, learning_starts: 32}
"""
NN = "from algorithm.networks import Blueprint, Mlp\nblueprint = Blueprint(body=Mlp(8))\n"


@pytest.fixture
def server(monkeypatch, tmp_path):
    """Start a server, and let the library use it."""
    server = HubServer(TOKEN)
    monkeypatch.setattr(hub.constants, "ENDPOINT", server.address)
    template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(command):
    write_task(CONFIG, "mine/task", NN)
    command("mine/task -n a")
    return RUN


def test_a_run_is_uploaded_and_read_again(server, run, command):
    (run / "videos").mkdir()
    (run / "videos" / "best.mp4").write_bytes(b"pictures")
    shown = command(f"share {run} me/cart --private")
    files = server.repositories["me/cart"]
    assert {"README.md", "config.yaml", "roles.json", "nn.py", "best.mp4", "weights/agent.safetensors"} <= set(files)
    assert server.private == {"me/cart": True}
    assert f"shared: {server.address}/me/cart" in shown.out and TOKEN not in shown.out + shown.err
    assert not any(TOKEN.encode() in content for content in files.values())
    assert not any(TOKEN in path.read_text(errors="replace") for path in run.rglob("*") if path.is_file())

    with pytest.raises(UserError, match=r"has code that would be executed \(nn.py\): read it at .*/me/cart"):
        algorithm.load("hf://me/cart")
    shared, own = algorithm.load("hf://me/cart", trust_code=True), algorithm.load(run)
    shared.disable_sample = own.disable_sample = True
    for seed in range(20):
        obs = np.random.default_rng(seed).normal(size=4).astype(np.float32)
        assert shared.act(obs) == own.act(obs)


def test_a_second_upload_replaces_the_files_of_the_first(server, run, command):
    for _ in range(2):
        assert command.json(f"share {run} me/cart")["address"] == f"{server.address}/me/cart"
    assert server.private == {"me/cart": False}


def test_a_rejected_token_and_a_missing_server_are_one_line_without_the_token(server, run, command, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    error = command.fail(f"share {run} me/cart")
    assert error.startswith("the upload to me/cart failed: ") and "401" in error and "hf_another" not in error
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert command.fail(f"share {run} me/cart").startswith("the upload to me/cart failed: ")


def test_no_file_outside_of_the_run_is_uploaded(server, run, command, tmp_path):
    (run / "curve.png").unlink(missing_ok=True)
    secret = tmp_path / "secret.py"
    secret.write_text("password = 1")
    (run / "more.py").symlink_to(secret)
    assert "is outside of" in command.fail(f"share {run} me/cart")
    assert not server.repositories


@pytest.mark.parametrize(
    ("address", "files", "message"),
    [
        ("hf://cart", {}, "hf://cart: the address of a run on the hub is hf://user/name"),
        ("hf://me/none", {}, "hf://me/none cannot be read: RepositoryNotFoundError"),
        ("hf://me/other", {"README.md": b"hello"}, "hf://me/other is no run of Samara: it has no config.yaml"),
        ("hf://me/other", {"config.yaml": b"", "weights/agent.safetensors": b"no"}, "."),
    ],
)
def test_what_is_no_run_cannot_be_loaded(server, address, files, message):
    server.repositories["me/other"] = files
    with pytest.raises((UserError, ValueError), match=message):
        algorithm.load(address)


def test_a_wrong_argument_and_a_missing_library_are_one_line(server, run, command, monkeypatch):
    for line, message in (
        ("share runs/nowhere me/cart", "runs/nowhere is no run folder; give one, such as runs/gym/cartpole/NAME"),
        (f"share {run} cart", "cart is not the name of a repository, such as user/name"),
        (f"share {run} ../cart/x", "../cart/x is not the name of a repository"),
    ):
        assert message in command.fail(line)
    assert not server.repositories
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert command.fail(f"share {run} me/cart").endswith('pip install -e ".[hub]"\n')
