"""The tags of the model in every encoding, and what is wrong with a dataset of TFDS."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from elmo_jax.config_file import with_overrides
from elmo_jax.errors import UserError
from elmo_jax.runs.result import Finished
from elmo_jax.tasks.core.run import table, train_task
from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.layers.crf import allowed_transitions, constrained, viterbi_decode
from elmo_jax.tasks.ner.task import TASK, NERDataConfig, NERModel
from elmo_jax.tasks.registry import default_config, task_config
from tests.tasks.problems import PROBLEMS, config_of
from tests.tasks.tagging import write_problem

GOLD = (
    ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-LOC"],  # two spans of one type side by side
    ["O", "B-LOC", "B-PER", "B-PER", "B-PER", "O"],
    ["B-PER"],
    ["O", "O", "B-LOC", "I-LOC", "I-LOC"],
)
EXAMPLES = [TaggedSentence([f"w{i}" for i in range(len(tags))], list(tags)) for tags in GOLD]


@pytest.mark.parametrize("encoding", ["BIOUL", "BIO"])
def test_perfect_logits_give_back_the_gold_tags(encoding):
    config = TASK.config_class(model=NERModel(encoding=encoding))
    labels = TASK.labels(EXAMPLES, config)
    gold = TASK.arrays(EXAMPLES, len(EXAMPLES), ((1, 6),), labels)["tags"]
    number = len(labels["tags"])
    logits = 10.0 * np.eye(number, dtype=np.float32)[gold]
    mask = np.arange(6) < np.array([[len(tags)] for tags in GOLD])
    chain = constrained(jnp.zeros((number, number)), allowed_transitions(labels["tags"], encoding))
    best = viterbi_decode(jnp.asarray(logits), jnp.asarray(mask), chain)
    np.testing.assert_array_equal(np.asarray(best)[mask], gold[mask])
    actual = TASK.decode({"tags": np.asarray(best)}, EXAMPLES, labels, config)
    assert actual == [list(tags) for tags in GOLD]
    assert TASK.score(EXAMPLES, actual)["f1"] == 100


def test_a_tfds_dataset_in_another_notation_is_named():
    names = ["O", "B-PER", "I-PER"]
    features = {"ner": SimpleNamespace(feature=SimpleNamespace(names=names))}
    records = [{"tokens": [b"He"], "ner": [0]}, {"tokens": [b"with", b"Ada"], "ner": [0, 2]}]
    config = TASK.config_class(data=NERDataConfig(scheme="bio"))
    with pytest.raises(UserError, match=r"^tfds:conll2003:train, example 1, word 1: 'I-PER' opens a span.*scheme"):
        TASK.from_tfds("tfds:conll2003:train", features, records, config)
    assert TASK.from_tfds("tfds:conll2003:train", features, records, TASK.config_class())[1].tags == ["O", "B-PER"]


def test_taglm_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    write_problem(tmp_path)
    where = ("elmo.layers=top", "elmo.where=after_first")
    more = (f"bilm={tmp_path / 'bilm'}", "model.layers=(8,8)", *where)
    ended = train_task(config_of("ner", PROBLEMS["ner"](), tmp_path, *more), epath.Path(tmp_path / "run"), "ner")
    assert isinstance(ended, Finished)
    (seed,) = ended.result["seeds"]
    mix = seed["elmo"]["after_first"]
    assert seed["dev"]["f1"] > 80 and mix["weights"] == [] and mix["scale"] != 1
    assert "ELMo after the first layer: scale " in table(ended.result, epath.Path(tmp_path / "run"))
    with pytest.raises(UserError, match="only the task 'ner' has 'after_first', got the task 'pos'"):
        task_config(with_overrides(default_config("pos"), [f"--config.{setting}" for setting in where]))


def test_entities_as_json_have_their_words_and_their_end_excluded():
    assert TASK.as_json(EXAMPLES[0], EXAMPLES[0].tags)["entities"] == [
        {"type": "PER", "text": "w0 w1", "start": 0, "end": 2},
        {"type": "LOC", "text": "w3", "start": 3, "end": 4},
        {"type": "LOC", "text": "w4 w5", "start": 4, "end": 6},
    ]
