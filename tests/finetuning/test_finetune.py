"""Tests what fine-tuning refuses before a run exists; the command itself is tested in end_to_end/."""

from types import SimpleNamespace

import pytest
from etils import epath

from elmo_jax.config import CheckpointConfig, Config, DataConfig, EvaluationConfig, FinetuneConfig, TrainConfig
from elmo_jax.data.prepare.options import PrepareOptions, TextOptions
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.errors import UserError
from elmo_jax.finetuning import finetune
from elmo_jax.finetuning.finetune import Text
from elmo_jax.finetuning.recipe import recipe_for_corpus
from elmo_jax.finetuning.source import SourceModel
from elmo_jax.settings import to_dict

pytestmark = pytest.mark.quick


def test_text_is_not_prepared_into_a_bucket(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a house\n" * 200)
    with pytest.raises(UserError, match="prepare it first") as error:
        Text(["text.txt"]).prepare(epath.Path("gs://bucket/run/corpus"))
    assert "--data CORPUS" in str(error.value) and "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_other_processes_open_what_the_first_has_prepared(monkeypatch, tmp_path):
    """The text need not be where they run."""
    (tmp_path / "text.txt").write_text("a house\n" * 200)
    options = PrepareOptions(progress=False, workers=1)
    prepared = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", options)
    monkeypatch.setattr(finetune, "is_primary", lambda: False)
    for sources in (["gone.txt"], [str(tmp_path / "corpus")]):
        opened = finetune._by_first(lambda: pytest.fail("prepared again"), sources, epath.Path(tmp_path / "corpus"))
        assert opened.fingerprint == prepared.fingerprint


@pytest.mark.parametrize(("epochs", "warned"), [(3.0, False), (4.0, True)])
def test_more_epochs_than_a_small_text_allows_are_warned_of(tmp_path, capsys, epochs, warned):
    (tmp_path / "text.txt").write_text("a house\n" * 2000)
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", PrepareOptions(progress=False, workers=1))
    bilm = SimpleNamespace(vocabulary=corpus.vocabulary(), fingerprint="0123456789abc")
    train = TrainConfig(steps=0, epochs=epochs, batch_size=1, unroll_steps=10)
    finetune._describe(SimpleNamespace(name="old", bilm=bilm), Config(train=train), corpus)
    printed = " ".join("".join(capsys.readouterr()).split())
    tokens = corpus.tokens("train")
    assert f"fine-tuning old (0123456789ab): all trained; {tokens:,} training tokens" in printed
    assert (f"warning: {epochs:.1f} epochs of {tokens:,} tokens; under 10,000,000 tokens" in printed) == warned


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        ({"text": TextOptions("raw")}, "--format has"),
        ({"heldout_sources": ["other.txt"]}, "--heldout has"),
        ({"heldout_fraction": 0.2, "text": TextOptions("lines")}, "--format and --heldout-fraction have"),
    ],
)
def test_options_that_a_prepared_corpus_would_ignore_are_refused(tmp_path, settings, unused):
    (tmp_path / "text.txt").write_text("a house\n" * 200)
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", PrepareOptions(progress=False, workers=1))
    source = SimpleNamespace(bilm=SimpleNamespace(vocabulary=corpus.vocabulary()))
    given = [str(tmp_path / "corpus")]
    with pytest.raises(UserError, match=f"corpus: a prepared corpus, on which {unused} no effect; leave that out"):
        finetune._corpus(Text(given, PrepareOptions(**settings)), epath.Path(tmp_path), source, Config())
    assert finetune._corpus(Text(given), epath.Path(tmp_path), source, Config()).path == corpus.path


def test_the_original_text_may_be_a_prepared_corpus(tmp_path):
    (tmp_path / "text.txt").write_text("a house\n" * 200)
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", PrepareOptions(progress=False, workers=1))
    options = PrepareOptions(TextOptions("jsonl", "body"), workers=1)  # those of the domain's text
    actual = finetune._original(Text([str(corpus.path)], options), epath.Path(tmp_path), corpus)
    assert actual.path == corpus.path
    actual = finetune._original(Text([str(tmp_path / "text.txt")], options), epath.Path(tmp_path), corpus)
    assert actual.report["splits"]["heldout"]["sentences"] == 200


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 8), (5000, 4)])
def test_a_part_of_the_original_text_is_evaluated(tmp_path, tokens, blocks):
    (tmp_path / "text.txt").write_text("a house\n" * 4000)  # 12,000 tokens
    (tmp_path / "words.txt").write_text("<S>\n</S>\n<UNK>\na\nhouse\n")
    settings = {"vocabulary_file": tmp_path / "words.txt", "heldout_fraction": 1, "workers": 1, "progress": False}
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", PrepareOptions(**settings))
    bilm = SimpleNamespace(vocabulary=corpus.vocabulary(), params={}, config=Config().model)
    config = Config(evaluation=EvaluationConfig(tokens=tokens))
    recipe = recipe_for_corpus(SimpleNamespace(bilm=bilm, history={}), config, corpus, corpus)
    seen = []
    program = SimpleNamespace(perplexity=lambda now, blocks, char_ids: seen.append(len(blocks)))
    recipe.before["original"](program, None)
    assert seen == [blocks]


def test_only_the_settings_of_a_training_step_are_inherited():
    """Those with which `english` was packaged: 6% of an epoch for the softmax, no patience, few evaluations."""
    given = Config(
        train=TrainConfig(batch_size=64, precision="bfloat16", steps=100, epochs=3, seed=5, log_every=7),
        data=DataConfig(seed=3, mixture=(("news", 2.0),)),
        evaluation=EvaluationConfig(every=4000, tokens=20000, batch_size=32),
        checkpoint=CheckpointConfig(every=500),
        finetune=FinetuneConfig(min_count=3, vocabulary_size=500, patience=0, evaluations=0, softmax_epochs=0.06),
    )
    bilm = SimpleNamespace(info={"settings": to_dict(given)}, config=Config().model)
    assert SourceModel(bilm, "model", None).settings() == Config(
        train=TrainConfig(batch_size=64, precision="bfloat16", epochs=1.0),
        evaluation=EvaluationConfig(batch_size=32),
    )
