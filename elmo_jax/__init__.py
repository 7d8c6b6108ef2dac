"""ELMo in JAX: this package pretrains biLMs, computes word vectors with them, and trains task models on top of them.

`load_bilm(source)` returns a trained biLM with its config, frozen parameters and vocabulary; its method `embed`
computes the vectors of sentences, and `elmo` makes the Linen module `ELMo` for a task model. `load_task(run)` returns a
trained task model, whose method `predict` annotates text.
"""

from etils import epy

from elmo_jax.environment import quiet_without_tpu
from elmo_jax.version import __version__

quiet_without_tpu()  # must run before JAX looks for devices

with epy.lazy_api_imports(globals()):  # at their first use, so that `elmo-jax --help` does not wait for JAX
    from elmo_jax.checkpoints.export import PretrainedBiLM, export_bilm
    from elmo_jax.embedding.bilm import EmbeddingBiLM, load_bilm
    from elmo_jax.embedding.embed import CarryState, character_ids
    from elmo_jax.embedding.flax import CachedWords, FrozenBiLM, add_bilm, with_bilm
    from elmo_jax.embedding.shards import VectorShards
    from elmo_jax.embedding.tokens import tokenize
    from elmo_jax.errors import UserError
    from elmo_jax.model.elmo import ELMo, ELMoOutput
    from elmo_jax.model.scalar_mix import LayerNorm, Layers, MixWeights, ScalarMix, mix_weights
    from elmo_jax.tasks.core.trained_task import TrainedTask, load_task

__all__ = [
    "CachedWords",
    "CarryState",
    "ELMo",
    "ELMoOutput",
    "EmbeddingBiLM",
    "FrozenBiLM",
    "LayerNorm",
    "Layers",
    "MixWeights",
    "PretrainedBiLM",
    "ScalarMix",
    "TrainedTask",
    "UserError",
    "VectorShards",
    "__version__",
    "add_bilm",
    "character_ids",
    "export_bilm",
    "load_bilm",
    "load_task",
    "mix_weights",
    "tokenize",
    "with_bilm",
]


def __dir__() -> list[str]:
    return __all__
