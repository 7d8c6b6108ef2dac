"""A new task of tagging or classification takes under 120 lines: two complete ones, which are trained here."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from numpy.testing import assert_allclose

from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.errors import UserError
from elmo_jax.tasks.core import vocabulary
from elmo_jax.tasks.core.config import TaskOptimizerConfig, TaskTrainConfig, WordVectorsConfig
from elmo_jax.tasks.core.data import CPU, TaskData, choose_shapes, predict
from elmo_jax.tasks.core.inputs import TextEncoder
from elmo_jax.tasks.core.program import TaskProgram
from elmo_jax.tasks.core.setup import TaskSetup, rows_of
from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.formats import sources
from elmo_jax.tasks.formats.sources import read_source
from elmo_jax.tasks.registry import get_task, task_config
from elmo_jax.tasks.snli.task import ClassifiedTexts
from tests.tasks.core.new_tasks.new_tasks import chunks, questions

CHUNKS = "He PRP B-NP\nruns VBZ B-VP\n. . O\n\nOld JJ B-NP\ndogs NNS I-NP\nrun VBP B-VP\n"
QUESTIONS = "NUM:date When did Ada live ?\nHUM:ind Who was Ada ?\nLOC:city Where is Rome ?\n"
WRITTEN = {
    "chunks": "He\tB-NP\tB-NP\nruns\tB-VP\tB-VP\n.\tO\tO\n\nOld\tB-NP\tB-NP\ndogs\tI-NP\tI-NP\nrun\tB-VP\tB-VP\n\n",
    "questions": "NUM\tNUM\tWhen did Ada live ?\nHUM\tHUM\tWho was Ada ?\nLOC\tLOC\tWhere is Rome ?\n",
}
SHOWN = {"chunks": "[NP He] [VP runs] .", "questions": "NUM ("}


@pytest.mark.parametrize(("module", "text"), [(chunks, CHUNKS), (questions, QUESTIONS)])
def test_a_new_task_learns(module: Any, text: str, tmp_path: Any) -> None:
    task: Any = module.TASK
    (tmp_path / "train").write_text(text)
    training = TaskTrainConfig(batch_size=3, optimizer=TaskOptimizerConfig(ema=0.9))
    settings = {"word_vectors": WordVectorsConfig(dim=7), "train": training}
    config = task.config_class(**settings, model=dataclasses.replace(task.config_class().model, units=9))
    examples = task.read(str(tmp_path / "train"), config, "training")
    words, table = vocabulary.build(rows_of(task, examples), [], config.word_vectors, config.characters)
    setup = TaskSetup(task, config, task.labels(examples, config), words, table, None, make_mesh(jax.devices()[:1]))
    shapes = choose_shapes(list(map(task.size, examples)), 1, CPU)
    program, data = TaskProgram(setup), TaskData(setup, TextEncoder(setup), examples, shapes)
    (batch,) = data.epoch(None)
    arrays = program.device_put(data.arrays(batch))
    state = program.first_state(0, arrays)
    for _ in range(60):
        average = jax.device_get(state.average)
        state, loss = program.train_step(state, arrays, {}, jnp.float32(0.05), jnp.uint32(0))
    assert loss < 0.1
    average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, state.params)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-5, atol=1e-5), program.evaluated(state), average)
    predictions = predict(setup, program, [(state.params, {})], data)
    assert task.score(examples, predictions) == {"accuracy": 100.0}
    assert task.write(examples, predictions) == WRITTEN[task.name]
    assert task.show(examples[0], predictions[0]).startswith(SHOWN[task.name])
    (asked,) = task.from_words([["Ada", "runs"]], setup.labels)
    assert task.texts(asked) == ([["Ada", "runs"]],)
    assert task.as_json(asked, predictions[0])["tokens"] == ["Ada", "runs"]


def test_what_a_reader_gives_wrongly_is_refused() -> None:
    """It would be trained as the first tag, or as the first class."""
    with pytest.raises(UserError, match="a sentence has 2 words and 1 tags: "):
        TaggedSentence(["He", "runs"], ["PRP"])
    examples = [ClassifiedTexts((["He", "runs"], ["He", "sits"]), "Neutral")]
    with pytest.raises(UserError, match="config.data.train: the label 'Neutral': expected one of entailment, "):
        get_task("snli").labels(examples, get_task("snli").config_class())


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("ner", TaggedSentence(["He", "runs"], [])),
        ("snli", ClassifiedTexts((["He", "runs"], ["He", "sits"]), "")),
    ],
)
def test_a_reader_that_gives_no_annotation_is_refused(name: str, example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The padding would be trained as its tags, or the first class as its own."""
    task = get_task(name)
    monkeypatch.setattr(sources, "import_object", lambda path, key: lambda path, config, use: [example])
    config = task_config({"task": name, "data": {"reader": "readers:read"}})
    assert read_source(task, config, "some.txt", "prediction") == [example]
    for use in ("training", "evaluation"):
        with pytest.raises(UserError, match="config.data.reader: an example of .*some.txt is not annotated: 'He runs"):
            read_source(task, config, "some.txt", use)
