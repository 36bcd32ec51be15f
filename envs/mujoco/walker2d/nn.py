"""17 positions, angles and velocities; separate layers for policy and critic."""

from algorithm.networks import Blueprint, Mlp, Residual, Vector


def blueprint(units: int = 256, critic_units: int | None = None, kind: str = "plain") -> Blueprint:
    """Return the network.

    Args:
        units: Units of the policy's layers.
        critic_units: Units of the critics' layers; None: as many as the policy's.
        kind: plain: two hidden layers; residual: two residual blocks with batch norm and unit weights (FlashSAC);
            renormalized: two hidden layers with batch renormalization (CrossQ).
    """
    makers = {
        "plain": lambda size: Mlp(size, size),
        "residual": lambda size: Residual(size, blocks=2, unit_weights=True),
        "renormalized": lambda size: Mlp(size, size, norm="batch_renorm"),
    }
    policy, critic = (makers[kind](size) for size in (units, critic_units or units))
    return Blueprint(encoders={"*": Vector()}, policy=policy, critic=critic)
