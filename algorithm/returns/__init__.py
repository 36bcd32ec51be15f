"""Targets: tensors in, [T, B] out. Nothing here reduces over rows or detaches."""

from algorithm.returns.n_step import n_step_return
from algorithm.returns.rescaling import rescale, unscale
from algorithm.returns.retrace import retrace
from algorithm.returns.scan import reverse_scan
from algorithm.returns.vtrace import vtrace

__all__ = ["n_step_return", "rescale", "retrace", "reverse_scan", "unscale", "vtrace"]
