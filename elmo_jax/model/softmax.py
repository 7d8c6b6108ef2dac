"""The losses of the softmax over the vocabulary: sampled in training, full in evaluation (Jozefowicz et al. 2016).

Shapes: N hidden vectors, P projection, V vocabulary, S negatives. All sums and normalizers are float32.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.precision import Precision


def log_expected_count(ids: jax.Array, num_draws: jax.Array, vocabulary_size: int) -> jax.Array:
    """Returns the log of each word's expected count among the negatives, of ids of any shape by descending frequency.

    The negatives were distinct after `num_draws` draws from P(k) = log((k + 2) / (k + 1)) / log(V + 1).
    """
    # log1p(1 / (k + 1)) is used, since the ratio itself rounds to 1 for rare words.
    probability = jnp.log1p(1 / (ids.astype(jnp.float32) + 1)) / jnp.log(jnp.float32(vocabulary_size + 1))
    return jnp.log(-jnp.expm1(num_draws * jnp.log1p(-probability)))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def logits(hidden: jax.Array, rows: jax.Array, precision: Precision) -> jax.Array:
    """Returns the products of hidden vectors [N, P] and rows of the softmax [S, P], [N, S] in float32.

    In bfloat16, the products of the backward pass round the gradient of the logits, where autodiff would multiply in
    float32.
    """
    return precision.product(hidden, rows, (1, 1))


def _logits_forward(hidden: jax.Array, rows: jax.Array, precision: Precision) -> Any:
    return logits(hidden, rows, precision), (hidden, rows)


def _logits_backward(
    precision: Precision, residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    hidden, rows = residuals
    gradient = precision.operand(gradient)
    d_hidden, d_rows = precision.product(gradient, rows), precision.summed_product(gradient, hidden)
    return d_hidden.astype(hidden.dtype), d_rows.astype(rows.dtype)


logits.defvjp(_logits_forward, _logits_backward)


# Seven parameters: the target and the negatives each have rows, ids and expected counts.
def sampled_softmax_losses(
    hidden: jax.Array,  # [N, P]
    target_rows: tuple[jax.Array, jax.Array],  # the softmax weights [N, P] and biases [N] of the targets
    negative_rows: tuple[jax.Array, jax.Array],  # the softmax weights [S, P] and biases [S] of the negatives
    targets: jax.Array,  # [N] word ids
    negatives: jax.Array,  # [S] distinct word ids; one that equals the target of a row is masked in that row
    log_expected: tuple[jax.Array, jax.Array],  # the log expected counts of the targets [N] and of the negatives [S]
    precision: Precision = Precision.FLOAT32,
) -> jax.Array:
    """Returns the cross-entropy of each target among the sampled negatives, [N] in nats."""
    true = jnp.sum(hidden * target_rows[0], axis=-1) + target_rows[1] - log_expected[0]  # [N]
    sampled = logits(hidden, negative_rows[0], precision) + (negative_rows[1] - log_expected[1])  # [N, S]
    sampled = jnp.where(targets[:, None] == negatives, -jnp.inf, sampled)
    # The maximum includes the target, since all negatives of a row may be masked; the loss is zero then.
    highest = lax.stop_gradient(jnp.maximum(jnp.max(sampled, axis=-1), true))
    total = jnp.sum(jnp.exp(sampled - highest[:, None]), axis=-1) + jnp.exp(true - highest)
    return jnp.log(total) + highest - true


def full_softmax_losses(
    hidden: jax.Array,  # [N, P]
    kernel: jax.Array,  # [V, P]
    bias: jax.Array,  # [V]
    targets: jax.Array,  # [N] word ids
    chunk: int,  # the number of words scored at a time, so that [N, chunk] logits are in memory at once
    precision: Precision = Precision.FLOAT32,
) -> jax.Array:
    """Returns the cross-entropy of each target over the whole vocabulary, [N] in nats, which can be differentiated."""
    true = jnp.sum(hidden * kernel[targets], axis=-1) + bias[targets]
    return log_normalizer(hidden, kernel, bias, chunk, precision) - true


def log_normalizer(
    hidden: jax.Array, kernel: jax.Array, bias: jax.Array, chunk: int, precision: Precision = Precision.FLOAT32
) -> jax.Array:
    """Returns the log of the sum of exp of the logits of all rows, [N]; a row whose bias is -inf adds nothing."""
    vocabulary = kernel.shape[0]
    chunk = min(chunk, vocabulary)
    hidden = precision.operand(hidden)

    def step(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        # The last chunk starts earlier instead of exceeding the end; words of the chunk before it are masked.
        first = jnp.minimum(start, vocabulary - chunk)
        rows = lax.dynamic_slice_in_dim(kernel, first, chunk)
        biases = lax.dynamic_slice_in_dim(bias, first, chunk)
        biases = jnp.where(first + jnp.arange(chunk) >= start, biases, -jnp.inf)
        scores = logits(hidden, rows, precision) + biases  # [N, chunk]
        return jnp.logaddexp(total, jax.nn.logsumexp(scores, axis=-1)), None

    start = jnp.full(hidden.shape[:1], -jnp.inf)
    total, _ = lax.scan(step, start, jnp.arange(0, vocabulary, chunk))
    return total
