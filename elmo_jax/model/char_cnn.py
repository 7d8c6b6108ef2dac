"""The token encoder: character convolutions, maximum over positions, highways and projection.

The architecture follows the paper, section 3.1, and the code of bilm-tf.

Shapes: U words, W characters per word, E character embedding, F filters in all, P projection, K words per chunk.

Words are encoded in chunks by a `lax.scan`. Chunks past the last word are skipped, and a chunk convolves only as many
positions as its longest word needs, since every window of padding alone has the same value. Both savings are exact, and
they are largest if the words are sorted by length. The backward pass of the scan is written by hand: the gradient of a
maximum goes to one window per word and filter, and the gradients of the weights are sums over chunks.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.characters import CHARACTERS, PADDING
from elmo_jax.config import CharCNNConfig
from elmo_jax.model.precision import Precision, standard_promotion, varying_like
from elmo_jax.types import Tree


@dataclasses.dataclass(frozen=True)
class EncoderSettings:
    """The static settings of the encoder's program."""

    config: CharCNNConfig
    projection: int  # P
    precision: Precision
    chunk: int  # K

    @property
    def widest(self) -> int:
        return max(width for width, _ in self.config.filters)


def encode_words(params: Tree, characters: jax.Array, count: jax.Array, settings: EncoderSettings) -> jax.Array:
    """Computes the context-free vectors of words.

    Args:
      params: the parameter tree of `bilm.TokenEncoder`.
      characters: [U, W] raw character ids (0 to 260), preferably sorted by the words' lengths.
      count: the number of the first rows that are words; the vectors of the other rows are zero.
      settings: the static settings, of which `chunk` affects speed and memory only.

    Returns:
      The vectors, float32 [U, P].
    """
    words = len(characters)
    chunk = min(settings.chunk, words)
    chunks = -(-words // chunk)
    padded = jnp.pad(characters.astype(jnp.int32), ((0, chunks * chunk - words), (0, 0)), constant_values=PADDING)
    settings = dataclasses.replace(settings, chunk=chunk)
    params = jax.tree.map(jnp.asarray, params)  # a restored tree may have NumPy arrays
    vectors = _encode(params, padded.reshape(chunks, chunk, -1), count, settings)  # [chunks, K, P]
    return vectors.reshape(chunks * chunk, -1)[:words]


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _encode(params: Tree, characters: jax.Array, count: jax.Array, settings: EncoderSettings) -> jax.Array:
    return _encode_forward(params, characters, count, settings)[0]


def _encode_forward(params: Tree, characters: jax.Array, count: jax.Array, settings: EncoderSettings) -> Any:
    weights = _Weights.of(params, settings)

    def step(index: jax.Array, chars: jax.Array) -> tuple[jax.Array, Any]:
        active = index * settings.chunk < count
        shapes = jax.eval_shape(lambda: _forward_chunk(weights, chars, settings))
        zeros = varying_like(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), (weights, chars))
        return index + 1, lax.cond(active, lambda: _forward_chunk(weights, chars, settings), lambda: zeros)

    _, (vectors, kept) = lax.scan(step, jnp.zeros((), jnp.int32), characters)
    # Rows from `count` on in the last chunk are set to zero, so that nothing depends on the padding.
    real = jnp.arange(characters.shape[0] * settings.chunk).reshape(-1, settings.chunk, 1) < count
    return jnp.where(real, vectors, 0.0), (params, characters, count, kept)


@standard_promotion()
def _encode_backward(settings: EncoderSettings, residuals: Any, gradient: jax.Array) -> tuple[Tree, None, None]:
    params, characters, count, kept = residuals
    weights = _Weights.of(params, settings)
    real = jnp.arange(characters.shape[0] * settings.chunk).reshape(-1, settings.chunk, 1) < count
    gradient = jnp.where(real, gradient, 0.0)

    def step(totals: "tuple[jax.Array, _Weights]", at: Any) -> "tuple[tuple[jax.Array, _Weights], None]":
        index, total = totals
        chars, kept, gradient = at
        total = lax.cond(
            index * settings.chunk < count,
            lambda: jax.tree.map(jnp.add, total, _backward_chunk(weights, chars, kept, gradient, settings)),
            lambda: total,
        )
        return (index + 1, total), None

    zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), weights)
    (_, total), _ = lax.scan(step, (jnp.zeros((), jnp.int32), zeros), (characters, kept, gradient))
    return total.tree(settings), None, None


_encode.defvjp(_encode_forward, _encode_backward)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Weights:
    """The encoder's parameters, or their gradients, in the form for chunks: one product applies all filters."""

    table: jax.Array  # [261, E]
    kernel: jax.Array  # [widest * E, F], with zeros in the last rows of narrower filters
    bias: jax.Array  # [F]
    highways: list[Tree]
    projection: Tree | None

    @classmethod
    def of(cls, params: Tree, settings: EncoderSettings) -> "_Weights":
        filters = [params[f"filter_{i}"] for i in range(len(settings.config.filters))]
        padded = [jnp.pad(f["kernel"], ((0, settings.widest - len(f["kernel"])), (0, 0), (0, 0))) for f in filters]
        kernel = jnp.concatenate([k.reshape(-1, k.shape[-1]) for k in padded], axis=1)
        bias, operand = jnp.concatenate([f["bias"] for f in filters]), settings.precision.operand

        def rounded(layer: Tree) -> Tree:
            return {"kernel": operand(layer["kernel"]), "bias": layer["bias"]}

        layers = [params[f"highway_{i}"] for i in range(settings.config.highways)]
        highways = [{part: rounded(layer[part]) for part in layer} for layer in layers]
        has_projection = settings.config.features != settings.projection
        projection = rounded(params["projection"]) if has_projection else None
        return cls(params["char_embedding"], operand(kernel), bias, highways, projection)

    def tree(self, settings: EncoderSettings) -> Tree:
        tree: Tree = {"char_embedding": self.table}
        kernel = self.kernel.reshape(settings.widest, -1, settings.config.features)
        start = 0
        for i, (width, number) in enumerate(settings.config.filters):
            columns = slice(start, start + number)
            tree[f"filter_{i}"] = {"kernel": kernel[:width, :, columns], "bias": self.bias[columns]}
            start += number
        tree |= {f"highway_{i}": highway for i, highway in enumerate(self.highways)}
        if self.projection is not None:
            tree["projection"] = self.projection
        return tree


def _embedded(table: jax.Array, chars: jax.Array, settings: EncoderSettings) -> jax.Array:
    """Returns embeddings [K, (W + widest - 1) * E]; zeros past W complete the last windows of the narrow filters."""
    vectors = jnp.pad(table[chars], ((0, 0), (0, settings.widest - 1), (0, 0)))
    return settings.precision.operand(vectors.reshape(chars.shape[0], -1))


def _positions(chars: jax.Array, settings: EncoderSettings) -> jax.Array:
    """Returns the number of windows to compute: those with a character of the longest word, and one of padding."""
    longest = jnp.max(jnp.sum(chars != PADDING, axis=1))
    narrowest = min(width for width, _ in settings.config.filters)
    return jnp.minimum(longest + 1, settings.config.max_characters - narrowest + 1)


def _window(embedded: jax.Array, position: jax.Array, settings: EncoderSettings) -> jax.Array:
    size = settings.config.embedding_dim
    return lax.dynamic_slice_in_dim(embedded, position * size, settings.widest * size, axis=1)  # [K, widest * E]


def _forward_chunk(weights: _Weights, chars: jax.Array, settings: EncoderSettings) -> tuple[jax.Array, Any]:
    product = settings.precision.product
    embedded, size = _embedded(weights.table, chars, settings), settings.config.max_characters
    limits = jnp.concatenate([jnp.full((number,), size - width) for width, number in settings.config.filters])

    def convolve(position: jax.Array, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        highest, where = best
        value = product(_window(embedded, position, settings), weights.kernel)  # [K, F]
        better = (value > highest) & (position <= limits)
        return jnp.where(better, value, highest), jnp.where(better, jnp.asarray(position, jnp.int8), where)

    shape = (chars.shape[0], settings.config.features)
    start = (jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.int8))
    start = varying_like(start, (weights, chars))
    highest, where = lax.fori_loop(0, _positions(chars, settings), convolve, start)
    # The bias is the same at every position, so it can be added after the maximum.
    activation = {"relu": jax.nn.relu, "tanh": jnp.tanh}[settings.config.activation]
    features = x = activation(highest + weights.bias)  # [K, F]
    gates = []
    for layer in weights.highways:
        gate = jax.nn.sigmoid(product(x, layer["carry"]["kernel"]) + layer["carry"]["bias"])
        transform = jax.nn.relu(product(x, layer["transform"]["kernel"]) + layer["transform"]["bias"])
        x = gate * transform + (1 - gate) * x
        gates.append((gate, transform))
    kept = (features, where, gates)
    if weights.projection is not None:
        x = product(x, weights.projection["kernel"]) + weights.projection["bias"]
    return x, kept


def _backward_chunk(
    weights: _Weights, chars: jax.Array, kept: Any, gradient: jax.Array, settings: EncoderSettings
) -> _Weights:
    product, summed_product = settings.precision.product, settings.precision.summed_product
    features, where, gates = kept
    inputs = [features]  # the inputs of the highways, then that of the projection
    for gate, transform in gates:
        inputs.append(gate * transform + (1 - gate) * inputs[-1])
    projection = None
    if weights.projection is not None:
        projection = {"kernel": summed_product(inputs[-1], gradient), "bias": gradient.sum(0)}
        gradient = product(gradient, weights.projection["kernel"], (1, 1))
    highways: list[Tree] = []
    for layer, (gate, transform), x in reversed(list(zip(weights.highways, gates, inputs, strict=False))):
        d_gate = gradient * (transform - x) * gate * (1 - gate)
        d_transform = jnp.where(transform > 0, gradient * gate, 0.0)
        of_carry = {"kernel": summed_product(x, d_gate), "bias": d_gate.sum(0)}
        of_transform = {"kernel": summed_product(x, d_transform), "bias": d_transform.sum(0)}
        highways.insert(0, {"carry": of_carry, "transform": of_transform})
        gradient = (
            gradient * (1 - gate)
            + product(d_gate, layer["carry"]["kernel"], (1, 1))
            + product(d_transform, layer["transform"]["kernel"], (1, 1))
        )
    slope = (features > 0) if settings.config.activation == "relu" else 1 - features**2
    table, kernel = _backward_convolution(weights, chars, where, gradient * slope, settings)
    return _Weights(table, kernel, (gradient * slope).sum(0), highways, projection)


def _backward_convolution(
    weights: _Weights, chars: jax.Array, where: jax.Array, gradient: jax.Array, settings: EncoderSettings
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradients of table [261, E] and filters [widest * E, F] from that of the maxima, [K, F]."""
    product, summed_product = settings.precision.product, settings.precision.summed_product
    size = settings.config.embedding_dim
    embedded, positions = _embedded(weights.table, chars, settings), _positions(chars, settings)
    # Past W there is no row of the table: `add_rows` leaves out ids that are not characters.
    ids = jnp.pad(chars, ((0, 0), (0, settings.widest)), constant_values=CHARACTERS)

    # The window at position p, of width 3, and the sums of the gradients of its characters, `vectors` [K, 3 * E]:
    #
    #   p       c0 c1 [c2 c3 c4] c5 …      d2 d3 d4     No later window has c2: d2 is complete, and goes into the table.
    #   p + 1   c0 c1 c2 [c3 c4 c5] …      d3 d4 0      The others move with the window, to which c5 is new.
    def convolve(position: jax.Array, totals: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        kernel, table, vectors = totals
        chosen = jnp.where(where == jnp.asarray(position, jnp.int8), gradient, 0.0)  # [K, F]
        kernel += summed_product(_window(embedded, position, settings), chosen)
        vectors += product(chosen, weights.kernel, (1, 1))
        table = add_rows(table, lax.dynamic_slice_in_dim(ids, position, 1, axis=1), vectors[:, :size])
        return kernel, table, jnp.pad(vectors[:, size:], ((0, 0), (0, size)))

    window = jnp.zeros((chars.shape[0], settings.widest * size), jnp.float32)
    start = (jnp.zeros(weights.kernel.shape, jnp.float32), jnp.zeros(weights.table.shape, jnp.float32), window)
    kernel, table, vectors = lax.fori_loop(0, positions, convolve, start)
    rest = lax.dynamic_slice_in_dim(ids, positions, settings.widest, axis=1)
    return add_rows(table, rest, vectors), kernel


def add_rows(table: jax.Array, ids: jax.Array, vectors: jax.Array) -> jax.Array:
    """Adds vectors [..., E] to the rows of a table [C, E], in float32; those whose id [...] is C or more are left out.

    A CPU adds one row after the other, which is several times as fast there as a product with one-hot rows. On an
    accelerator it is the other way round, and a product sums in the same order in every run.
    """
    flat = ids.reshape(-1), vectors.reshape(-1, table.shape[1])
    return lax.platform_dependent(table, *flat, cpu=add_one_by_one, default=add_product)


def add_one_by_one(table: jax.Array, ids: jax.Array, vectors: jax.Array) -> jax.Array:
    """Makes `add_rows` of ids [N] and vectors [N, E] in their order."""
    return table.at[ids].add(vectors, mode="drop")


def add_product(table: jax.Array, ids: jax.Array, vectors: jax.Array) -> jax.Array:
    """Makes `add_rows` of ids [N] and vectors [N, E] as the product with one-hot rows."""
    one_hot = jax.nn.one_hot(ids, table.shape[0], dtype=jnp.float32)
    return table + Precision.FLOAT32.product(one_hot, vectors, (0, 0))
