"""A plain implementation of the biLM: read this first. The tests compare the fast implementation with it.

Every token is encoded on its own, each filter is one convolution over the characters, the LSTM is a scan of its
equations, the softmax scores the whole vocabulary, and JAX derives all gradients. The parameter tree is that of
`bilm.BiLM`.

Shapes: N words, W characters, E character embedding, F filters in all, P projection, C cells, T steps, B rows,
L layers, V vocabulary; a leading 2 is the direction, the backward stream already reversed.
"""

import jax
import jax.numpy as jnp

from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.model.lstm import State
from elmo_jax.types import Tree


def encode(params: Tree, characters: jax.Array, config: CharCNNConfig, projection: int) -> jax.Array:
    """Computes the context-free vectors of words: [N, W] raw character ids -> [N, P] (paper, section 3.1)."""
    embedded = params["char_embedding"][characters]  # [N, W, E]
    features = []
    for i, _ in enumerate(config.filters):
        layer = params[f"filter_{i}"]
        windows = jax.lax.conv_general_dilated(
            embedded, layer["kernel"], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        )
        features.append(jnp.max(windows + layer["bias"], axis=1))
    activation = {"relu": jax.nn.relu, "tanh": jnp.tanh}[config.activation]
    x = activation(jnp.concatenate(features, axis=-1))  # [N, F]
    for i in range(config.highways):
        layer = params[f"highway_{i}"]
        gate = jax.nn.sigmoid(x @ layer["carry"]["kernel"] + layer["carry"]["bias"])
        transform = jax.nn.relu(x @ layer["transform"]["kernel"] + layer["transform"]["bias"])
        x = gate * transform + (1 - gate) * x
    if config.features != projection:
        x = x @ params["projection"]["kernel"] + params["projection"]["bias"]
    return x


# Seven parameters: those of `projected_lstm`, with its two clips in place of the settings of a program.
def lstm_layer(
    params: Tree,
    inputs: jax.Array,
    state: State,
    cell_clip: float = 0.0,
    projection_clip: float = 0.0,
    mask: jax.Array | None = None,
    reset_state: jax.Array | None = None,
) -> tuple[jax.Array, State]:
    """Runs one projected LSTM layer of one direction over inputs [T, B, D]: outputs [T, B, P], and the last state.

    The parameters are `kernel` [D + P, 4C] with the gates i, j, f, o as columns, `bias` [4C] and, unless C = P,
    `projection` [C, P]. The clips bound the absolute values of cells and outputs; 0 means no bound. `mask` [T, B] is
    false for padding, and `reset_state` [T, B] true for tokens before which the state is reset to zero.
    """
    mask = jnp.ones(inputs.shape[:2], bool) if mask is None else mask
    reset_state = jnp.zeros(inputs.shape[:2], bool) if reset_state is None else reset_state

    def clip(x: jax.Array, bound: float) -> jax.Array:
        return jnp.clip(x, -bound, bound) if bound else x

    def step(state: State, at: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[State, jax.Array]:
        x, real, again = at
        state = State(*(jnp.where(again, 0.0, s) for s in state))
        z = jnp.concatenate([x, state.hidden], axis=-1) @ params["kernel"] + params["bias"]
        i, j, f, o = jnp.split(z, 4, axis=-1)  # [B, C] each
        cell = jax.nn.sigmoid(f + 1) * state.cell + jax.nn.sigmoid(i) * jnp.tanh(j)  # the forget bias 1 is not stored
        cell = clip(cell, cell_clip)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        if "projection" in params:
            hidden = clip(hidden @ params["projection"], projection_clip)
        new = State(jnp.where(real, cell, state.cell), jnp.where(real, hidden, state.hidden))
        return new, jnp.where(real, hidden, 0.0)

    last, outputs = jax.lax.scan(step, state, (inputs, mask[..., None], reset_state[..., None]))
    return outputs, last


def lstm_stack(params: Tree, inputs: jax.Array, states: list[State], config: LSTMConfig) -> list[jax.Array]:
    """Runs the layers of one direction: [T, B, P] -> L outputs [T, B, P]; the second and later ones have a residual."""
    outputs: list[jax.Array] = []
    x = inputs
    for j in range(config.layers):
        out, _ = lstm_layer(params[f"layer_{j}"], x, states[j], config.cell_clip, config.projection_clip)
        x = out + x if j and config.skip_connections else out
        outputs.append(x)
    return outputs


def softmax_losses(params: Tree, hidden: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the cross-entropy of each target over the whole vocabulary: [N, P], [N] -> [N] in nats."""
    logits = hidden @ params["kernel"].T + params["bias"]  # [N, V]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=1)[:, 0]


def top_layer(params: Tree, characters: jax.Array, config: ModelConfig) -> jax.Array:
    """Maps raw character ids [2, T, B, W] to the outputs of the top layer [2, T * B, P], without dropout."""
    steps, rows, width = characters.shape[1:]
    lstm, outputs = config.lstm, []
    zeros = [State(jnp.zeros((rows, lstm.cells)), jnp.zeros((rows, lstm.projection)))] * lstm.layers
    for d, direction in enumerate(("forward", "backward")):
        words = characters[d].reshape(-1, width)  # [T * B, W]
        vectors = encode(params["token_encoder"], words, config.char_cnn, lstm.projection)
        top = lstm_stack(params[direction], vectors.reshape(steps, rows, -1), zeros, lstm)[-1]  # [T, B, P]
        outputs.append(top.reshape(-1, lstm.projection))
    return jnp.stack(outputs)


def loss(params: Tree, characters: jax.Array, targets: jax.Array, config: ModelConfig) -> jax.Array:
    """Returns the mean loss of both directions, in nats per token, from zero states and without dropout.

    The `characters` [2, T, B, W] are the raw character ids of the inputs, and the `targets` [2, T, B] word ids.
    """
    hidden = top_layer(params, characters, config)
    losses = [softmax_losses(params["softmax"], hidden[d], targets[d].reshape(-1)) for d in range(2)]
    return jnp.stack(losses).mean()
