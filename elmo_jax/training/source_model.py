"""The model that a fine-tuning starts from: its parameters, its settings, and the text it was trained on."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from etils import epath

from elmo_jax.checkpoints.export import PretrainedBiLM, load_bilm
from elmo_jax.config import Config, ModelConfig, differences, from_dict, to_dict
from elmo_jax.data.corpus import Corpus
from elmo_jax.errors import UserError
from elmo_jax.files import place
from elmo_jax.training.history import predecessor
from elmo_jax.training.run_folder import corpus_of, load_run_or_export


@dataclasses.dataclass(frozen=True)
class SourceModel:
    """A model to fine-tune.

    Attributes:
      bilm: the model; its vocabulary is None where it comes without a softmax, as published weights do.
      name: for messages.
      run: the folder of the run that made it, where it still is in one.
    """

    bilm: PretrainedBiLM
    name: str
    run: epath.Path | None

    @property
    def history(self) -> dict[str, Any]:
        """What a model fine-tuned from this one says of it."""
        return predecessor(self.bilm.fingerprint, self.bilm.info)

    def settings(self) -> Config:
        """Those it was trained with, for one epoch; the defaults where it does not know them."""
        values = {**self.bilm.info.get("settings", {}), "model": to_dict(self.bilm.config)}
        try:
            config: Config = from_dict(values)
        except UserError as error:
            raise UserError(
                f"{self.name}: its training settings cannot be used here ({error}); give --config"
            ) from None
        train = dataclasses.replace(config.train, epochs=1.0, steps=0)
        return dataclasses.replace(config, train=train)

    def original(self) -> Corpus | str:
        """The corpus it was trained on, or why that is not at hand."""
        if self.run is None:
            return f"{self.name} does not say where the text lies that it was trained on"
        try:
            return corpus_of(self.run)
        except UserError as error:
            return str(error)


def open_source(path: str | os.PathLike[str], options: str | os.PathLike[str] | None = None) -> SourceModel:
    """Opens a run's folder, an export, or `weights.hdf5` with its `options.json`.

    Raises:
      UserError: something else, a damaged one, or one of another layout version.
    """
    folder = place(path)
    if options is not None:
        return SourceModel(load_bilm((options, path)), folder.name, None)
    if folder.is_file():
        raise UserError(f"{path}: a file; for published weights give --options options.json too")
    inside = folder.parent if folder.name == "export" else folder
    run = inside if (inside / "config.json").is_file() else None
    return SourceModel(load_run_or_export(folder), inside.name, run)


def with_architecture(config: Config, model: ModelConfig, where: str) -> Config:
    """Settings for training this model; of `config.model` they keep the dropout only, which is no architecture.

    Raises:
      UserError: `config.model` asks for another one: a setting that is neither the model's nor the default.
    """
    asked, there = to_dict(config.model), to_dict(model)
    of_model = differences(there, asked)
    of_default = differences(to_dict(ModelConfig()), asked)
    for key, (has, wants) in of_model.items():
        if key != "dropout" and key in of_default:
            raise UserError(
                f"config.model.{key}: {wants!r}, but the model in {where} has {has!r}, and fine-tuning cannot change"
                " it; leave config.model out of the settings"
            )
    return dataclasses.replace(config, model=dataclasses.replace(model, dropout=config.model.dropout))
