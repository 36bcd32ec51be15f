"""The convolutional network of A3C with an LSTM (Mnih et al. 2016): it observes single frames."""

from algorithm.networks import Blueprint, Conv, Lstm

blueprint = Blueprint(encoders={"*": Conv((16, 8, 4), (32, 4, 2), units=256)}, memory=Lstm(256))
