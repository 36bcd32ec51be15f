"""All numbers of an agent in flat tensors, so that clipping, stepping, averaging, sharing are one operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

State = dict[str, dict[str, Tensor]]


class TargetNetwork:
    """A network that follows another: a target, or the average policy of a trust region."""

    def __init__(self, source: nn.Module, network: nn.Module):
        self.source = source
        self.network = network
        self.source_vector = self.vector = torch.empty(0)  # until the parameters are laid out

    def polyak_update(self, rate: float) -> None:
        """copy <- copy + rate (source - copy), for all numbers at once."""
        self.vector.lerp_(self.source_vector, rate)


class FlatParameters:
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
        target_networks: Mapping[str, TargetNetwork],
        statistics: Mapping[str, nn.Module],
        device: str | torch.device = "cpu",
    ):
        group_tensors: dict[str, list[Tensor]] = {name: list(module.parameters()) for name, module in groups.items()}
        trainable = list(chain.from_iterable(group_tensors.values()))
        if len({id(parameter) for parameter in trainable}) < len(trainable):
            raise ValueError(f"a parameter belongs to two of the groups {list(groups)}")
        for target in target_networks.values():
            target.network.load_state_dict(target.source.state_dict())
            target.network.requires_grad_(False)
        target_tensors: dict[str, list[Tensor]] = {
            name: list(target.network.parameters()) for name, target in target_networks.items()
        }

        size = sum(parameter.numel() for parameter in trainable)
        tensors = trainable + list(chain.from_iterable(target_tensors.values()))
        self.all_parameters = flatten_tensors(tensors, torch.float32, device)
        self.vector, self.target_vector = self.all_parameters[:size], self.all_parameters[size:]
        self.gradient = torch.zeros_like(self.vector)
        _view_gradients(trainable, self.gradient)
        self.group_slices, self.target_slices = _compute_slices(group_tensors), _compute_slices(target_tensors)
        for name, target in target_networks.items():
            target.vector = self.target_vector[self.target_slices[name]]
            target.source_vector = view_contiguous(list(target.source.parameters()))

        for module in (*groups.values(), *statistics.values()):
            for buffer in module.buffers():  # the running statistics among them are laid out below
                buffer.data = buffer.data.to(device, choose_dtype(device, buffer.dtype))
        statistics_tensors = {name: list(module.buffers()) for name, module in statistics.items()}
        dtype = choose_dtype(device, torch.float64)
        self.statistics = flatten_tensors(list(chain.from_iterable(statistics_tensors.values())), dtype, device)
        self.statistics_slices = _compute_slices(statistics_tensors)
        for target in target_networks.values():
            for own, shared in zip(target.network.buffers(), target.source.buffers(), strict=True):
                own.data = shared.data

    def named_slices(self) -> dict[str, tuple[Tensor, dict[str, slice]]]:
        """The flat tensors with the names of their slices."""
        return {
            "parameters": (self.vector, self.group_slices),
            "target_networks": (self.target_vector, self.target_slices),
            "statistics": (self.statistics, self.statistics_slices),
        }

    def state(self) -> State:
        """Copies of everything, by kind and name."""
        return {
            kind: {name: flat[columns].cpu().clone() for name, columns in slices.items()}
            for kind, (flat, slices) in self.named_slices().items()
        }

    def load(self, state: State) -> None:
        """Set everything from `state`, which may hold more names than these.

        Raises ValueError naming the slice that is missing or of another size, before anything is changed.
        """
        pairs = []
        for kind, (flat, slices) in self.named_slices().items():
            for name, columns in slices.items():
                saved, current = state.get(kind, {}).get(name), flat[columns]
                if saved is None:
                    raise ValueError(f"{kind} {name!r} are missing: they come from another agent")
                if saved.shape != current.shape:
                    raise ValueError(
                        f"{kind} {name!r} are {len(saved)} numbers where this network has {len(current)}: "
                        "they come from another network"
                    )
                pairs.append((current, saved))
        for current, saved in pairs:
            current.copy_(saved)


def choose_dtype(device: str | torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return `dtype` as a device has it: float64 is float32 on mps."""
    is_missing = dtype == torch.float64 and torch.device(device).type == "mps"
    return torch.float32 if is_missing else dtype


def flatten_tensors(tensors: Sequence[Tensor], dtype: torch.dtype, device: str | torch.device) -> Tensor:
    """Copy tensors into one flat tensor and make each a view of its place there."""
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=dtype, device=device)
    start = 0
    for tensor in tensors:
        place = flat[start : start + tensor.numel()].view_as(tensor)
        place.copy_(tensor.detach())
        tensor.data = place
        start += tensor.numel()
    return flat


def _compute_slices(groups: Mapping[str, list[Tensor]]) -> dict[str, slice]:
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


def view_contiguous(tensors: Sequence[Tensor]) -> Tensor:
    """The one stretch of a flat tensor that a module's tensors fill. Raises ValueError where they are scattered."""
    size = sum(tensor.numel() for tensor in tensors)
    first, last = tensors[0], tensors[-1]
    if last.storage_offset() + last.numel() - first.storage_offset() != size:
        raise ValueError("a network that is copied must fill one stretch of one group")
    return first.detach().as_strided((size,), (1,))
