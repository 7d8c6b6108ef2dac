"""ELMo in JAX: pretrain a biLM, and use its word vectors.

`load_bilm(path)` gives a trained biLM: its config, frozen parameters and vocabulary, `embed` for vectors of sentences,
and `elmo` for the Linen module `ELMo` of a task model.
"""

import importlib
from typing import TYPE_CHECKING, Any

from elmo_jax.environment import quiet_without_tpu

if TYPE_CHECKING:
    from elmo_jax.checkpoints.export import PretrainedBiLM, export_bilm
    from elmo_jax.embedding.bilm import EmbeddingBiLM, load_bilm
    from elmo_jax.embedding.embed import CarryState
    from elmo_jax.embedding.task import CachedWords, FrozenBiLM, add_bilm, character_ids, with_bilm
    from elmo_jax.errors import UserError
    from elmo_jax.model.elmo import ELMo, ELMoOutput
    from elmo_jax.model.scalar_mix import LayerNorm, Layers, ScalarMix

__all__ = [
    "CachedWords",
    "CarryState",
    "ELMo",
    "ELMoOutput",
    "EmbeddingBiLM",
    "FrozenBiLM",
    "LayerNorm",
    "Layers",
    "PretrainedBiLM",
    "ScalarMix",
    "UserError",
    "add_bilm",
    "character_ids",
    "export_bilm",
    "load_bilm",
    "with_bilm",
]

_HOMES = {
    "checkpoints.export": ("PretrainedBiLM", "export_bilm"),
    "embedding.bilm": ("EmbeddingBiLM", "load_bilm"),
    "embedding.embed": ("CarryState",),
    "embedding.task": ("CachedWords", "FrozenBiLM", "add_bilm", "character_ids", "with_bilm"),
    "errors": ("UserError",),
    "model.elmo": ("ELMo", "ELMoOutput"),
    "model.scalar_mix": ("LayerNorm", "Layers", "ScalarMix"),
}

quiet_without_tpu()  # before JAX looks for devices


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `elmo-jax --help` need not wait for JAX."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"elmo_jax.{module}"), name)
    raise AttributeError(f"module 'elmo_jax' has no attribute {name!r}")
