"""Implements the feed-forward networks that score mentions and pairs.

Shapes: F features, H hidden units per layer.

The first layer's input is a concatenation, which is never made for all candidates or pairs: the caller multiplies each
part by its rows of the kernel, which is far less work since parts are shared.
"""

import flax.linen as nn
import jax

from elmo_jax.model.dropout import dropped
from elmo_jax.tasks.layers.dense import glorot_uniform, product
from elmo_jax.types import Tree


class Scorer(nn.Module):
    """The parameters of a network with one output."""

    features: int  # F
    hidden: int  # H
    depth: int  # the number of hidden layers

    @nn.compact
    def __call__(self) -> Tree:
        """Returns `hidden_0` to `hidden_{depth - 1}` and `output`, each with `kernel` and `bias`."""
        sizes = [self.features, *[self.hidden] * self.depth, 1]
        names = [*(f"hidden_{number}" for number in range(self.depth)), "output"]
        return {
            name: {
                "kernel": self.param(f"{name}_kernel", glorot_uniform, (sizes[number], sizes[number + 1])),
                "bias": self.param(f"{name}_bias", glorot_uniform, (sizes[number + 1],)),
            }
            for number, name in enumerate(names)
        }


def finish(params: Tree, first: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Computes the scores [...] from the first layer before its ReLU, [..., H], with the parameters of a `Scorer`.

    The fraction `rate` of the hidden units is dropped, none without a key.
    """
    depth = len(params) - 1
    keys = [None] * depth if key is None else [*jax.random.split(key, depth)]
    hidden = dropped(jax.nn.relu(first), rate, keys[0])
    for number in range(1, depth):
        layer = params[f"hidden_{number}"]
        hidden = dropped(jax.nn.relu(product(hidden, layer["kernel"]) + layer["bias"]), rate, keys[number])
    return product(hidden, params["output"]["kernel"][:, 0]) + params["output"]["bias"][0]
