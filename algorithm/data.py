"""The data files of the project: default_config.yaml and envs/.

A checkout has them at the top of the repository, an installed package in `algorithm/_data`, where the build copies them.
"""

from __future__ import annotations

from pathlib import Path


def find_data_folder(package: Path) -> Path:
    """Return the folder with the data files of the package in the folder `package`."""
    checkout = package.parent
    return checkout if (checkout / "default_config.yaml").is_file() else package / "_data"


DATA = find_data_folder(Path(__file__).resolve().parent)
