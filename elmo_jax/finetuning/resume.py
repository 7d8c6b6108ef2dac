"""Refuses to resume a fine-tuning with another model or with another original text."""

from __future__ import annotations

from typing import Any

from etils import epath

from elmo_jax.checkpoints.provenance import FINETUNED_FROM
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.runs.folder import read_config_file

ORIGINAL = "original_fingerprint"  # the fact that tells on which text it is measured what is forgotten


def check_model(workdir: epath.Path, fingerprint: str, name: str) -> dict[str, Any] | None:
    """Returns what the run in a folder has recorded about the model that it fine-tunes; None if there is no run yet.

    Raises:
      UserError: the folder has a run that does not fine-tune the model of this fingerprint.
    """
    if not (workdir / "config.json").exists():
        return None
    before: dict[str, Any] | None = read_config_file(workdir)["facts"].get(FINETUNED_FROM)
    if before is None:
        raise UserError(f"{workdir}: holds a run of pretrain; give the fine-tuning a folder of its own")
    if before["fingerprint"] != fingerprint:
        raise UserError(
            f"{workdir}: fine-tunes the model of fingerprint {before['fingerprint'][:12]}, and {name} is"
            f" {fingerprint[:12]}; give the new run a folder of its own with --workdir"
        )
    return before


def check_original(workdir: epath.Path, original: Corpus | str) -> None:
    """Raises `UserError` if a run that is resumed measures on another text what is forgotten.

    Args:
      workdir: the folder of the run.
      original: the corpus of the text, or the reason why there is none.
    """
    if not (workdir / "config.json").exists():
        return
    facts = read_config_file(workdir)["facts"]
    now = None if isinstance(original, str) else original.fingerprint
    if facts[ORIGINAL] == now:
        return
    was = f"on the text of fingerprint {str(facts[ORIGINAL])[:12]}" if facts[ORIGINAL] else "on no text"
    here = f"there is none ({original})" if isinstance(original, str) else f"{original.path} is {str(now)[:12]}"
    raise UserError(
        f"--original: {workdir} measures what is forgotten {was}, and now {here}; give the text that it was started"
        " with, or start again in another folder"
    )
