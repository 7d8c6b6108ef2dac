"""The bidirectional language model (Peters et al. 2018, section 3.1).

Shapes: U distinct words, W characters, B rows, T steps, P projection, C cells, V vocabulary; a leading 2 is the
direction, forward then backward, and is 1 in a forward-only language model. The backward stream is already reversed, so
that its step t predicts the preceding word of the text.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.characters import CHARACTERS
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.model.char_cnn import EncoderSettings, encode_words
from elmo_jax.model.dropout import Dropout
from elmo_jax.model.lstm import LSTMSettings, ProjectedLSTM, State, projected_lstm
from elmo_jax.model.precision import Precision
from elmo_jax.types import Tree


@dataclasses.dataclass(frozen=True)
class LSTMForm:
    """The form in which the LSTMs are executed; all forms give the same results up to rounding."""

    # whether both directions are in one scan with batched products, which has half as many steps and is best on
    # accelerators; sequential directions have a smaller working set, which is best on CPUs
    together: bool = False
    # whether loops store bfloat16 numbers as integers of the same bits: XLA's programs for CPUs convert a whole array
    # of type bfloat16 whenever a loop writes a part of it
    bf16_as_uint16: bool = True

    @classmethod
    def of(cls, platform: str) -> "LSTMForm":
        """Returns the fastest form for a platform ("cpu", "gpu" or "tpu"); see docs/decisions.md."""
        return cls() if platform == "cpu" else cls(together=True, bf16_as_uint16=False)


class TokenEncoder(nn.Module):
    """Computes context-free vectors from the characters of words (paper, section 3.1)."""

    config: CharCNNConfig  # the architecture of the char CNN
    projection: int  # P, the dimension of the vectors
    precision: Precision = Precision.FLOAT32  # the precision of the matrix products
    chunk: int = 512  # the number of words encoded at a time, which affects speed and memory only

    def __call__(self, characters: jax.Array, count: jax.Array | int | None = None) -> jax.Array:
        """Makes `encode_words`: [U, W] raw character ids -> [U, P]; `count` is U unless given."""
        count = jnp.asarray(characters.shape[0] if count is None else count, jnp.int32)
        settings = EncoderSettings(self.config, self.projection, self.precision, self.chunk)
        return encode_words(self.parameters(), characters, count, settings)

    @nn.compact
    def parameters(self) -> Tree:
        table = self.param("char_embedding", uniform(1.0), (CHARACTERS, self.config.embedding_dim))
        params: Tree = {"char_embedding": table}
        for i, (width, number) in enumerate(self.config.filters):
            shape = (width, self.config.embedding_dim, number)
            # original: uniform in ±0.05 for relu, normal with standard deviation 1 / sqrt(width * E) for tanh
            spread = (width * self.config.embedding_dim) ** -0.5
            init = uniform(0.05) if self.config.activation == "relu" else nn.initializers.normal(spread)
            params[f"filter_{i}"] = _Affine(shape, init, 0.0, name=f"filter_{i}")()
        features = self.config.features
        normal = nn.initializers.normal(features**-0.5)
        for i in range(self.config.highways):
            params[f"highway_{i}"] = _Highway(features, name=f"highway_{i}")()
        if features != self.projection:  # as in bilm-tf
            params["projection"] = _Affine((features, self.projection), normal, 0.0, name="projection")()
        return params


def uniform(bound: float) -> nn.initializers.Initializer:
    """Returns an initializer that draws uniformly from [-bound, bound]."""

    def init(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class _Affine(nn.Module):
    shape: tuple[int, ...]
    kernel_init: nn.initializers.Initializer
    bias: float

    @nn.compact
    def __call__(self) -> Tree:
        return {
            "kernel": self.param("kernel", self.kernel_init, self.shape),
            "bias": self.param("bias", nn.initializers.constant(self.bias), self.shape[-1:]),
        }


class _Highway(nn.Module):
    features: int

    @nn.compact
    def __call__(self) -> Tree:
        normal = nn.initializers.normal(self.features**-0.5)
        shape = (self.features, self.features)
        # The bias of the carry gate starts at -2 (original), so that the layer at first passes on most of its input.
        biases = {"carry": -2.0, "transform": 0.0}
        return {name: _Affine(shape, normal, bias, name=name)() for name, bias in biases.items()}


class Softmax(nn.Module):
    """The parameters of the softmax, which both directions share: `kernel` [V, P] and `bias` [V]."""

    vocabulary_size: int
    projection: int

    @nn.compact
    def __call__(self) -> Tree:
        normal = nn.initializers.normal(self.projection**-0.5)
        return {
            "kernel": self.param("kernel", normal, (self.vocabulary_size, self.projection)),
            "bias": self.param("bias", nn.initializers.zeros_init(), (self.vocabulary_size,)),
        }


class LSTMStack(nn.Module):
    """The parameters of one direction's layers, a tree per layer."""

    config: LSTMConfig

    @nn.compact
    def __call__(self) -> list[Tree]:
        return [ProjectedLSTM(self.config, name=f"layer_{j}")() for j in range(self.config.layers)]


class BiLM(nn.Module):
    """The token encoder, the two stacks of projected LSTMs, and the parameters of the softmax.

    The parameters are `token_encoder`, one tree per direction (`forward`, `backward`) and, if there is a vocabulary,
    `softmax`.
    """

    config: ModelConfig
    vocabulary_size: int = 0  # V; 0 for no softmax, as in the published weights
    precision: Precision = Precision.FLOAT32  # of the matrix products
    form: LSTMForm = LSTMForm()
    encoder_chunk: int = 512  # the number of distinct words encoded at a time, which affects speed and memory only

    def setup(self) -> None:
        lstm = self.config.lstm
        self.token_encoder = TokenEncoder(self.config.char_cnn, lstm.projection, self.precision, self.encoder_chunk)
        self.stacks = [LSTMStack(lstm, name=direction) for direction in self.config.directions]
        if self.vocabulary_size:
            self.softmax = Softmax(self.vocabulary_size, lstm.projection)
        self.dropout = Dropout(self.config.dropout)

    def parameters(self) -> None:
        """Makes the initial values of all parameters; `initial_params` calls it."""
        self.token_encoder.parameters()
        for stack in self.stacks:
            stack()
        if self.vocabulary_size:
            self.softmax()

    # Seven parameters: each array has a different shape and meaning, and the optional ones are named.
    def __call__(
        self,
        characters: jax.Array,  # [U, W] the raw character ids of the distinct words
        inputs: jax.Array,  # [2, T, B] for each token, the row of `characters` that spells it
        carry: Tree,  # the initial LSTM state `{"layer_j": State([2, B, C], [2, B, P])}`, see `initial_carry`
        *,
        count: jax.Array | None = None,  # the number of the first rows of `characters` that are words
        mask: jax.Array | None = None,  # [2, T, B] true for tokens, false for padding
        reset_state: jax.Array | None = None,  # [T, B] true for tokens before which the state is reset
        deterministic: bool = True,  # otherwise a `dropout` key is needed
    ) -> tuple[list[jax.Array], Tree]:
        """Runs both directions.

        Returns:
          The token vectors and the output of every LSTM layer, each [2, T, B, P] (that of the top layer after dropout),
          and the LSTM state after the last token.
        """
        vectors = self.encode(characters, count)[inputs]  # [2, T, B, P]
        options: dict[str, Any] = {"mask": mask, "reset_state": reset_state, "deterministic": deterministic}
        layers, states = self.run_layers(vectors, carry, **options)
        return [vectors, *layers], states

    def encode(self, characters: jax.Array, count: jax.Array | int | None = None) -> jax.Array:
        """Computes context-free vectors of words: [U, W] raw character ids -> [U, P], zero from row `count` on."""
        return self.token_encoder(characters, count)

    def run_layers(
        self,
        vectors: jax.Array,
        carry: Tree,
        *,
        mask: jax.Array | None = None,
        reset_state: jax.Array | None = None,
        deterministic: bool = True,
    ) -> tuple[list[jax.Array], Tree]:
        """Runs the LSTM layers over token vectors [2, T, B, P]; returns what `__call__` does, but for the vectors."""
        x, stacks = vectors, [stack() for stack in self.stacks]
        layers: list[jax.Array] = []
        states: Tree = {}
        for j in range(self.config.lstm.layers):
            x = self.dropout(x, deterministic=deterministic)
            params = [stack[j] for stack in stacks]
            out, states[f"layer_{j}"] = self._layer(params, x, carry[f"layer_{j}"], mask, reset_state)
            # As in bilm-tf, the residual adds the input after dropout and is not part of the state.
            x = out + x if j and self.config.lstm.skip_connections else out
            if mask is not None:
                x = x * mask[..., None]
            layers.append(x)
        layers[-1] = self.dropout(layers[-1], deterministic=deterministic)
        return layers, states

    def _layer(
        self, params: list[Tree], inputs: jax.Array, state: State, mask: jax.Array | None, reset_state: jax.Array | None
    ) -> tuple[jax.Array, State]:
        settings = LSTMSettings.of(self.config.lstm, self.precision, **dataclasses.asdict(self.form))
        if settings.together:
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
            return projected_lstm(stacked, inputs, State(*state), settings, mask, reset_state)
        masks = [None, None] if mask is None else list(mask)
        results = [
            projected_lstm(params[d], inputs[d], State(*(s[d] for s in state)), settings, masks[d], reset_state)
            for d in range(len(params))
        ]
        outputs = jnp.stack([out for out, _ in results])
        return outputs, State(*(jnp.stack(parts) for parts in zip(*(state for _, state in results), strict=True)))


def initial_carry(config: ModelConfig, rows: int, zeros: Callable[..., Any] = jnp.zeros) -> Tree:
    """Returns the LSTM state before the first token for `rows` rows, made by `zeros`: `jnp.zeros` or `np.zeros`."""
    shapes = [(len(config.directions), rows, size) for size in (config.lstm.cells, config.lstm.projection)]
    return {f"layer_{j}": State(*(zeros(shape, jnp.float32) for shape in shapes)) for j in range(config.lstm.layers)}


def initial_params(model: BiLM, key: jax.Array) -> Tree:
    """Returns initial parameters, drawn from the same distributions as in bilm-tf."""
    return dict(model.init(key, method="parameters")["params"])


def parameter_count(params: Tree) -> int:
    """Returns the number of scalars in a tree of parameters or of their shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
