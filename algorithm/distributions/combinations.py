"""The combinations of several discrete branches.

The K combinations are in the order of nested loops over the branches, of which the last is the innermost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise, product

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor

MAX_COMBINATIONS = 512  # of discrete branches, if each combination has a value


def check_combinations(branches: Sequence[int]) -> int:
    """Return the number of combinations of discrete branches.

    Raises:
        ValueError: There are more than `MAX_COMBINATIONS`.
    """
    n_combinations = math.prod(branches)
    if n_combinations > MAX_COMBINATIONS:
        raise ValueError(
            f"there are {n_combinations} combinations of discrete branches {list(branches)}; each has a value, "
            f"and at most {MAX_COMBINATIONS} are supported"
        )
    return n_combinations


def find_combination(indices: Real[Tensor, "*B branches"], branches: Sequence[int]) -> Tensor:
    """Return the index of the combination [..., 1] that consists of these indices of each branch."""
    combination = indices.new_zeros(indices.shape[:-1], dtype=torch.int64)
    for n_actions, branch in zip(branches, indices.long().unbind(-1), strict=True):
        combination = combination * n_actions + branch
    return combination.unsqueeze(-1)


def split_columns(columns: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return the columns [..., size] of each part, such as a branch."""
    # Slices instead of a split, whose unused outputs would stay in an exported graph.
    return [columns[..., begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]


def list_combinations(branches: Sequence[int]) -> np.ndarray:
    """Return the indices of every branch [K, branches] for each combination."""
    return np.array(list(product(*map(range, branches))), np.float32).reshape(math.prod(branches), len(branches))


def one_hot_combinations(branches: Sequence[int]) -> Float[Tensor, "K sum_of_branches"]:
    """Return the concatenated one-hot indices of each branch, for every combination."""
    indices = torch.tensor(list_combinations(branches)).long()
    parts = [torch.eye(n)[index] for index, n in zip(indices.unbind(-1), branches, strict=True)]
    return torch.cat([torch.zeros(len(indices), 0), *parts], -1)


def find_allowed_combinations(mask: Tensor, branches: Sequence[int], codes: Tensor) -> Tensor:
    """Return 1 for each allowed combination, otherwise 0, [..., K]; a branch without an allowed action is not masked.

    Args:
        mask: Above 0 for allowed actions [..., sum of branches].
        branches: Number of actions of each branch.
        codes: The result of `one_hot_combinations`.
    """
    parts = split_columns(mask.clamp(0, 1).float(), branches)
    is_forbidden = [(1 - part) * part.sum(-1, keepdim=True).clamp(max=1) for part in parts]
    return (1 - torch.cat(is_forbidden, -1) @ codes.T).clamp(min=0)
