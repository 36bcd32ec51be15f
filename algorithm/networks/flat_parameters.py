"""All parameters of an agent in flat tensors: clipping, stepping, averaging and sharing are one operation each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from algorithm.networks.constraints import Constraint, find_constraints, merge_constraints
from algorithm.networks.normalization import find_batch_norms

State = dict[str, dict[str, Tensor]]  # flat tensors by kind (see FlatParameters.named_slices) and name
TARGET_PREFIX = "target/"  # before the name of a target network in the names of batch statistics
Place = Callable[[Tensor], Tensor]  # returns the tensor that other processes share in place of a new one
Network = TypeVar("Network", bound=nn.Module)


class TargetNetwork(Generic[Network]):
    """A network that follows another one: the target network of a critic, or the average policy of a trust region.

    FlatParameters copies the parameters of the source to it, and sets the attributes.

    Args:
        source: The network to follow; None: the network is never trained, and keeps its initial parameters.
        network: The network that follows, of the same structure.

    Attributes:
        vector: The flat parameters of the network.
        source_vector: Those of the source.
        statistics: The running statistics of the batch norms of the network; empty without any.
        source_statistics: Those of the source.
    """

    def __init__(self, source: Network | None, network: Network):
        self.source = source
        self.network = network
        self.vector = self.source_vector = self.statistics = self.source_statistics = torch.empty(0)

    def polyak_update(self, rate: float) -> None:
        """Move all parameters towards the source: target <- target + rate * (source - target).

        The running statistics of batch norms move in the same way; those of a target network do not learn from batches.
        """
        self.vector.lerp_(self.source_vector, rate)
        if len(self.statistics):
            self.statistics.lerp_(self.source_statistics, rate)


class FlatParameters:
    """The trainable parameters of an agent, its target networks and its running statistics, as flat tensors.

    `vector` and `gradient` hold the groups one after the other, `target_vector` the target networks, `batch_statistics`
    the running statistics of batch norms in both, `all_parameters` all three (float32). `increments` holds the changes
    that the next step adds to `batch_statistics`. `statistics` (float64; float32 on mps) holds the buffers of the
    modules with running statistics of observed rows. A target network shares the buffers of its source: both read the
    same statistics.

    The constructor makes the parameters and buffers of all modules views of the flat tensors. Nothing may move or
    replace them later.

    If several processes share the parameters (`place`), steps, target updates, saving and loading use the shared
    tensors. The modules of each process have a copy of them, which changes only in `fetch`.

    Args:
        groups: Trainable modules by the name of their parameter group.
        target_networks: Target networks by name.
        statistics: Modules by name whose buffers are running statistics.
        device: The device of all tensors.
        place: Returns the shared tensor of `all_parameters` and of `statistics`; by default the same tensor, since no
            other process shares them.

    Raises:
        ValueError: A parameter belongs to two groups, or a target network and its source differ in structure.
    """

    def __init__(
        self,
        groups: Mapping[str, nn.Module],
        target_networks: Mapping[str, TargetNetwork[Any]],
        statistics: Mapping[str, nn.Module],
        device: str | torch.device = "cpu",
        place: Place = lambda tensor: tensor,
    ):
        targets = {name: target.network for name, target in target_networks.items()}
        trainable, self.group_slices = _concatenate({name: module.parameters() for name, module in groups.items()})
        if len({id(parameter) for parameter in trainable}) < len(trainable):
            raise ValueError(f"a parameter belongs to two of the groups {list(groups)}")
        for target in target_networks.values():
            if target.source is not None:
                target.network.load_state_dict(target.source.state_dict())
            target.network.requires_grad_(False)
        in_targets, self.target_slices = _concatenate({name: module.parameters() for name, module in targets.items()})
        with_norms = {**groups, **{TARGET_PREFIX + name: network for name, network in targets.items()}}
        norms = {name: layers for name, module in with_norms.items() if (layers := find_batch_norms([module]))}
        running, self.batch_statistics_slices = _concatenate(
            {name: [norm.running for norm in layers] for name, layers in norms.items()}
        )
        self._module_parameters = flatten_tensors([*trainable, *in_targets, *running], torch.float32, device)
        self.all_parameters = place(self._module_parameters)
        self.vector, self.target_vector, self.batch_statistics = self.all_parameters.split(
            [sum(tensor.numel() for tensor in part) for part in (trainable, in_targets, running)]
        )
        increments = [norm.increment for norm in chain.from_iterable(norms.values())]
        self.increments = flatten_tensors(increments, torch.float32, device)
        self.gradient = torch.zeros_like(self.vector)
        gradients = self.gradient.split([parameter.numel() for parameter in trainable])
        for parameter, gradient in zip(trainable, gradients, strict=True):
            parameter.grad = gradient.view_as(parameter)
        self._following = [target for target in target_networks.values() if target.source is not None]
        for name, target in target_networks.items():
            self._attach(target, self.target_slices[name], self.batch_statistics_slices.get(TARGET_PREFIX + name))
        self._constraints = self._find_constraints(groups.values())
        self._target_constraints = self._find_constraints(targets.values())

        for module in (*groups.values(), *statistics.values()):
            for buffer in module.buffers():  # the running statistics among them are flattened below
                buffer.data = buffer.data.to(device, choose_dtype(device, buffer.dtype))
        buffers, self.statistics_slices = _concatenate({name: module.buffers() for name, module in statistics.items()})
        self.statistics = flatten_tensors(buffers, choose_dtype(device, torch.float64), device)
        self._shared_statistics = place(self.statistics)
        for target in self._following:
            source: Any = target.source
            for own, shared in zip(target.network.buffers(), source.buffers(), strict=True):
                own.data = shared.data

    def _attach(self, target: TargetNetwork[Any], columns: slice, statistics: slice | None) -> None:
        """Set the flat tensors of a target network and its source, given its slices of all."""
        target.vector = self.target_vector[columns]
        if target.source is not None:
            target.source_vector = self._view_shared(list(target.source.parameters()))
            if statistics:
                target.statistics = self.batch_statistics[statistics]
                norms = find_batch_norms([target.source])
                target.source_statistics = self._view_shared([norm.running for norm in norms])

    def named_slices(self) -> dict[str, tuple[Tensor, dict[str, slice]]]:
        """Return each flat tensor with the names of its slices, by kind; `batch_statistics` only with batch norms."""
        slices = {
            "parameters": (self.vector, self.group_slices),
            "target_networks": (self.target_vector, self.target_slices),
            "statistics": (self.statistics, self.statistics_slices),
        }
        if self.batch_statistics_slices:
            slices["batch_statistics"] = (self.batch_statistics, self.batch_statistics_slices)
        return slices

    def state(self) -> State:
        """Return copies of all slices on the CPU, by kind and name."""
        return {
            kind: {name: flat[columns].cpu().clone() for name, columns in slices.items()}
            for kind, (flat, slices) in self.named_slices().items()
        }

    def load(self, state: State) -> None:
        """Set all slices from `state`, which may hold further names.

        Without target networks in `state`, they become copies of their sources; networks without a source stay.

        Raises:
            ValueError: A slice is missing or has another size; the message names it. Nothing has been changed.
        """
        pairs = []
        for kind, (flat, slices) in self.named_slices().items():
            if kind == "target_networks" and kind not in state:
                continue
            for name, columns in slices.items():
                saved, current = state.get(kind, {}).get(name), flat[columns]
                if saved is None:
                    raise ValueError(f"{kind} {name!r} are missing: they come from another agent")
                if saved.shape != current.shape:
                    raise ValueError(
                        f"{kind} {name!r} have {len(saved)} values where this network has {len(current)}: "
                        "they come from another network"
                    )
                pairs.append((current, saved))
        for current, saved in pairs:
            current.copy_(saved)
        for target in () if "target_networks" in state else self._following:
            target.polyak_update(1.0)
        self.publish_statistics()
        self.fetch()

    def complete_step(self) -> None:
        """Apply the constraints of the trained parameters, and add the increments to the running statistics."""
        for constrain, parameters in self._constraints:
            constrain(parameters)
        if len(self.increments):
            self.batch_statistics += self.increments

    def apply_target_constraints(self) -> None:
        """Change the parameters of the target networks so that the constraints of their modules hold."""
        for constrain, parameters in self._target_constraints:
            constrain(parameters)

    def _find_constraints(self, modules: Iterable[nn.Module]) -> list[tuple[Constraint, Tensor]]:
        """Return the constraints of the layers of some modules, each with the flat parameters to which it applies."""
        return merge_constraints(
            (constrain, self._view_shared(parameters))
            for module in modules
            for constrain, parameters in find_constraints(module)
        )

    def _view_shared(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the part of `all_parameters` that belongs to consecutive tensors of modules, as one view."""
        part = view_contiguous(tensors)
        return self.all_parameters[part.storage_offset() :][: len(part)]

    def fetch(self) -> None:
        """Copy the shared parameters and statistics to the modules of this process."""
        self._module_parameters.copy_(self.all_parameters)  # without effect if it is the same tensor
        self.fetch_statistics()

    def fetch_statistics(self) -> None:
        """Copy the shared statistics to the modules of this process."""
        self.statistics.copy_(self._shared_statistics)

    def publish_statistics(self) -> None:
        """Copy the statistics of the modules of this process to the shared ones."""
        self._shared_statistics.copy_(self.statistics)


def choose_dtype(device: str | torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that replaces `dtype` on a device: float32 for float64 on mps, otherwise the same."""
    is_missing = dtype == torch.float64 and torch.device(device).type == "mps"
    return torch.float32 if is_missing else dtype


def flatten_tensors(tensors: Sequence[Tensor], dtype: torch.dtype, device: str | torch.device) -> Tensor:
    """Copy tensors into one flat tensor and make each a view of its part."""
    sizes = [tensor.numel() for tensor in tensors]
    flat = torch.empty(sum(sizes), dtype=dtype, device=device)
    for tensor, part in zip(tensors, flat.split(sizes), strict=True):
        place = part.view_as(tensor)
        place.copy_(tensor.detach())
        tensor.data = place
    return flat


def view_contiguous(tensors: Sequence[Tensor]) -> Tensor:
    """Return the consecutive part of a flat tensor that some tensors fill, as one view.

    Raises:
        ValueError: The tensors are not consecutive.
    """
    size = sum(tensor.numel() for tensor in tensors)
    first, last = tensors[0], tensors[-1]
    if last.storage_offset() + last.numel() - first.storage_offset() != size:
        raise ValueError("the source of a target network must be a contiguous part of one parameter group")
    return first.detach().as_strided((size,), (1,))


def _concatenate(groups: Mapping[str, Iterable[Tensor]]) -> tuple[list[Tensor], dict[str, slice]]:
    """Return the tensors of all groups, and the slice of each group among their values."""
    tensors: list[Tensor] = []
    slices, start = {}, 0
    for name, group in groups.items():
        added = list(group)
        end = start + sum(tensor.numel() for tensor in added)
        tensors, slices[name], start = tensors + added, slice(start, end), end
    return tensors, slices
