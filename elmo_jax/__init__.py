"""ELMo in JAX: pretrain a biLM, and use its word vectors.

`load_bilm(path)` gives a trained biLM's config, frozen parameters and vocabulary.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmo_jax.checkpoints.export import PretrainedBiLM, export_bilm, load_bilm
    from elmo_jax.errors import UserError

__all__ = ["PretrainedBiLM", "UserError", "export_bilm", "load_bilm"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `elmo-jax --help` need not wait for JAX."""
    if name in ("PretrainedBiLM", "export_bilm", "load_bilm"):
        from elmo_jax.checkpoints import export

        return getattr(export, name)
    if name == "UserError":
        from elmo_jax.errors import UserError

        return UserError
    raise AttributeError(f"module 'elmo_jax' has no attribute {name!r}")
