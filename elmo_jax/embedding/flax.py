"""Adds the frozen biLM, and the vectors of cached words, to the variables of a task model with an `ELMo`."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.embedding.bilm import frozen_tree
from elmo_jax.embedding.words_file import CachedWords
from elmo_jax.errors import UserError
from elmo_jax.model.precision import standard_numerics


@nnx.register_variable_name("bilm")
class FrozenBiLM(nnx.Variable):
    """The variable type of the biLM's arrays in an NNX model.

    Checkpoints should contain `nnx.state(model, nnx.Not(FrozenBiLM))`.
    """


def with_bilm(
    variables: Mapping[str, Any],
    bilm: PretrainedBiLM | Sequence[PretrainedBiLM],
    cache: CachedWords | Sequence[CachedWords | None] | None = None,
) -> dict[str, Any]:
    """Adds the frozen biLM to the variables of a task model, wherever in the model an `ELMo` is.

    Args:
      variables: the result of `init`, or a checkpoint of it: `params` and `elmo`.
      bilm: the biLM that the model was made with, or all of several, which their fingerprints tell apart.
      cache: the vectors of words that are not encoded from their characters; with several biLMs, one of each, or None.

    Returns:
      The variables with the collection `bilm`. Only `params` should be trained, and checkpoints should not contain
      `bilm`.

    Raises:
      UserError: the model was trained with another biLM, or the cache is of another one (the fingerprints differ); or
        the model has no `ELMo`.
    """
    bilms = list(bilm) if isinstance(bilm, Sequence) else [bilm]
    caches = list(cache) if isinstance(cache, Sequence) else [cache] * (1 if cache else len(bilms))
    if not bilms or len(caches) != len(bilms):
        raise UserError(f"cache: expected one per biLM, got {len(caches)} for {len(bilms)}")
    pairs = {}
    for one, cached in zip(bilms, caches, strict=True):
        if not isinstance(one, PretrainedBiLM):
            raise UserError(f"bilm: expected what elmo_jax.load_bilm returns, got {type(one).__name__}")
        if cached is not None:
            _check_cache(cached, one)
        pairs[one.vectors_fingerprint] = one, cached

    def next_to_elmo(node: Mapping[str, Any]) -> dict[str, Any]:
        inner = {name: next_to_elmo(value) for name, value in node.items() if name != "fingerprint"}
        return inner | (_added(node["fingerprint"], pairs) if "fingerprint" in node else {})

    if not isinstance(variables, Mapping) or not variables.get("elmo"):
        raise UserError(
            "variables: no collection 'elmo'; expected what init of a model with elmo_jax.ELMo returns (nn.scan and"
            " nn.vmap must lift the collections 'params', 'elmo' and 'bilm')"
        )
    return {**variables, "bilm": next_to_elmo(variables["elmo"])}


def add_bilm(module: nnx.bridge.ToNNX, bilm: PretrainedBiLM, cache: CachedWords | None = None) -> nnx.bridge.ToNNX:
    """Adds the frozen biLM to an `ELMo` in an NNX model, and returns the same module.

    Args:
      module: the bridged module, `nnx.bridge.ToNNX(bilm.elmo(), rngs=rngs).lazy_init(characters)`.
      bilm: the biLM that the model was made with; its arrays become variables of the type `FrozenBiLM`.
      cache: the vectors of words that are not encoded from their characters.

    Raises:
      UserError: the model was trained with another biLM, or the cache is of another one (the fingerprints differ); or
        the model has no `ELMo`.
    """
    if not hasattr(module, "fingerprint"):
        expected = "nnx.bridge.ToNNX(bilm.elmo(…), rngs=rngs), with a frozen biLM, after lazy_init"
        raise UserError(f"module: expected {expected}")
    variables = {"elmo": {"fingerprint": module.fingerprint.get_value()}}
    for name, value in with_bilm(variables, bilm, cache)["bilm"].items():
        setattr(module, name, nnx.data(jax.tree.map(FrozenBiLM, value)))
    return module


def _check_cache(cache: CachedWords, bilm: PretrainedBiLM) -> None:
    size, projection = bilm.config.char_cnn.max_characters, bilm.config.lstm.projection
    if cache.max_characters != size:
        raise UserError(f"cache: max_characters is {cache.max_characters}, expected {size}, that of the biLM")
    if cache.vectors.shape[1] != projection:
        raise UserError(f"cache: vectors of {cache.vectors.shape[1]} numbers, expected {projection}, as the biLM has")
    if cache.fingerprint and cache.fingerprint != bilm.vectors_fingerprint:
        fingerprints = f"its fingerprint is {cache.fingerprint[:12]}…, this one's {bilm.vectors_fingerprint[:12]}…"
        raise UserError(f"cache: the vectors are of another biLM: {fingerprints}; make them again with embed --words")


def _added(variables: Any, pairs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays to be added to an `ELMo`: its biLM, one of the known ones, and their cached words."""
    is_abstract = isinstance(variables, jax.ShapeDtypeStruct)
    is_known = not is_abstract and not isinstance(variables, jax.core.Tracer)
    if not is_known and len(pairs) > 1:
        problem = "while JAX traces, their values, which tell several biLMs apart, are not known"
        raise UserError(f"variables: {problem}; call elmo_jax.with_bilm outside of jit")
    stored = next(iter(pairs))
    if is_known:
        # There are several rows where a lifted transform has stacked them.
        rows = np.asarray(variables).astype(np.uint8).reshape(-1, 32)
        stored = rows[0].tobytes().hex() if rows[0].any() or len(pairs) > 1 else stored
        if stored not in pairs or (rows != rows[0]).any():
            given = ", ".join(f"{one[:12]}…" for one in pairs)
            problem = f"the model was made with another biLM: its fingerprint is {stored[:12]}…, this one's {given}"
            raise UserError(f"{problem}; load the biLM it was trained with")
    bilm, cached = pairs[stored]
    arrays: dict[str, Any] = {"tree": frozen_tree(bilm)}
    with standard_numerics():
        # `ELMo` compares it with the stored fingerprint. It is of floats, so that one may differentiate by all arrays.
        digest = np.frombuffer(bytes.fromhex(bilm.vectors_fingerprint) or bytes(32), np.uint8).astype(np.float32)
        arrays["digest"] = jax.device_put(digest, may_alias=False)
        if cached is not None and len(cached.vectors):
            arrays["cache"] = jax.device_put(cached.vectors, may_alias=False)
    return jax.eval_shape(lambda: arrays) if is_abstract else arrays
