"""Augmentation of images for learning: random shifts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from algorithm.networks.blueprint import Augmentation
from algorithm.specs import ObsSpec


@dataclass(frozen=True)
class RandomShift:
    """A factory of an augmentation that shifts images at random: `augmentations={"image": RandomShift(4)}`.

    See `random_shift`. All frames of a FrameStack are shifted together.

    Args:
        pixels: Largest shift in each direction, in pixels; 4 by default, as in the paper for images of 84 x 84
            pixels; at least 1.

    Raises:
        ValueError: `pixels` is not an integer of at least 1; when the augmentation is made: an observation that is not
            an image [channels, rows, columns], or one of at most `pixels` rows or columns.
    """

    pixels: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.pixels, int) or isinstance(self.pixels, bool) or self.pixels < 1:
            raise ValueError(f"RandomShift has a shift of {self.pixels!r} pixels; it must be an integer, at least 1")

    def __call__(self, spec: ObsSpec) -> Augmentation:
        if len(spec.shape) != 3:
            raise ValueError(
                f"RandomShift shifts images [channels, rows, columns], not an observation {list(spec.shape)}; "
                "name the images in the blueprint's augmentations"
            )
        if min(spec.shape[1:]) <= self.pixels:
            raise ValueError(f"an image {list(spec.shape)} is too small for a shift of up to {self.pixels} pixels")
        return partial(random_shift, pixels=self.pixels)


def random_shift(images: Tensor, pixels: int) -> Tensor:
    """Shift each image by up to `pixels` rows and columns (DrQ, Kostrikov et al. 2021, arXiv 2004.13649).

    The result equals padding by `pixels` on each side with the nearest pixel of the border, then a random crop of the
    original size. The shifts are uniform integers, independent for rows and columns and for each image, from torch's
    default generator of the device, whose state is in each checkpoint. All channels of an image have the same shift.

    Args:
        images: Images [n, channels, rows, columns] of any dtype.
        pixels: Largest shift in each direction, in pixels; 0: return `images`, and draw nothing.

    Returns:
        The shifted images, of the same shape and dtype.
    """
    if not pixels:
        return images
    n, channels, rows, columns = images.shape
    shifts = torch.randint(-pixels, pixels + 1, (2, n, 1), device=images.device)
    row, column = (
        (torch.arange(size, device=images.device) + shift).clamp(0, size - 1)
        for size, shift in zip((rows, columns), shifts, strict=True)
    )
    # One index for each pixel, the same for all channels: a fifth of the time of indexing rows and columns.
    pixel = (row.unsqueeze(2) * columns + column.unsqueeze(1)).flatten(1).unsqueeze(1)
    return images.flatten(2).gather(2, pixel.expand(n, channels, rows * columns)).view_as(images)
