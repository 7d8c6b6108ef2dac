"""Tests what `finetune` refuses, in one line each."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from elmo_jax.checkpoints.export import NAME
from elmo_jax.cli.main import main
from tests.end_to_end.commands import (
    Commands,
    files,
)
from tests.end_to_end.finetuning import finetune

# Mistakes


@pytest.fixture
def complaint(commands: Commands) -> Callable[..., str]:
    """Runs the command in this process, in vain; returns its one line."""

    def run(*arguments: str | Path) -> str:
        return commands.inside(*arguments, "--processes", "1").complaint

    return run


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("text", "text: no biLM here; "),
        ("nowhere", "nowhere: no such file or folder; "),
        ("small.py", "small.py: a file; "),
    ],
)
def test_wrong_folder(
    domain: Commands, complaint: Callable[..., str], tmp_path: Path, model: str, expected: str
) -> None:
    assert expected in complaint(*finetune(model, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_damaged_model(domain: Commands, whole: Path, complaint: Callable[..., str], tmp_path: Path) -> None:
    other = shutil.copytree(whole / "export", tmp_path / "other")
    (other / NAME).write_bytes((other / NAME).read_bytes()[:-1])
    assert f"{other / NAME}: damaged" in complaint(*finetune(other, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.char_cnn.max_characters=40", "config.model.char_cnn.max_characters: 40, but the model in whole has 50"),
        ("model.lstm.cells=64", "config.model.lstm.cells: 64, but the model in whole has 32"),
        ("finetune.trainable=some", "finetune.trainable: expected 'all'"),
        ("finetune.vocabulary=new", "finetune.vocabulary: expected 'keep'"),
        (
            "finetune.min_count=3",
            "config.finetune.min_count: has no effect, since the softmax has the words of the model",
        ),
        ("finetune.vocabulary_size=900", "config.finetune.vocabulary_size: has no effect"),
        ("finetune.patience=-1", "finetune.patience: expected a number of at least 0"),
        ("data.corpus=nowhere", "--config.data.corpus: has no effect, since the text is that of --data"),
        ("finetune.optimizer=fresh", "--config.finetune.optimizer: has no effect without a checkpoint of bilm-tf"),
    ],
)
def test_settings(
    domain: Commands, complaint: Callable[..., str], tmp_path: Path, override: str, expected: str
) -> None:
    assert expected in complaint(*finetune("whole", tmp_path / "run", f"--config.{override}"))
    assert not files(tmp_path / "run")


def test_character_tables_of_published_weights(domain: Commands, complaint: Callable[..., str], tmp_path: Path) -> None:
    """Options that do not fit the weights."""
    assert domain.inside("export-hdf5", "whole", tmp_path / "o.json", tmp_path / "w.hdf5").status == 0
    options = json.loads((tmp_path / "o.json").read_text())
    for n_characters, expected in ((300, "expected 261 or 262"), (261, "")):
        options["char_cnn"]["n_characters"] = n_characters
        options["char_cnn"]["embedding"]["dim"] = 16 if expected else 4
        (tmp_path / "o.json").write_text(json.dumps(options))
        line = complaint(*finetune(tmp_path / "w.hdf5", tmp_path / "run", "--options", tmp_path / "o.json"))
        assert expected in line and ("char_embed" in line or expected)


def test_corpus_of_another_vocabulary(domain: Commands, complaint: Callable[..., str], tmp_path: Path) -> None:
    arguments = (
        "prepare",
        str(domain.folder / "domain"),
        "--out",
        str(tmp_path / "corpus"),
        "--vocab-size",
        "500",
        "--workers",
        "1",
    )
    assert main(arguments) == 0
    given = ("finetune", "--from", "whole", "--workdir", tmp_path / "run", "--data", tmp_path / "corpus")
    line = complaint(*given)
    assert f"{tmp_path / 'corpus'}: prepared with another vocabulary" in line and "--vocab EXPORT" in line
    extend = "--config.finetune.vocabulary=extend"
    line = complaint(*given, extend)
    assert "--extend-vocab EXPORT" in line


def test_other_model_in_a_run(domain: Commands, run: Path, complaint: Callable[..., str]) -> None:
    before = files(run)
    line = complaint(*finetune("tuned", "tuned", "--config.train.steps=40"))
    assert "tuned: fine-tunes the model of fingerprint" in line and "--workdir" in line
    assert files(run) == before


def test_run_of_pretrain_and_other_folders(
    domain: Commands, whole: Path, complaint: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("once")
    assert "holds something that is not a run" in complaint(*finetune("whole", tmp_path / "thesis"))
    assert files(tmp_path / "thesis") == {"chapter.tex": b"once"}
    copy = shutil.copytree(whole, tmp_path / "copy")
    before = files(copy)
    assert "holds a run of pretrain" in complaint(*finetune("whole", copy))
    assert {name for name in files(copy).keys() - before.keys() if not name.startswith(".")} == set()


def test_negative_epochs(domain: Commands, complaint: Callable[..., str], tmp_path: Path) -> None:
    assert "--epochs: expected a number of at least 0 and at most 1,000,000, got '-1'" in complaint(
        *finetune("whole", tmp_path / "run", "--epochs", "-1")
    )


def test_many_epochs_of_a_small_text_are_warned_of(
    domain: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Told before training begins, which is refused here for its number of negatives."""
    monkeypatch.chdir(domain.folder)
    for epochs, warned in (("4", True), ("3", False)):
        arguments = finetune("whole", tmp_path / "run", "--epochs", epochs, "--config.train.negatives=5000")
        assert main([*arguments, "--processes", "1"]) == 2
        printed = capsys.readouterr()
        assert "config.train.negatives" in printed.err
        assert ("warning: 4.0 epochs" in printed.out and "10,000,000 tokens" in printed.out) == warned
        assert ("after 3 evaluations without a lower perplexity" in printed.out) == warned


def test_settings_that_another_makes_ineffective(
    domain: Commands, complaint: Callable[..., str], tmp_path: Path
) -> None:
    steps, every = "--config.train.steps=3", "--config.evaluation.every=2"
    line = complaint(*finetune("whole", tmp_path / "run", "--epochs", "1", steps))
    assert "--epochs: --config.train.steps already says how long to train" in line
    line = complaint(*finetune("whole", tmp_path / "run", every))
    assert "--config.evaluation.every: has no effect, as config.finetune.evaluations is 4" in line
    line = complaint(*finetune("whole", tmp_path / "run", steps, "--config.train.epochs=2"))
    assert "--config.train.epochs: has no effect, as config.train.steps is 3; set that to 0" in line
    adam = [f"--config.train.optimizer.{setting}" for setting in ("name=adam", "learning_rate=0.2")]
    line = complaint(*finetune("whole", tmp_path / "run", *adam))
    assert "config.train.optimizer.learning_rate: expected one for Adam, such as 0.001, got 0.2" in line
    assert not (tmp_path / "run").exists()


def test_options_that_a_prepared_corpus_would_ignore(
    domain: Commands, run: Path, complaint: Callable[..., str], tmp_path: Path
) -> None:
    line = complaint(
        *("finetune", "--from", "whole", "--workdir", tmp_path / "run", "--data", run / "corpus"),
        *("--language", "de", "--heldout-fraction", "0.1"),
    )
    assert "a prepared corpus, on which --language and --heldout-fraction have no effect" in line
