"""ELMo in a task model: the frozen biLM, and the task's own mixes of its layers (paper, sections 3.2 and 3.3).

Shapes: B sentences, T words of the longest sentence, W characters, U spelled words, N rows of a cache, L LSTM layers,
P projection.

The parameters of a frozen biLM are not parameters of the task. They are read from the collection `bilm`, which
`with_bilm` fills after `init` and after a restore. What `init` makes and a checkpoint stores is `params` (the mixes)
and, in the collection `elmo`, the fingerprint of the biLM that they belong to.
"""

from collections.abc import Callable
from math import inf
from numbers import Integral, Real
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.characters import CHARACTERS
from elmo_jax.config import ModelConfig
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import BiLM, LSTMForm
from elmo_jax.model.dropout import Dropout
from elmo_jax.model.precision import Precision, standard_promotion
from elmo_jax.model.scalar_mix import LayerNorm, Layers, ScalarMix, check_array, chosen_layers
from elmo_jax.model.sentences import Trainable, has_gap, sentence_layers
from elmo_jax.settings import choice
from elmo_jax.types import Tree

_LIFT = (
    "nn.scan and nn.vmap must lift the collections 'params', 'elmo' and 'bilm', as in"
    " variable_broadcast=('params', 'elmo', 'bilm')"
)

# Without it, a call outside of `jit` would compile its loops each time.
_run = jax.jit(sentence_layers, static_argnames=("model", "trainable"), inline=True)


class ELMoOutput(NamedTuple):
    """The output of `ELMo`, the input of a task model.

    Attributes:
      mixes: `num_mixes` arrays [B, T, 2P], or [B, T, P] of the token layer, zero beyond the ends of the sentences.
      mask: [B, T] true for words.
      penalty: [] lambda times the sum of the squares of all raw mix weights, to be added to the task's loss.
    """

    mixes: tuple[jax.Array, ...]
    mask: jax.Array
    penalty: jax.Array


class ELMo(nn.Module):
    """Runs a biLM once, and computes `num_mixes` mixes of its layers, each with its own weights.

    During `init`, no biLM is attached and all mixes are zero. Rows without words are padding: they
    change nothing in other rows, also with a layer norm.

    Attributes:
      config: the architecture of the biLM.
      fingerprint: the `vectors_fingerprint` of the biLM, 64 hexadecimal digits; "" to omit the check.
      num_mixes: the number of mixes, at least 1; 2 for the input and the output of the task's RNN (section 3.3).
      layers: the layers that are used: all, which are mixed, or one; a member of `Layers` or its name, or the number
        of an LSTM layer, 1 to L. The token layer is the token vector once, and has no scale.
      layer_norm: the normalization of each layer before the mix; a member of `LayerNorm` or its name. With TOKENS, a
        vector does not depend on the other sentences; the two original programs, which have one norm of the batch,
        differ in whether the boundary tokens count.
      dropout: the dropout rate on the mixes unless deterministic (needs a `dropout` key); the biLM has no dropout.
      regularization: lambda of the `penalty`, at least 0; 0 for none.
      precision: the precision of the biLM's matrix products; a member of `Precision` or its name.
      form: the form in which the biLM's LSTMs are executed.
      axis_name: the mapped axis that the batch is divided over, for a layer norm under `shard_map` or `pmap`.
      trainable: the part of the biLM that is trained with the task, a member of `Trainable` or its name; True for all
        and False, the default, for none. The biLM is then in `params`, under `bilm`, and in every checkpoint, and
        `with_bilm` is not needed.
      initial: with `trainable`, returns the biLM's parameters for `init`; `EmbeddingBiLM.elmo` sets it.
      train_gamma: whether the scales of the mixes get gradients; otherwise they stay 1, if weights do not decay.
    """

    config: ModelConfig
    fingerprint: str = ""
    num_mixes: int = 1
    layers: Layers | int = Layers.ALL
    layer_norm: LayerNorm = LayerNorm.NONE
    dropout: float = 0.5
    regularization: float = 0.0
    precision: Precision = Precision.FLOAT32
    form: LSTMForm = LSTMForm()
    axis_name: str | None = None
    trainable: Trainable | bool = False
    initial: Callable[[], Tree] | None = None
    train_gamma: bool = True

    def __post_init__(self) -> None:
        self.layers = chosen_layers(self.layers, self.config.lstm.layers)
        self.layer_norm = choice(LayerNorm, self.layer_norm, "layer_norm")
        self.precision = choice(Precision, self.precision, "precision")
        whole: dict[Any, str] = {True: "all", False: "none"} if isinstance(self.trainable, bool) else {}
        self.trainable = choice(Trainable, whole.get(self.trainable, self.trainable), "trainable")
        if self.trainable is not Trainable.NONE and self.initial is None:
            raise UserError("trainable: without initial parameters; make the module with bilm.elmo(trainable=True)")
        for name, kind, least, below, expected in (
            ("num_mixes", Integral, 1, inf, "whole number of at least 1"),
            ("dropout", Real, 0, 1, "number of at least 0 and below 1"),
            ("regularization", Real, 0, inf, "number of at least 0"),
        ):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind) or not least <= float(value) < below:
                raise UserError(f"{name}: expected a {expected}, got {value!r}")
        super().__post_init__()

    def setup(self) -> None:
        self.mixes = [
            ScalarMix(self.layers, self.layer_norm, self.axis_name, self.train_gamma, name=f"mix_{i}")
            for i in range(self.num_mixes)
        ]
        self.drop = Dropout(self.dropout)
        if self.initial is not None and self.trainable is not Trainable.NONE:
            initial = self.initial
            self.tree = self.param("bilm", lambda key: initial())
        elif self.is_initializing():
            if not self.is_mutable_collection("elmo"):
                raise ValueError(f"the collection 'elmo' is not made here: {_LIFT}")
            digest = bytes.fromhex(self.fingerprint) or bytes(32)  # as uint8 [32], which any checkpoint can store
            with jax.ensure_compile_time_eval():  # so that `add_bilm` can read it while a model is made
                self.variable("elmo", "fingerprint", lambda: jax.device_put(np.frombuffer(digest, np.uint8)))

    def __call__(
        self, characters: jax.Array, words: jax.Array | None = None, *, deterministic: bool = True
    ) -> ELMoOutput:
        """Runs the biLM from a zero state, and mixes its layers.

        Args:
          characters: [B, T, W] character ids + 1, with rows of zeros beyond the end of a sentence
            (`EmbeddingBiLM.character_ids`); or, with `words`, [U, W] raw character ids of the words that are not in the
            cache (`CachedWords`).
          words: [B, T] 0 beyond the end of a sentence, n for row n - 1 of the cache that `with_bilm` was given, -n for
            row n - 1 of `characters`.
          deterministic: whether dropout is off.

        Under `jit`, where values are not known, a character that does not exist, a word that the cache or `characters`
        do not have, or a row of zeros before a word makes the result NaN instead of raising an exception.

        Inside a lifted transform, such as `nn.scan` or `nn.vmap`, the collections `params`, `elmo` and `bilm` must be
        lifted; `bilm` is broadcast: `nn.scan(…, variable_broadcast=("params", "elmo", "bilm"))`.

        Raises:
          UserError: an argument is not such an array, W is not the number of characters per word of this biLM, an id is
            out of range, `words` has rows that the cache or `characters` do not have, zeros are before a word of the
            same sentence, or the biLM is trained, whose word vectors cannot be cached.
          ValueError: the variables have no biLM.
        """
        if words is not None and self.trainable is not Trainable.NONE:
            remedy = "give bilm.character_ids(sentences)"
            raise UserError(f"words: a biLM that is trained has no vectors to be cached; {remedy}")
        if words is None:
            check_array(
                "characters", characters, jnp.integer, 3, "whole numbers [B, T, W], as bilm.character_ids makes"
            )
        else:
            check_array("characters", characters, jnp.integer, 2, "whole numbers [U, W], as CachedWords makes")
            check_array("words", words, jnp.signedinteger, 2, "whole numbers [B, T], as CachedWords makes")
        size = self.config.char_cnn.max_characters
        if characters.shape[-1] != size:
            remedy = f"make them with bilm.character_ids(sentences) or give max_characters={size}"
            raise UserError(f"characters: {characters.shape[-1]} per word, but this biLM reads {size}; {remedy}")
        _check_range(characters, CHARACTERS if words is None else CHARACTERS - 1)
        vectors, mask = self._bilm(characters, words)
        return self._mixed(vectors, mask, deterministic, marked=True)

    def mix(self, layers: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> ELMoOutput:
        """Mixes layers that were computed before by `embed`, with the same result as `__call__`.

        Args:
          layers: [B, L+1, T, 2P] the layers.
          mask: [B, T] true for words.
          deterministic: whether dropout is off.

        Raises:
          UserError: the layers or the mask have another shape.
          ValueError: the layer norm is WITH_BOS_EOS, but precomputed vectors have no boundary tokens.
        """
        if self.layer_norm is LayerNorm.WITH_BOS_EOS:
            raise ValueError("layer_norm WITH_BOS_EOS needs the boundary tokens, which precomputed vectors do not have")
        number, size = self.config.lstm.layers + 1, self.config.width
        shapes: list[Any] = [getattr(array, "shape", ()) for array in (layers, mask)]
        batch, steps = shapes[1] if len(shapes[1]) == 2 else (0, 0)
        if shapes != [(batch, number, steps, size), (batch, steps)]:
            expected = f"arrays [B, {number}, T, {size}] and [B, T], as `embed` returns them"
            raise UserError(f"layers {shapes[0]} and mask {shapes[1]}: expected {expected}")
        return self._mixed(layers, mask, deterministic, marked=False)

    @standard_promotion()
    def _bilm(self, characters: jax.Array, words: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        batch, steps = characters.shape[:2] if words is None else words.shape
        mask = (characters > 0).any(-1) if words is None else words != 0
        if not isinstance(mask, jax.core.Tracer) and has_gap(mask).any():
            raise UserError("zeros before a word: they mark the end of a sentence; give a word, or leave the row out")
        if self.is_initializing():  # no parameters depend on the layers; `with_bilm` adds a frozen biLM later
            shape = (batch, self.config.lstm.layers + 1, steps + 2, self.config.width)
            return jnp.zeros(shape, jnp.float32), mask
        model = BiLM(self.config, 0, self.precision, self.form, parent=None)
        assert isinstance(self.trainable, Trainable)
        if self.trainable is not Trainable.NONE:
            return _run(model, self.tree, characters, trainable=self.trainable)
        if not self.has_variable("bilm", "tree"):
            raise ValueError(f"no biLM here: variables = elmo_jax.with_bilm(variables, bilm), then apply; {_LIFT}")
        cache = None if words is None else self.get_variable("bilm", "cache", None)
        if words is not None:
            _check_rows(words, 0 if cache is None else len(cache), len(characters))
        layers, mask = _run(model, self.get_variable("bilm", "tree"), characters, words, cache)
        return jnp.where(self._is_own_bilm(), layers, jnp.nan), mask

    def _is_own_bilm(self) -> bool | jax.Array:
        """Compares fingerprints, since what was restored after the biLM was added may have been made with another."""
        stored: Any = self.get_variable("elmo", "fingerprint", None)
        given: Any = self.get_variable("bilm", "digest", None)
        if stored is None or given is None:
            return True
        fits = (stored == given).all() | (stored == 0).all() | (given == 0).all()
        if not isinstance(fits, jax.core.Tracer) and not fits:
            raise UserError("the variables were made with another biLM than the one that was added; load that one")
        return fits

    @standard_promotion()
    def _mixed(self, vectors: jax.Array, mask: jax.Array, deterministic: bool, marked: bool) -> ELMoOutput:
        counted = mask
        if marked and self.layer_norm is LayerNorm.WITH_BOS_EOS:
            length = mask.sum(-1, keepdims=True)
            counted = (jnp.arange(mask.shape[1] + 2) < length + 2) & (length > 0)
        elif marked:
            vectors = vectors[:, :, 1:-1]  # [B, L+1, T, 2P]
        mixes, penalty = [], jnp.zeros((), jnp.float32)
        for mix in self.mixes:
            mixed, squares = mix(vectors, counted)
            if counted is not mask:
                mixed = jnp.where(mask[..., None], mixed[:, 1:-1], 0.0)
            if self.layers is Layers.TOKEN:
                mixed = mixed[..., : self.config.lstm.projection]  # the other half is the same
            mixes.append(self.drop(mixed, deterministic=deterministic))  # [B, T, 2P]
            penalty += self.regularization * squares
        return ELMoOutput(tuple(mixes), mask, penalty)


def _check_range(characters: jax.Array, most: int) -> None:
    if jnp.iinfo(characters.dtype).max < most:
        raise UserError(f"characters: {characters.dtype} does not hold ids up to {most}; use int32")
    if isinstance(characters, jax.core.Tracer) or not characters.size:
        return
    least, greatest = int(characters.min()), int(characters.max())
    if least < 0 or greatest > most:
        raise UserError(f"characters: expected ids from 0 to {most}, got {least} to {greatest}")


def _check_rows(words: jax.Array, cached: int, encoded: int) -> None:
    if isinstance(words, jax.core.Tracer) or not words.size:
        return
    if words.max() > cached:
        problem = f"row {words.max()} of the cache, but the variables have a cache of {cached} rows"
        raise UserError(f"words: {problem}; give the CachedWords that made them to elmo_jax.with_bilm")
    if -words.min() > encoded:
        raise UserError(f"words: row {-words.min()} of characters, which have {encoded} rows; pass what one call made")
