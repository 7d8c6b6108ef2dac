"""The source model of a fine-tuning: its parameters, its settings, and the text that it was trained on."""

import dataclasses
from typing import Any

from etils import epath

from elmo_jax import files
from elmo_jax.checkpoints.bilm_tf import Checkpoint, checkpoint_of
from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.checkpoints.from_run import corpus_of
from elmo_jax.checkpoints.open import BiLMSource, open_bilm, run_of
from elmo_jax.config import Config, EvaluationConfig, ModelConfig, TrainConfig
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.settings import differences, from_dict, to_dict

# The settings of a training that fit its model, which fine-tuning takes over.
OF_MODEL = ("batch_size", "accumulate", "unroll_steps", "carry", "negatives", "softmax", "precision", "optimizer")
CHOOSE_WORDS = ("min_count", "vocabulary_size")  # the settings of `FinetuneConfig` that choose words of the softmax


@dataclasses.dataclass(frozen=True)
class SourceModel:
    """A model to fine-tune."""

    bilm: PretrainedBiLM  # whose vocabulary is None if it has no softmax, like published weights
    name: str  # the name of the model in messages
    run: epath.Path | None  # the folder of the run that the model is in, if any
    checkpoint: Checkpoint | None = None  # the checkpoint of bilm-tf that the model is, if it is one

    @property
    def history(self) -> dict[str, Any]:
        """The provenance of the model, as a model that is fine-tuned from it records it."""
        return {"fingerprint": self.bilm.fingerprint, **self.bilm.info}

    def settings(self, adam: bool = False) -> Config:
        """Returns the defaults of fine-tuning for one epoch, with the settings of a training step that fit the model.

        For `adam` in place of the model's Adagrad, its rate remains that of the softmax.
        """
        values = {**self.bilm.info.get("settings", {}), "model": to_dict(self.bilm.config)}
        try:
            config: Config = from_dict(values, Config)
        except UserError as error:
            problem = f"its training settings cannot be used here ({error})"
            raise UserError(f"{self.name}: {problem}; give --config") from None
        train = {name: getattr(config.train, name) for name in OF_MODEL}
        old = config.train.optimizer
        if adam and old.name == "adagrad":
            softmax = old.softmax_learning_rate or old.learning_rate
            train["optimizer"] = dataclasses.replace(old, learning_rate=0.001, softmax_learning_rate=softmax)
        return Config(
            model=config.model,
            train=TrainConfig(epochs=1.0, **train),
            evaluation=EvaluationConfig(batch_size=config.evaluation.batch_size),
        )

    def original(self) -> Corpus | str:
        """Returns the corpus that the model was trained on, or the reason why it is not available."""
        if self.run is None:
            return f"{self.name} does not say where the text that it was trained on is"
        try:
            return corpus_of(self.run)
        except UserError as error:
            return str(error)


def open_source(source: BiLMSource) -> SourceModel:
    """Opens a model for fine-tuning, from any source that `open_bilm` accepts."""
    run, checkpoint = run_of(source), checkpoint_of(source)
    path = files.parse_path(source[1] if isinstance(source, tuple) else source)
    if checkpoint and checkpoint.vocabulary is None:
        raise UserError(f"{path}: nothing names the words of its softmax; give the vocabulary file with --vocab")
    bilm = checkpoint.read() if checkpoint else open_bilm(source)  # with the accumulators, not an export beside it
    return SourceModel(bilm, path.name if run is None else run.name, run, checkpoint)


def with_architecture(config: Config, model: ModelConfig, where: str) -> Config:
    """Returns the settings with the architecture of the model `where`; of `config.model`, only the dropout is kept.

    Raises `UserError` if `config.model` requests another architecture, by a value that is not the default.
    """
    asked = to_dict(config.model)
    of_default = differences(to_dict(ModelConfig()), asked)
    for key, (has, wants) in differences(to_dict(model), asked).items():
        if key != "dropout" and key in of_default:
            problem = f"{wants!r}, but the model in {where} has {has!r}, and fine-tuning cannot change it"
            raise UserError(f"config.model.{key}: {problem}; leave config.model out of the settings")
    return dataclasses.replace(config, model=dataclasses.replace(model, dropout=config.model.dropout))
