"""Bootstrap your own latent (Grill et al. 2020, arXiv 2006.07733)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize

from algorithm.auxiliaries.auxiliary import masked_mean
from algorithm.auxiliaries.settings import ByolSettings
from algorithm.auxiliaries.siamese import SiameseAuxiliary


class BootstrapYourOwnLatent(SiameseAuxiliary):
    """A loss of the features of one view of an observation, which predict a moving average's features of another view.

        z_t = projector(phi(x_t)),   z'_t+k = target projector(target phi(x_t+k))
        loss = mean_t 2 - 2 cos(predictor(z_t), z'_t+k)                                                        (Eq. 2)

    With k = 0, as in the paper, the views are two augmentations of one observation. Projector and predictor have one
    hidden layer with layer normalization in place of the paper's batch normalization, so that a row's features do not
    depend on the other rows of a batch.
    """

    Settings = ByolSettings
    settings: ByolSettings

    def __init__(self, settings: ByolSettings):
        super().__init__(settings)
        self.is_symmetric = settings.symmetric

    def build_heads(self, size: int) -> nn.ModuleDict:
        units, latent_size = self.settings.units, self.settings.latent_size
        projector = _make_network(size, units, latent_size)
        self.predictor = _make_network(latent_size, units, latent_size)
        return nn.ModuleDict({"projector": projector, "predictor": self.predictor})

    def compare(self, online: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        target = normalize(target, dim=-1)
        loss = masked_mean(compute_distance(self.predictor(online), target), valid)
        # 1 if the targets point in all directions, 0 if all are equal: the features have collapsed.
        mean = (target * valid.unsqueeze(-1)).sum(0) / valid.sum().clamp(min=1)
        return loss, {"spread": 1 - mean.square().sum()}


def compute_distance(predicted: Tensor, target: Tensor) -> Tensor:
    """Return 2 - 2 cos(predicted, target) [n] of vectors [n, D]: from 0 for equal directions to 4."""
    return 2 - 2 * nn.functional.cosine_similarity(predicted, target, dim=-1)


def _make_network(inputs: int, units: int, outputs: int) -> nn.Module:
    """Return a network with one hidden layer, normalized."""
    return nn.Sequential(nn.Linear(inputs, units), nn.LayerNorm(units), nn.ReLU(), nn.Linear(units, outputs))
