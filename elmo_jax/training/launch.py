"""The start of a run: whether its folder, its settings and its corpus go together, and whether there is work left."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from elmo_jax import files
from elmo_jax.config import Config
from elmo_jax.data.corpus import Corpus
from elmo_jax.training import mesh as meshes
from elmo_jax.training.checks import check_sizes, total_steps
from elmo_jax.training.loop import Run
from elmo_jax.training.report import Finished
from elmo_jax.training.signals import Stopped
from elmo_jax.training.together import is_first, of_first
from elmo_jax.training.workdir import open_workdir


def pretrain(config: Config, workdir: str | os.PathLike[str], title: str) -> Finished | Stopped:
    """Trains to the end, or until SIGTERM or SIGINT.

    Args:
      config: the experiment.
      workdir: the run's folder; a run that was stopped or killed there goes on.
      title: what the run is called in its picture and its export.

    Raises:
      UserError: a setting, a file or a loss that training cannot go on with.
    """
    return launch(Run, config, Corpus.open(config.data.corpus), files.place(workdir), title)


def launch(
    kind: Callable[..., Run],
    config: Config,
    corpus: Corpus,
    workdir: epath.Path,
    title: str,
    more_facts: dict[str, Any] | None = None,
) -> Finished | Stopped:
    """Goes on with the run of `workdir`, or starts it, unless it is complete.

    Args:
      kind: `Run`, or what else takes its arguments.
      more_facts: what must stay the same, beside settings and corpus, from one launch to the next.
    """
    mesh = meshes.make_mesh()
    check_sizes(config, corpus, mesh)
    facts = {"corpus_fingerprint": corpus.fingerprint, "vocabulary_size": corpus.vocabulary_size}
    open_workdir(workdir, config, {**facts, **(more_facts or {})})
    total = total_steps(config, corpus)
    done = workdir / "result.json"
    result = json.loads(done.read_text()) if is_first() and done.exists() else {}
    if of_first(result.get("steps") == total or result.get("stopped_early", False)):
        return Finished(result, already=True)
    use_compilation_cache(workdir)
    return kind(config, corpus, mesh, workdir, title, total).train()


def use_compilation_cache(workdir: epath.Path) -> None:
    """Keeps compiled programs in the run's folder, unless the user has a place for them."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(files.absolute(workdir / "compilation_cache")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
