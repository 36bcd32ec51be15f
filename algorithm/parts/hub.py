"""Runs on the Hugging Face Hub: weights, settings, network and model card of a run, to upload and to read."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor

from algorithm.atomic_io import resolve_inside
from algorithm.errors import UserError, redact_logins, summarize_error
from algorithm.networks.flat_parameters import State
from algorithm.parts.env_folder import CONFIG_FILE
from algorithm.parts.lock import make_temporary_folder
from algorithm.parts.run_folder import ROLES_FILE, RunFolder
from algorithm.program import get_install_command

PREFIX = "hf://"  # of the address of a run on the hub: hf://user/name, or hf://user/name@revision
WEIGHTS = "weights"  # the folder with the weights of each role
ALSO_UPLOADED = ("README.md", "curve.png")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def upload_run(run: RunFolder, repository: str, private: bool, log: Callable[[str], None]) -> str:
    """Upload a run with the weights that were best on evaluation episodes, and return its web address.

    The token is that of the library, from its login or HF_TOKEN; it is neither printed nor stored.

    Args:
        run: The run folder.
        repository: user/name, or organization/name; it is created if it does not exist.
        private: Whether a new repository is private.
        log: Receives a line with the names of the files.

    Raises:
        UserError: The run cannot be read, the name is not that of a repository, or the upload fails.
        CheckpointError: No checkpoint can be read.
    """
    if not REPOSITORY.fullmatch(repository):
        raise UserError(f"{repository} is not the name of a repository, such as user/name")
    hub = import_hub()
    with tempfile.TemporaryDirectory(prefix="samara-share-") as folder:
        files = write_files(run, Path(folder), log)
        log(f"uploading {len(files)} files to {repository}: {', '.join(files)}")
        try:
            api = hub.HfApi(endpoint=hub.constants.ENDPOINT)
            api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload a run of Samara")
        except Exception as error:  # of the library, or of the server
            raise UserError(f"the upload to {repository} failed: {summarize_error(error)}") from error
    return f"{hub.constants.ENDPOINT}/{repository}"


def write_files(run: RunFolder, target: Path, log: Callable[[str], None]) -> list[str]:
    """Write what is uploaded of a run to a folder; return the paths in it."""
    from safetensors.torch import save_file

    checkpoint = run.read_checkpoint(None, log)
    contents: dict[str, bytes] = {CONFIG_FILE: redact_logins(run.config_file.read_text(encoding="utf-8")).encode()}
    others = [ROLES_FILE, *ALSO_UPLOADED, *(path.name for path in sorted(run.path.glob("*.py")))]
    videos = sorted(run.path.rglob("*.mp4"), key=lambda path: path.stat().st_mtime)
    for name in (*others, *(path.relative_to(run.path).as_posix() for path in videos[-1:])):
        path = run.path / name
        if path.is_file():
            try:
                contents[Path(name).name] = resolve_inside(run.path, Path(name)).read_bytes()
            except ValueError as error:
                raise UserError(str(error)) from error
    for name, content in contents.items():
        (target / name).write_bytes(content)
    (target / WEIGHTS).mkdir()
    for role in checkpoint.roles:
        tensors = {
            f"{kind}/{name}": tensor.contiguous()
            for kind, by_name in checkpoint.weights(role).items()
            for name, tensor in by_name.items()
        }
        save_file(tensors, locate_weights(target, role))
    return sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())


def download_run(address: str, trust_code: bool) -> RunFolder:
    """Return a run of the hub as a run folder, which is removed with this process.

    Args:
        address: hf://user/name, or hf://user/name@revision.
        trust_code: Whether Python files of the repository, which are executed, may be used.

    Raises:
        UserError: The address is not valid, the download fails, or there is code that is not trusted.
    """
    repository, _, revision = address.removeprefix(PREFIX).partition("@")
    if not REPOSITORY.fullmatch(repository):
        raise UserError(f"{address}: the address of a run on the hub is {PREFIX}user/name, or with @revision")
    hub = import_hub()
    try:
        patterns = [CONFIG_FILE, ROLES_FILE, "*.py", f"{WEIGHTS}/*.safetensors"]
        path = make_temporary_folder("samara-hub-") / "run"  # the library's own cache consists of links
        hub.snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=patterns,
            local_dir=path,
            endpoint=hub.constants.ENDPOINT,
        )
    except Exception as error:  # of the library, or of the server
        raise UserError(f"{address} cannot be read: {summarize_error(error)}") from error
    if not (path / CONFIG_FILE).is_file() or not (path / WEIGHTS).is_dir():
        raise UserError(f"{address} is no run of Samara: it has no {CONFIG_FILE} and no {WEIGHTS}/")
    if (code := sorted(file.name for file in path.glob("*.py"))) and not trust_code:
        raise UserError(
            f"{address} has code that would be executed ({', '.join(code)}): read it at "
            f"{hub.constants.ENDPOINT}/{repository}, then pass trust_code=True"
        )
    return RunFolder(path)


def read_shared_weights(run: RunFolder, role: str) -> State:
    """Return the weights of a role of a downloaded run. Raises UserError if they are missing or damaged."""
    from safetensors.torch import load_file

    try:
        tensors = load_file(locate_weights(run.path, role))
    except Exception as error:  # the library raises several types
        raise UserError(f"the weights of {role} cannot be read: {summarize_error(error)}") from error
    state: dict[str, dict[str, Tensor]] = {"parameters": {}, "target_networks": {}, "statistics": {}}
    for path, tensor in tensors.items():
        kind, _, name = path.partition("/")
        state.setdefault(kind, {})[name] = tensor
    return state


def locate_weights(folder: Path, role: str) -> Path:
    """Return the file with the weights of a role."""
    return folder / WEIGHTS / f"{quote(role, safe='')}.safetensors"


def import_hub() -> Any:
    """Return the library of the hub. Raises UserError, with the command that installs it, if it is missing."""
    try:
        import huggingface_hub.constants
        import safetensors  # noqa: F401
    except ImportError as error:
        raise UserError(f"the hub needs the extra hub ({error}): {get_install_command('hub')}") from error
    return huggingface_hub
