"""Reads experiment files (Python with a `get_config()`) and overrides such as `--config.KEY=VALUE`."""

import inspect
import re
import runpy
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from elmo_jax.config import Config
from elmo_jax.errors import UserError
from elmo_jax.settings import from_dict, near_miss, to_dict


def load_config(path: Path | None, overrides: Sequence[str] = (), base: Config | None = None) -> Config:
    """Returns the settings of an experiment file or, without one, `base` or the defaults; with overrides.

    Raises `UserError` if the file does not exist or fails, a key is misspelt, or a value has the wrong type or is out
    of range.
    """
    loaded = ConfigDict(to_dict(base or Config())).lock() if path is None else load_file(path, overrides)
    return from_dict(with_overrides(loaded, overrides), Config)


def load_file(path: Path, overrides: Sequence[str] = ()) -> ConfigDict:
    """Reads an experiment file, whose `get_config(tokens)` gets the number of tokens of the corpus in the overrides."""
    if not path.is_file():
        raise UserError(f"--config: no such file {path}; the project's own experiments are in experiments/")
    try:
        get_config = runpy.run_path(str(path))["get_config"]
        config = get_config(**_tokens(path, overrides) if "tokens" in inspect.signature(get_config).parameters else {})
    except UserError:
        raise
    except Exception as error:  # the file is a program: it may raise anything
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        if not lines and isinstance(error, KeyError):
            raise UserError(f"{path}: has no get_config(); see the project's own experiments in experiments/") from None
        text = " ".join(str(error.args[0] if isinstance(error, KeyError) else error).split())
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        if unknown := re.search(r'Key "(\w+)" does not exist', text):  # the rest of the message is the whole ConfigDict
            known = re.findall(r'Did you mean "(\w+)"', text)
            raise UserError(f"{where}: {unknown[1]}: no such setting; {near_miss(unknown[1], known)}") from None
        raise UserError(f"{where}: {type(error).__name__}: {text}") from None
    if not isinstance(config, ConfigDict):
        raise UserError(f"{path}: get_config() must return a ConfigDict, as elmo_jax.config.default_config() makes")
    return config


def _tokens(path: Path, overrides: Sequence[str]) -> dict[str, int]:
    option = "--config.data.corpus="
    corpus = next((value.removeprefix(option) for value in reversed(overrides) if value.startswith(option)), None)
    if corpus is None:
        raise UserError(f"{path}: chooses its settings by the corpus; give {option}DIR")
    from elmo_jax.data.corpus import Corpus  # which imports JAX, unlike `elmo-jax settings`

    return {"tokens": Corpus.open(corpus).tokens("train")}


def with_overrides(loaded: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    """Returns the settings after options such as `--config.train.batch_size=64`; raises `UserError` for wrong ones."""
    for override in overrides:
        node: Any = loaded
        for part in override.split("=")[0].removeprefix("--config.").split("."):
            known = list(node) if isinstance(node, ConfigDict) else []
            if part not in known:
                raise UserError(f"{override}: no such setting; {near_miss(part, known)}")
            node = node[part]
    values = flags.FlagValues()
    # Of a setting that is given twice, the last value counts; absl would join two tuples.
    arguments = ["elmo-jax", *{override.split("=")[0]: override for override in overrides}.values()]
    try:
        config_flags.DEFINE_config_dict("config", loaded, flag_values=values, sys_argv=arguments)
        rest = values(arguments)
    except (flags.Error, ValueError) as error:  # a value that cannot be parsed
        text = " ".join(str(error).split()).removeprefix("flag ")
        raise UserError(f"{text}; give a value of the type that `elmo-jax settings` lists") from None
    if len(rest) > 1:
        raise UserError(f"not understood: {' '.join(rest[1:])}; settings are given as --config.train.batch_size=64")
    return loaded
