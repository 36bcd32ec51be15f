"""All numbers of an agent in flat tensors, so that clipping, stepping, averaging, sharing are one operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    `vector` and `gradient` hold the groups one after the other, `copies` the lagging copies, `numbers` vector and
    copies (all float32), `statistics` (float64, but on mps) the buffers of the modules in `statistics`. The buffers
    of a lagging copy are those of its source: both read the same running statistics. Laid out once; afterwards modules
    are views, and nothing may move or replace them.

    Raises ValueError where a parameter belongs to two groups, or a copy does not look like its source.
    """

    def __init__(
        self,
        groups: Mapping[str, nn.Module],
        lagging: Mapping[str, LaggingCopy],
        statistics: Mapping[str, nn.Module],
        device: str | torch.device = "cpu",
    ):
        trained: dict[str, list[Tensor]] = {name: list(module.parameters()) for name, module in groups.items()}
        members = list(chain.from_iterable(trained.values()))
        if len({id(parameter) for parameter in members}) < len(members):
            raise ValueError(f"a parameter belongs to two of the groups {list(groups)}")
        for copy in lagging.values():
            copy.copy.load_state_dict(copy.source.state_dict())
            copy.copy.requires_grad_(False)
        following: dict[str, list[Tensor]] = {name: list(copy.copy.parameters()) for name, copy in lagging.items()}

        size = sum(parameter.numel() for parameter in members)
        every = members + list(chain.from_iterable(following.values()))
        self.numbers = flatten(every, torch.float32, device)
        self.vector, self.copies = self.numbers[:size], self.numbers[size:]
        self.gradient = torch.zeros_like(self.vector)
        _view_gradients(members, self.gradient)
        self.groups, self.lagging = _slices(trained), _slices(following)
        for name, copy in lagging.items():
            copy.numbers = self.copies[self.lagging[name]]
            copy.source_numbers = span(list(copy.source.parameters()))

        for module in (*groups.values(), *statistics.values()):
            for constant in module.buffers():  # the running statistics among them are laid out below
                constant.data = constant.data.to(device, dtype_on(device, constant.dtype))
        running = {name: list(module.buffers()) for name, module in statistics.items()}
        wide = dtype_on(device, torch.float64)
        self.statistics = flatten(list(chain.from_iterable(running.values())), wide, device)
        self.running = _slices(running)
        for copy in lagging.values():
            for own, shared in zip(copy.copy.buffers(), copy.source.buffers(), strict=True):
                own.data = shared.data

    def parts(self) -> dict[str, tuple[Tensor, dict[str, slice]]]:
        """The flat tensors with the names of their slices."""
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


def dtype_on(device: str | torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return `dtype` as a device has it: float64 is float32 on mps."""
    absent = dtype == torch.float64 and torch.device(device).type == "mps"
    return torch.float32 if absent else dtype


def flatten(tensors: Sequence[Tensor], dtype: torch.dtype, device: str | torch.device) -> Tensor:
    """Copy tensors into one flat tensor and make each a view of its place there."""
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=dtype, device=device)
    start = 0
    for tensor in tensors:
        place = flat[start : start + tensor.numel()].view_as(tensor)
        place.copy_(tensor.detach())
        tensor.data = place
        start += tensor.numel()
    return flat


def _slices(groups: Mapping[str, list[Tensor]]) -> dict[str, slice]:
    """Where each group stands when they are laid out one after the other."""
    slices, start = {}, 0
    for name, group in groups.items():
        end = start + sum(tensor.numel() for tensor in group)
        slices[name] = slice(start, end)
        start = end
    return slices


def _view_gradients(parameters: list[Tensor], gradient: Tensor) -> None:
    start = 0
    for parameter in parameters:
        parameter.grad = gradient[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()


def span(tensors: Sequence[Tensor]) -> Tensor:
    """The one stretch of a flat tensor that a module's tensors fill. Raises ValueError where they are scattered."""
    size = sum(tensor.numel() for tensor in tensors)
    first, last = tensors[0], tensors[-1]
    if last.storage_offset() + last.numel() - first.storage_offset() != size:
        raise ValueError("a network that is copied must fill one stretch of one group")
    return first.detach().as_strided((size,), (1,))
