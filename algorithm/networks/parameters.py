"""All numbers of an agent in three flat tensors, so that clipping, stepping, averaging, sharing are one operation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor, nn

State = dict[str, dict[str, Tensor]]


class LaggingCopy:
    """A network that follows another: a target, or the average policy of a trust region."""

    def __init__(self, source: nn.Module, copy: nn.Module):
        self.source = source
        self.copy = copy
        self.source_numbers = self.numbers = torch.empty(0)  # until the parameters are laid out

    def move(self, rate: float) -> None:
        """copy <- copy + rate (source - copy), for all numbers at once."""
        self.numbers.lerp_(self.source_numbers, rate)


class Parameters:
    """The trainable numbers of `groups`, those of the lagging copies, and the running statistics.

    `vector` and `gradient` (float32) hold the groups one after the other, `copies` (float32) the lagging copies,
    `statistics` (float64) the buffers of the modules in `statistics`. Laid out once; afterwards modules are views,
    and nothing may move or replace them.

    Raises ValueError where a parameter belongs to two groups, or a copy does not look like its source.
    """

    def __init__(
        self,
        groups: Mapping[str, nn.Module],
        lagging: Mapping[str, LaggingCopy],
        statistics: Mapping[str, nn.Module],
        device: str | torch.device = "cpu",
    ):
        members: list[list[Tensor]] = [list(module.parameters()) for module in groups.values()]
        if len({id(p) for group in members for p in group}) < sum(map(len, members)):
            raise ValueError(f"a parameter belongs to two of the groups {list(groups)}")
        self.vector, self.groups = _flatten(dict(zip(groups, members, strict=True)), torch.float32, device)
        self.gradient = torch.zeros_like(self.vector)
        _view_gradients(members, self.gradient)

        for copy in lagging.values():
            copy.copy.load_state_dict(copy.source.state_dict())
            copy.copy.requires_grad_(False)
        self.copies, self.lagging = _flatten(
            {name: list(copy.copy.parameters()) for name, copy in lagging.items()}, torch.float32, device
        )
        for name, copy in lagging.items():
            copy.numbers = self.copies[self.lagging[name]]
            copy.source_numbers = _span(list(copy.source.parameters()))

        self.statistics, self.running = _flatten(
            {name: list(module.buffers()) for name, module in statistics.items()}, torch.float64, device
        )

    def parts(self) -> dict[str, tuple[Tensor, dict[str, slice]]]:
        """The three flat tensors with the names of their slices."""
        return {
            "parameters": (self.vector, self.groups),
            "copies": (self.copies, self.lagging),
            "statistics": (self.statistics, self.running),
        }

    def state(self) -> State:
        """Copies of everything, by kind and name."""
        return {
            kind: {name: flat[where].cpu().clone() for name, where in slices.items()}
            for kind, (flat, slices) in self.parts().items()
        }

    def load(self, state: State) -> None:
        """Set everything from `state`, which may hold more names than these.

        Raises ValueError naming the slice that is missing or of another size, before anything is changed.
        """
        pairs = []
        for kind, (flat, slices) in self.parts().items():
            for name, where in slices.items():
                saved, own = state.get(kind, {}).get(name), flat[where]
                if saved is None:
                    raise ValueError(f"{kind} {name!r} are missing: they come from another agent")
                if saved.shape != own.shape:
                    raise ValueError(
                        f"{kind} {name!r} are {len(saved)} numbers where this network has {len(own)}: "
                        "they come from another network"
                    )
                pairs.append((own, saved))
        for own, saved in pairs:
            own.copy_(saved)


def _flatten(
    groups: Mapping[str, list[Tensor]], dtype: torch.dtype, device: str | torch.device
) -> tuple[Tensor, dict[str, slice]]:
    """Copy tensors into one flat tensor, group after group, and make each a view of its place there."""
    tensors = [tensor for group in groups.values() for tensor in group]
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=dtype, device=device)
    slices, start = {}, 0
    for name, group in groups.items():
        end = start + sum(tensor.numel() for tensor in group)
        slices[name] = slice(start, end)
        for tensor in group:
            place = flat[start : start + tensor.numel()].view_as(tensor)
            place.copy_(tensor.detach())
            tensor.data = place
            start += tensor.numel()
    return flat, slices


def _view_gradients(groups: list[list[Tensor]], gradient: Tensor) -> None:
    start = 0
    for parameter in chain.from_iterable(groups):
        parameter.grad = gradient[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()


def _span(parameters: list[nn.Parameter]) -> Tensor:
    """The one stretch of the flat tensor that a module's parameters fill."""
    size = sum(p.numel() for p in parameters)
    first, last = parameters[0], parameters[-1]
    if last.storage_offset() + last.numel() - first.storage_offset() != size:
        raise ValueError("the source of a lagging copy must fill one stretch of one group")
    return first.detach().as_strided((size,), (1,))
