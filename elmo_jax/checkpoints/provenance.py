"""What an export says of its past: which text and settings made it, and which model it was fine-tuned from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etils import epath

from elmo_jax.config import Config
from elmo_jax.settings import to_dict

if TYPE_CHECKING:
    from elmo_jax.data.corpus import Corpus

FINETUNED_FROM = "finetuned_from"  # the key of the model before: its fingerprint and its own history, and so on


def provenance(
    experiment: str,
    step: int,
    heldout: dict[str, float] | None,
    config: Config,
    corpus: Corpus,
    finetuned_from: dict[str, Any] | None,
) -> dict[str, Any]:
    """The `info` of an export.

    Args:
      experiment: the run's name.
      step: updates made to the exported parameters.
      heldout: their held-out perplexities, where they were measured.
      config, corpus: of the run.
      finetuned_from: what `predecessor` gave, for a run that fine-tunes.
    """
    settings = {name: part for name, part in to_dict(config).items() if name not in ("model", "data")}
    found = {
        "experiment": experiment,
        "steps": step,
        "tokens_seen": step * config.train.tokens_per_step,
        "heldout_perplexity": heldout,
        "corpus_fingerprint": corpus.fingerprint,
        "corpus_sources": [_name(source["source"]) for source in corpus.report["sources"]],
        "evaluation_batch_size": config.evaluation.batch_size,
        "settings": settings,
    }
    return found if finetuned_from is None else {**found, FINETUNED_FROM: finetuned_from}


def predecessor(fingerprint: str, info: dict[str, Any]) -> dict[str, Any]:
    """What a fine-tuned model says of the one it comes from: its fingerprint, and all that it says of itself."""
    return {"fingerprint": fingerprint, **info}


def _name(source: str) -> str:
    """A source's last name: where it lay on a machine is nobody's business."""
    return source if source.startswith("tfds:") else epath.Path(source).name
