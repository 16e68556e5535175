"""Neural networks: layers, and the functions they are made of (`functad.nn.functional`)."""

from functad.nn import functional as functional
from functad.nn.linear import Linear as Linear
