"""The provenance in an export: the text and settings that it was made with, and the model it was fine-tuned from."""

from typing import TYPE_CHECKING, Any

from elmo_jax.config import Config
from elmo_jax.files import short_name
from elmo_jax.runs.perplexity import Perplexity
from elmo_jax.settings import to_dict

if TYPE_CHECKING:
    from elmo_jax.data.corpus import Corpus

FINETUNED_FROM = "finetuned_from"  # the key of the source model's fingerprint and provenance, which may be nested
GLOBAL_STEP = "global_step"  # the key of the step of a checkpoint of bilm-tf


def first_step(finetuned_from: dict[str, Any] | None) -> int:
    """Returns the step before the first update of a run: that of its source if it is of bilm-tf, otherwise 0."""
    return (finetuned_from or {}).get(GLOBAL_STEP, 0)


def provenance(
    experiment: str,
    step: int,
    heldout: Perplexity | None,
    config: Config,
    corpus: "Corpus",
    finetuned_from: dict[str, Any] | None,
) -> dict[str, Any]:
    """Returns the `info` of an export of a step, with `SourceModel.history` of the source for a run that fine-tunes."""
    settings = {name: part for name, part in to_dict(config).items() if name not in ("model", "data")}
    info = {
        "experiment": experiment,
        "steps": step,
        "tokens_seen": (step - first_step(finetuned_from)) * config.train.tokens_per_step,
        "heldout_perplexity": heldout and heldout.as_dict(),
        "corpus_fingerprint": corpus.fingerprint,
        "language": corpus.language,
        "corpus_sources": [short_name(source["source"]) for source in corpus.report["sources"]],
        "evaluation_batch_size": config.evaluation.batch_size,
        "settings": settings,
    }
    return info if finetuned_from is None else {**info, FINETUNED_FROM: finetuned_from}
