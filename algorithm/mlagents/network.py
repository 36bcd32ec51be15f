"""`network_settings` as an nn.py."""

from __future__ import annotations

from algorithm.mlagents.mapping import MEMORY
from algorithm.mlagents.trainer_config import TrainerConfig

TEMPLATE = '''\
"""{called}: {layers} x {units} units {whose}{remembering}."""

from algorithm.networks import Blueprint, {names}


def blueprint(units: int = {units}, layers: int = {layers}):
    """The arguments come from nn_config in config.yaml."""
    vector = {vector}
{image}
    def sensor(spec):
        """What reads it goes by its shape: a trainer configuration does not name the sensors."""
        return (image if len(spec.shape) == 3 else vector)(spec)

    hidden = Mlp(*[units] * layers)
    return Blueprint({{"*": sensor}}, {heads})
'''
# ML-Agents' networks of images, by vis_encode_type; its layers, strides and kernels.
IMAGE_ENCODERS = {
    "simple": "Conv((16, 8, 4), (32, 4, 2), units=units)",
    "nature_cnn": "NatureCnn(units)",
    "resnet": "ImpalaResNet(units=units)",
    "match3": "Conv((35, 3, 1), (144, 3, 1), units=units)",
}
FLAT_ENCODER = '''
    def image(spec):
        """Its pixels side by side, from 0 to 1."""
        return Vector(scale=1 / spec.high)(spec)
'''


def make_nn_file(config: TrainerConfig, called: str) -> str:
    """The text of the nn.py of the behavior, which is `called` so in it."""
    visual = config.get("network_settings.vis_encode_type", "simple")
    image = IMAGE_ENCODERS.get(visual)
    units = config.get("network_settings.hidden_units", 128)
    layers = max(1, config.get("network_settings.num_layers", 2))  # ML-Agents has one where it is told none
    # ML-Agents' memory is output and cell of its LSTM, each half of it.
    remembered = config.get(f"{MEMORY}.memory_size") // 2 if f"{MEMORY}.memory_size" in config.entries else None
    shared = config.trainer == "ppo" and config.get("hyperparameters.shared_critic", False)
    heads, names = "policy=hidden, critic=hidden", ["Mlp", "Vector"]
    if remembered:
        heads = f"body=hidden, memory=Lstm({remembered})"
        names.append("Lstm")
    elif shared:
        heads = "body=hidden"
    if image:
        names.append(image.partition("(")[0])
    return TEMPLATE.format(
        called=called,
        layers=layers,
        units=units,
        whose="each for policy and critic" if heads.startswith("policy") else "for both policy and critic",
        remembering=f", which remember {remembered} numbers" if remembered else "",
        names=", ".join(sorted(names)),
        vector=f"Vector(normalize={config.get('network_settings.normalize', False)})",
        image=f"    image = {image}\n" if image else FLAT_ENCODER,
        heads=heads,
    )
