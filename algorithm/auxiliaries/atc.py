"""Augmented temporal contrast (Stooke et al. 2021, arXiv 2009.08319)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from algorithm.auxiliaries.auxiliary import masked_mean
from algorithm.auxiliaries.siamese import SiameseAuxiliary
from algorithm.distributions import MASKED_LOGIT
from algorithm.networks import Mlp


class AugmentedTemporalContrast(SiameseAuxiliary):
    """A contrastive loss: the features of x_t identify x_t+k among all second observations of the batch.

        c_t = compressor(phi(x_t)),   c'_t+k = target compressor(target phi(x_t+k))
        p_t = c_t + predictor(c_t),   l_ij = p_i^T W c'_j,   loss = -mean_i log softmax_j(l_i)_i       (section 3)

    The compressor is linear, the predictor has one hidden layer.
    """

    def build_heads(self, size: int) -> nn.ModuleDict:
        settings, latent_size = self.settings, self.settings.latent_size
        hidden = Mlp(settings.units)(latent_size)
        self.predictor = nn.Sequential(hidden, nn.Linear(settings.units, latent_size))
        self.bilinear = nn.Linear(latent_size, latent_size, bias=False)
        projector = nn.Linear(size, latent_size)
        return nn.ModuleDict({"projector": projector, "predictor": self.predictor, "bilinear": self.bilinear})

    def compare(self, online: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        predicted = online + self.predictor(online)
        logits = compute_logits(self.bilinear(predicted), target, valid)
        label = torch.arange(len(logits), device=logits.device)
        loss = masked_mean(nn.functional.cross_entropy(logits, label, reduction="none"), valid)
        return loss, {"accuracy": masked_mean((logits.argmax(-1) == label).float(), valid)}


def compute_logits(predicted: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Return the product of each prediction with each target [n, n]; the targets of invalid pairs are never selected.

    Args:
        predicted: [n, D].
        target: [n, D].
        valid: The pairs that count [n] bool.
    """
    return (predicted @ target.T).masked_fill(~valid, MASKED_LOGIT)
