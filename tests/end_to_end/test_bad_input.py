"""A user's mistakes: one clear line, status 2, and nothing is lost."""

from pathlib import Path

import jax
import pytest

from tests.end_to_end.commands import Commands, files


def prepare(commands: Commands, tmp_path: Path, *arguments: str | Path) -> str:
    """Prepares a corpus in vain; returns the complaint."""
    complaint = commands.inside("prepare", *arguments, "--out", tmp_path / "out", "--workers", "1").complaint
    assert not (tmp_path / "out").exists() and not (tmp_path / ".out.partial").exists()
    return complaint


def pretrain(commands: Commands, tmp_path: Path, *overrides: str) -> str:
    """Pretrains in vain; returns the complaint. Nothing is written but the lock."""
    complaint = commands.refuse_pretrain(tmp_path / "run", *overrides)
    assert not files(tmp_path / "run")
    return complaint


def test_no_such_file(commands: Commands, tmp_path: Path) -> None:
    assert "nowhere.txt: no such file" in prepare(commands, tmp_path, "nowhere.txt")


def test_pattern_that_matches_nothing(commands: Commands, tmp_path: Path) -> None:
    assert "*.nothing: no file" in prepare(commands, tmp_path, "text/*.nothing")


def test_empty_file(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    assert f"{tmp_path / 'empty.txt'}: the file is empty" in prepare(commands, tmp_path, tmp_path / "empty.txt")


def test_a_file_of_white_space(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "spaces.txt").write_text("\n  \n\n")
    assert "no words in the text" in prepare(commands, tmp_path, tmp_path / "spaces.txt")


@pytest.fixture
def latin(tmp_path: Path) -> Path:
    """Writes a text whose third line is in another encoding."""
    path = tmp_path / "latin.txt"
    good = b"the house of representatives met , and rose again .\n" * 2
    path.write_bytes(good + "a café in the city\n".encode("latin-1") + good * 100)
    return path


def test_not_utf8(commands: Commands, tmp_path: Path, latin: Path) -> None:
    complaint = prepare(commands, tmp_path, latin)
    assert f"{latin}, line 3" in complaint and "UTF-8" in complaint and "replace" in complaint


def test_not_utf8_replaced(commands: Commands, tmp_path: Path, latin: Path) -> None:
    ended = commands.inside("prepare", latin, "--out", tmp_path / "out", "--errors", "replace", "--min-count", "1")
    assert ended.status == 0, ended.stderr
    assert "1 (replaced)" in ended.stdout
    assert "caf\N{REPLACEMENT CHARACTER}\t" in (tmp_path / "out" / "lexicon.tsv").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["</S>", "<UNK>", "the"], "no <S>"),
        (["<S>", "<UNK>", "the"], "no </S>"),
        (["<S>", "</S>", "the"], "no <UNK>"),
        (["<S>", "</S>", "<UNK>", "the", "of", "the"], "'the' is on line 4 and on line 6"),
    ],
)
def test_vocabulary(commands: Commands, tmp_path: Path, words: list[str], expected: str) -> None:
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("".join(f"{word}\n" for word in words))
    complaint = prepare(commands, tmp_path, "text", "--vocab", vocabulary)
    assert str(vocabulary) in complaint and expected in complaint


def test_corpus_that_is_something_else(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    complaint = commands.inside("prepare", "text", "--out", tmp_path / "mine").complaint
    assert f"{tmp_path / 'mine'}: holds something that is not a corpus" in complaint
    assert files(tmp_path / "mine") == {"diary.txt": b"dear diary"}


def test_corpus_made_otherwise(commands: Commands, corpus: Path) -> None:
    before = files(corpus)
    complaint = commands.inside("prepare", "text", "--out", corpus, "--vocab-size", "500").complaint
    assert f"{corpus}: holds a different corpus" in complaint and "500 now" in complaint
    assert files(corpus) == before


def test_no_corpus(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    complaint = pretrain(commands, tmp_path, "--config.data.corpus=text")
    assert "text: not a prepared corpus" in complaint and "elmo-jax prepare" in complaint


def test_more_negatives_than_words(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    size = len((corpus / "vocabulary.txt").read_text().splitlines())
    complaint = pretrain(commands, tmp_path, f"--config.train.negatives={size}")
    assert "config.train.negatives" in complaint and f"{size} words" in complaint


def test_batch_that_the_devices_do_not_divide(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    devices = jax.device_count()
    rows = devices * 5 // 2
    complaint = pretrain(commands, tmp_path, f"--config.train.batch_size={rows}")
    for words in (f"config.train.batch_size: {rows} rows", f"{devices} devices", f"multiple of {devices}"):
        assert words in complaint
    complaint = pretrain(commands, tmp_path, "--config.train.accumulate=7")
    assert f"{devices} devices × 7 groups (config.train.accumulate); take a multiple of {7 * devices}" in complaint


def test_fewer_tokens_than_a_batch(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    complaint = pretrain(commands, tmp_path, "--config.train.batch_size=8192")
    assert "fewer than one batch of 8192 rows × 10 steps = 81920" in complaint and "corpus" in complaint


def test_corpus_without_heldout_text(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    made = commands.inside("prepare", "text", "--out", tmp_path / "all", "--heldout-fraction", "0", "--workers", "1")
    assert made.status == 0
    complaint = pretrain(commands, tmp_path, f"--config.data.corpus={tmp_path / 'all'}")
    assert "no held-out text" in complaint and "--heldout" in complaint


def test_workdir_that_holds_something_else(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("once")
    complaint = commands.refuse_pretrain(tmp_path / "thesis")
    assert f"{tmp_path / 'thesis'}: holds something that is not a run" in complaint and "--workdir" in complaint
    assert files(tmp_path / "thesis") == {"chapter.tex": b"once"}


def test_workdir_that_is_a_file(commands: Commands, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("once")
    assert f"{tmp_path / 'notes'}: " in commands.refuse_pretrain(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "once"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("--config.train.batch_sise=64", ("batch_sise", "batch_size")),  # a misspelt key names the near miss
        ("--config.train.optimizer.learning_rat=1", ("learning_rat", "learning_rate")),
        ("--config.trian.steps=1", ("trian", "train")),
        ("--config.train.batch_size=many", ("train.batch_size", "many")),
        ("--config.train.batch_size=6.5", ("train.batch_size", "6.5")),
        ("--config.train.batch_size=0", ("train.batch_size", "at least 1")),
        ("--config.train.precision=float16", ("train.precision", "'float32' or 'bfloat16' or 'auto'", "float16")),
        ("--config.train.optimizer.name=sgd", ("train.optimizer.name", "'adagrad' or 'adam'", "sgd")),
        ("--config.model.dropout=1.5", ("model.dropout", "1.5")),
        ("--config.train=5", ("train", "5")),
    ],
)
def test_overrides(commands: Commands, tmp_path: Path, override: str, expected: tuple[str, ...]) -> None:
    complaint = pretrain(commands, tmp_path, override)
    for words in expected:
        assert words in complaint


@pytest.mark.parametrize("argument", ["--bogus=1", "--workdri=x", "extra"])
def test_arguments_that_nobody_knows(commands: Commands, tmp_path: Path, argument: str) -> None:
    assert argument in commands.refuse_pretrain(tmp_path / "run", argument)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def get_config(:\n", "mine.py: SyntaxError"),
        ("import no_such_module\n", "mine.py, line 1: ModuleNotFoundError"),
        ("steps = 5\n", "mine.py: has no get_config()"),
        ("def get_config():\n    return {'steps': 5}\n", "mine.py: get_config() must return a ConfigDict"),
        ("def get_config():\n    return 1 / 0\n", "mine.py, line 2: ZeroDivisionError"),
        ("def get_config():\n    return int('five')\n", "mine.py, line 2: ValueError"),
    ],
)
def test_experiment_file_with_an_error(commands: Commands, tmp_path: Path, text: str, expected: str) -> None:
    experiment = tmp_path / "mine.py"
    experiment.write_text(text)
    assert expected in commands.inside("pretrain", "--config", experiment, "--workdir", tmp_path / "run").complaint
    assert not (tmp_path / "run").exists()


def test_experiment_file_with_a_misspelt_key(commands: Commands, tmp_path: Path) -> None:
    experiment = tmp_path / "mine.py"
    text = (commands.folder / "small.py").read_text()
    experiment.write_text(text.replace("config.train.log_every", "config.train.log_evry"))
    complaint = commands.inside("pretrain", "--config", experiment, "--workdir", tmp_path / "run").complaint
    assert "log_evry: no such setting; did you mean 'log_every'?" in complaint


def test_no_experiment_file(commands: Commands, tmp_path: Path) -> None:
    complaint = commands.inside("pretrain", "--config", "nowhere.py", "--workdir", tmp_path / "run").complaint
    assert "no such file nowhere.py" in complaint


@pytest.mark.parametrize("folder", ["text", "nowhere"])
def test_evaluate_of_no_run(commands: Commands, folder: str) -> None:
    complaint = commands.inside("evaluate", folder, "--data", "text").complaint
    assert folder in complaint and "a run's folder, an export" in complaint


@pytest.mark.parametrize("folder", ["text", "nowhere"])
def test_export_of_no_run(commands: Commands, folder: str) -> None:
    before = files(commands.folder / folder)
    complaint = commands.inside("export", folder).complaint
    assert folder in complaint and "a run's folder, an export" in complaint
    assert files(commands.folder / folder) == before
