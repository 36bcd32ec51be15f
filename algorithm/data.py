"""The data files of the project: default_config.yaml and envs/.

They are at the top of the repository in a checkout, and in `algorithm/_data`, where the build copies them, in an
installed package.
"""

from __future__ import annotations

from pathlib import Path


def find_data_folder(package: Path) -> Path:
    """Return the folder with the data files of the package in the folder `package`."""
    checkout = package.parent
    return checkout if (checkout / "default_config.yaml").is_file() else package / "_data"


DATA = find_data_folder(Path(__file__).resolve().parent)
