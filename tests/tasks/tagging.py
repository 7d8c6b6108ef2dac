"""Makes a small tagging problem and a small random biLM, and trains a POS tagger with both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from elmo_jax.checkpoints.export import export_bilm
from elmo_jax.checkpoints.layout import parameter_shapes, unflatten
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.config_file import with_overrides
from elmo_jax.runs.result import Finished
from elmo_jax.tasks.core.run import train_task
from elmo_jax.tasks.registry import default_config, task_config

BILM = ModelConfig(
    CharCNNConfig(embedding_dim=4, filters=((1, 5), (2, 6)), highways=1, max_characters=12),
    LSTMConfig(cells=12, projection=7, layers=2),
)
WORDS = {
    "DET": ("the", "a", "some"),
    "ADJ": ("old", "green", "quick", "Silent"),
    "NOUN": ("dog", "tree", "idea", "naïveté", "Ω"),
    "VERB": ("sees", "chases", "is"),
}
PATTERNS = (
    ("DET", "NOUN"),
    ("DET", "NOUN", "VERB"),
    ("DET", "ADJ", "NOUN", "VERB", "DET", "NOUN"),
    ("DET", "ADJ", "ADJ", "NOUN", "VERB", "DET", "ADJ", "NOUN", "VERB"),
)


def write_sentences(path: Path, number: int, seed: int) -> None:
    """Writes sentences in CoNLL-U whose words determine their tags."""
    random = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(number):
            for position, tag in enumerate(PATTERNS[random.integers(len(PATTERNS))], 1):
                word = WORDS[tag][random.integers(len(WORDS[tag]))]
                file.write(f"{position}\t{word}\t_\t{tag}\t_\t_\t0\t_\t_\t_\n")
            file.write("\n")


def write_problem(folder: Path) -> None:
    """Writes `train.conllu`, `dev.conllu`, `test.conllu` and the export `bilm` into a folder."""
    for name, number, seed in (("train", 37, 0), ("dev", 11, 1), ("test", 13, 2)):
        write_sentences(folder / f"{name}.conllu", number, seed)
    random = np.random.default_rng(3)
    shapes = parameter_shapes(BILM)
    params = {key: 0.3 * random.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    export_bilm(folder / "bilm", BILM, unflatten(params))


def overrides(folder: Path, *more: str) -> list[str]:
    """Returns the settings of a training that takes a second."""
    settings = [
        *(f"data.{name}={folder / f'{name}.conllu'}" for name in ("train", "dev", "test")),
        *("model.layers=(6,)", "word_vectors.dim=5", "train.batch_size=8", "train.epochs=4", "train.num_buckets=2"),
        *("train.optimizer.learning_rate=0.05", "train.patience=0", "model.dropout=0.1", "elmo.dropout=0.1"),
        *more,
    ]
    return [f"--config.{setting}" for setting in settings]


def train(folder: Path, run: Path, *more: str, devices: int = 1) -> dict[str, Any]:
    """Trains the tagger to its end; returns the result."""
    config = task_config(with_overrides(default_config("pos"), overrides(folder, *more)))
    ended = train_task(config, epath.Path(run), "test", jax.devices()[:devices])
    assert isinstance(ended, Finished)
    return ended.result


def curve(run: Path, name: str, seed: int = 0) -> list[float]:
    """Returns the values of one metric of a seed, in their order."""
    records = map(json.loads, (run / f"seed_{seed}" / "metrics.jsonl").read_text().splitlines())
    return [record[name] for record in records if name in record]
