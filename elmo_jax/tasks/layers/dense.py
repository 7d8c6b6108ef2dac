"""Implements dense layers with the initial values of the programs that the task models follow.

Shapes: D numbers of input, F features of the output.
"""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Initial = Literal["torch", "xavier"]
"""The initial values of a layer.

"torch" stands for the defaults of PyTorch, which AllenNLP's task models keep unless they say otherwise. "xavier" stands
for those of AllenNLP's ESIM: Xavier-uniform input matrices, orthogonal recurrent matrices and zero biases.
"""


def uniform(bound: float) -> nn.initializers.Initializer:
    """Returns an initializer that draws uniformly from [-bound, bound]."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class Dense(nn.Module):
    """Computes the product with a matrix plus a bias, in float32 at full precision.

    The parameters are `kernel` [D, F] and `bias` [F].
    """

    features: int  # F
    # "torch" draws both parameters from U(±1/sqrt(D)); "xavier" has a Xavier-uniform kernel and a zero bias
    initial: Initial = "torch"

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps [..., D] to [..., F]."""
        size = inputs.shape[-1]
        if self.initial == "torch":
            kernel_init = bias_init = uniform(size**-0.5)
        else:
            kernel_init, bias_init = nn.initializers.xavier_uniform(), nn.initializers.zeros_init()
        kernel = self.param("kernel", kernel_init, (size, self.features))
        bias = self.param("bias", bias_init, (self.features,))
        return jnp.matmul(inputs, kernel, precision=lax.Precision.HIGHEST) + bias
