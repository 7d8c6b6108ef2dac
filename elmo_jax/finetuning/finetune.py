"""Implements `finetune`, which continues the training of a biLM on the text of a domain (paper, section 3.4)."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from elmo_jax.checkpoints.export import FINETUNED_FROM
from elmo_jax.checkpoints.from_run import first_step
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.config import Config, FinetuneConfig
from elmo_jax.data.batches import epoch_tokens
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.lexicon import vocabulary_file
from elmo_jax.data.prepare.options import PrepareOptions
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.data.prepare.sources import for_other_text
from elmo_jax.distributed.collectives import is_primary, raise_on_all
from elmo_jax.distributed.initialize import check_connected
from elmo_jax.errors import UserError
from elmo_jax.files import in_bucket, parse_path
from elmo_jax.finetuning.recipe import continued, recipe_for_corpus, recipe_of
from elmo_jax.finetuning.softmax_init import unigram_softmax
from elmo_jax.finetuning.source import CHOOSE_WORDS, SourceModel, with_architecture
from elmo_jax.interrupts import Stopped
from elmo_jax.runs.folder import check_usable, read_config_file
from elmo_jax.runs.lock import locked
from elmo_jax.runs.metrics import check_trackers
from elmo_jax.runs.result import Finished
from elmo_jax.training.pretrain import launch
from elmo_jax.training.setup import total_steps

FEW_TOKENS, FEW_EPOCHS = 10_000_000, 3  # with fewer tokens than that, more epochs than that overfit


@dataclasses.dataclass(frozen=True)
class Text:
    """A text to train or evaluate on: one prepared corpus, or sources that `prepare` reads."""

    sources: Sequence[str]  # one prepared corpus, or what `prepare` reads
    options: PrepareOptions = PrepareOptions()
    language: str = "en"  # unless the options have one

    def prepare(self, out: epath.Path, **changes: Any) -> Corpus:
        """Prepares the text in the folder `out`, with `changes` of the options, unless that has been done already."""
        if in_bucket(out):
            remedy = "prepare it first (elmo-jax prepare --vocab EXPORT), and give --data CORPUS"
            raise UserError(f"{self.sources[0]}: no text can be prepared in a bucket; {remedy}")
        options = dataclasses.replace(self.options, **changes)
        options = dataclasses.replace(options, text=options.text.in_language(self.language))
        return prepare(self.sources, Path(out), options)


def finetune(
    source: SourceModel,
    config: Config,
    text: Text,
    workdir: epath.Path,
    title: str,
    original: Sequence[str] | None = None,
) -> Finished | Stopped:
    """Trains a model on a domain to the end, or until SIGTERM or SIGINT.

    Of `config.model`, only the dropout has an effect (`with_architecture`). A run that was stopped or killed resumes in
    its `workdir`; `title` names it in its plot and its export. What is forgotten is measured on the sources `original`,
    by default on the text of the model's training. Raises `UserError` if a model, a text or a setting is invalid, or
    the loss is not finite.
    """
    check_connected()
    workdir, text = parse_path(workdir), dataclasses.replace(text, language=source.bilm.language)
    with raise_on_all():
        config = with_architecture(config, source.bilm.config, source.name)
        if is_primary():
            check_trackers(config.train.trackers)
            check_usable(workdir)
            _recorded(workdir)  # refuses the folder of a pretraining before anything is written there
    with locked(workdir):
        corpus = _by_first(lambda: _corpus(text, workdir, source, config), text.sources, workdir / "corpus")
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, corpus=str(corpus.path)))
        if number := config.finetune.evaluations:
            epoch = epoch_tokens(corpus, config.data.mixture) / config.train.tokens_per_step
            evaluation = dataclasses.replace(config.evaluation, every=max(1, math.ceil(epoch / number)))
            config = dataclasses.replace(config, evaluation=evaluation)
        if source.bilm.vocabulary is None:
            _say(f"{source.name} has no softmax; one is fitted first, with the biLM frozen")
            fitted = _fit_softmax(source, config, corpus, workdir / "softmax", title)
            if isinstance(fitted, Stopped):
                return fitted
            source = fitted
        other: Corpus | str | None = None
        if original is not None:
            originals = dataclasses.replace(text, sources=original)
            other = _by_first(lambda: _original(originals, workdir, corpus), original, workdir / "original")
        with raise_on_all():
            other = other or source.original()
            metadata = _provenance(workdir, source)
        if isinstance(other, str):
            _say(f"what is forgotten is not measured: {other}; give such a text with --original TEXT")
            other = None
        _describe(source, config, corpus)
        metadata["original_fingerprint"] = other and other.fingerprint
        recipe = recipe_for_corpus(source, config, corpus, other)
        if source.checkpoint:
            recipe, start = continued(recipe, source.checkpoint, config)
            step = first_step(recipe.finetuned_from)
            _say(f"from step {step:,} of the checkpoint, with LSTM states of zero; {start}")
        return launch(recipe, config, corpus, workdir, title, metadata)


def _by_first(prepared: Callable[[], Corpus], sources: Sequence[str], folder: epath.Path) -> Corpus:
    """Returns the corpus that process 0 prepares, and that the other processes, without its text, then open."""
    with raise_on_all():
        corpus = prepared() if is_primary() else None
    with raise_on_all():
        return corpus or Corpus.find(sources) or Corpus.open(folder, to_train=False)


def _describe(source: SourceModel, config: Config, corpus: Corpus) -> None:
    tokens, words = epoch_tokens(corpus, config.data.mixture), corpus.vocabulary_size
    added = words - len(source.bilm.vocabulary or ())
    vocabulary = f"{words:,} words" + (f", {added:,} of them new" if added else ", those of the model")
    _say(
        f"fine-tuning {source.name} ({source.bilm.fingerprint[:12]}): {config.finetune.trainable} trained; {tokens:,}"
        f" training tokens, {corpus.report['splits']['train']['unknown_targets']:.2%} <UNK>; softmax of {vocabulary}"
    )
    epochs = total_steps(config, corpus) * config.train.tokens_per_step / max(tokens, 1)
    if tokens < FEW_TOKENS and epochs > FEW_EPOCHS + 0.01:  # the number of steps is rounded up, hence the margin
        remedy = "config.finetune.patience would end the training in time"
        if config.finetune.patience:
            remedy = f"training ends after {config.finetune.patience} evaluations without a lower perplexity"
        _say(
            f"warning: {epochs:.1f} epochs of {tokens:,} tokens; under {FEW_TOKENS:,} tokens, more than {FEW_EPOCHS}"
            f" epochs overfit. The best step is exported; {remedy}"
        )


def _corpus(text: Text, workdir: epath.Path, source: SourceModel, config: Config) -> Corpus:
    """Returns the corpus of the domain, whose vocabulary is the model's or, if it is extended, begins with it."""
    vocabulary, extends = source.bilm.vocabulary, config.finetune.vocabulary == "extend"
    prepared = Corpus.find(text.sources)
    if prepared is not None or (vocabulary is not None and not extends):
        for name in CHOOSE_WORDS:
            if getattr(config.finetune, name) != getattr(FinetuneConfig(), name):
                problem = "has no effect, since the softmax has the words of the model or of a prepared corpus"
                remedy = "leave it out, or give the text itself with config.finetune.vocabulary=extend"
                raise UserError(f"config.finetune.{name}: {problem}; {remedy}")
    if prepared is not None:
        options = text.options
        heldout = ("--heldout", options.heldout_sources), ("--heldout-fraction", options.heldout_fraction)
        options.text.check_unused(text.sources[0], *(name for name, value in heldout if value is not None))
        words = prepared.vocabulary()
        if vocabulary is not None and vocabulary != (words[: len(vocabulary)] if extends else words):
            remedy = f"give the text itself, or prepare it with {'--extend-vocab' if extends else '--vocab'} EXPORT"
            raise UserError(f"{text.sources[0]}: prepared with another vocabulary than the model's; {remedy}")
        return prepared
    chosen = {"min_count": config.finetune.min_count, "vocabulary_size": config.finetune.vocabulary_size or None}
    out = workdir / "corpus"
    if vocabulary is None:
        return text.prepare(out, **chosen)
    with vocabulary_file(vocabulary) as file:
        if extends:
            return text.prepare(out, base_vocabulary_file=file, **chosen)
        return text.prepare(out, vocabulary_file=file)


def _fit_softmax(
    source: SourceModel, config: Config, corpus: Corpus, workdir: epath.Path, title: str
) -> SourceModel | Stopped:
    """Fits a softmax to a model without one, in a separate run; the biLM is frozen and runs without dropout."""
    softmax = unigram_softmax(corpus.counts(), corpus.vocabulary_size, source.bilm.config.lstm.projection)
    epochs, trackers = config.finetune.softmax_epochs, ("tensorboard",)
    stage = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, dropout=0.0),
        train=dataclasses.replace(config.train, epochs=epochs, steps=0, profile=(), trackers=trackers),
        finetune=dataclasses.replace(config.finetune, trainable="softmax"),
    )
    recipe = recipe_of(stage, {**source.bilm.params, "softmax": softmax}, source.history)
    with raise_on_all():
        metadata = _provenance(workdir, source)
    ended = launch(recipe, stage, corpus, workdir, f"{title}, softmax", metadata)
    return ended if isinstance(ended, Stopped) else SourceModel(open_bilm(workdir), source.name, source.run)


def _original(text: Text, workdir: epath.Path, corpus: Corpus) -> Corpus:
    if prepared := Corpus.find(text.sources):
        return prepared
    changes: dict[str, Any] = {"heldout_fraction": 1.0, "heldout_sources": None}
    changes["text"] = for_other_text(text.sources, text.options.text)
    with vocabulary_file(corpus.vocabulary()) as file:
        return text.prepare(workdir / "original", vocabulary_file=file, **changes)


def _recorded(workdir: epath.Path) -> dict[str, Any] | None:
    """Returns the provenance of the model that the run in a folder fine-tunes, or None without a run."""
    if not (workdir / "config.json").exists():
        return None
    recorded: dict[str, Any] | None = read_config_file(workdir)["metadata"].get(FINETUNED_FROM)
    if recorded is None:
        raise UserError(f"{workdir}: holds a run of pretrain; give the fine-tuning another folder")
    return recorded


def _provenance(workdir: epath.Path, source: SourceModel) -> dict[str, Any]:
    """Returns the provenance of the model, as the run in a folder has recorded it if there is one."""
    recorded, fingerprint = _recorded(workdir), source.bilm.fingerprint
    if recorded is None:
        return {FINETUNED_FROM: source.history}
    if recorded["fingerprint"] != fingerprint:
        known, other = recorded["fingerprint"][:12], f"{source.name} is {fingerprint[:12]}"
        problem = f"fine-tunes the model of fingerprint {known}, and {other}"
        raise UserError(f"{workdir}: {problem}; give the new run another folder with --workdir")
    return {FINETUNED_FROM: recorded}


def _say(line: str) -> None:
    if is_primary():
        with contextlib.suppress(OSError):  # the output may be a file on a full disk
            print(line, flush=True)
