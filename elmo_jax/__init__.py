"""ELMo in JAX: pretrain a biLM, and use its word vectors.

`load_bilm(source)` gives a trained biLM: its config, frozen parameters and vocabulary, `embed` for vectors of
sentences, and `elmo` for the Linen module `ELMo` of a task model.
"""

from etils import epy

from elmo_jax.environment import quiet_without_tpu
from elmo_jax.version import __version__

quiet_without_tpu()  # before JAX looks for devices

with epy.lazy_api_imports(globals()):  # so that `elmo-jax --help` need not wait for JAX
    from elmo_jax.checkpoints.export import PretrainedBiLM, export_bilm
    from elmo_jax.embedding.bilm import EmbeddingBiLM, load_bilm
    from elmo_jax.embedding.embed import CarryState
    from elmo_jax.embedding.task import CachedWords, FrozenBiLM, add_bilm, character_ids, with_bilm
    from elmo_jax.errors import UserError
    from elmo_jax.model.elmo import ELMo, ELMoOutput
    from elmo_jax.model.scalar_mix import LayerNorm, Layers, ScalarMix
