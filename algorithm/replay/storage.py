"""Where the rows of a replay lie: in memory, or in files that the memory shows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np

Allocator = Callable[[tuple[int, ...], np.dtype], np.ndarray]  # all zeros, of this shape and dtype

IN_MEMORY: Allocator = np.zeros


def make_file_allocator(folder: Path) -> Allocator:
    """Each array in a file of its own in `folder`, which nothing else can open and which is gone with the array.

    That is so however the process ends. The disk's space is taken as rows are written.
    """

    def allocate(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if not prod(shape):
            return np.zeros(shape, dtype)  # no file is mapped that is empty
        with tempfile.TemporaryFile(dir=folder) as file:
            return np.asarray(np.memmap(file, dtype, "w+", shape=shape))  # which keeps the file

    return allocate
