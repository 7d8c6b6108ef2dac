"""A run on a mixture of named sources: what it reports of each, its end, and a fine-tuning on such a text."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath

from elmo_jax.data.batches import epoch_tokens
from elmo_jax.data.corpus import Corpus
from elmo_jax.files import write_checksummed_json
from elmo_jax.runs.folder import covered_by_seal, read_config_file
from tests.end_to_end.commands import Commands, assert_same_end, files, losses, prepare, records, small_experiment
from tests.end_to_end.finetuning import result_of

SOURCES = ("early=text/1790*.txt", "later=text/179[1-6]*.txt")
SHORT = "--config.train.steps=20"
MIXTURE = "--config.data.mixture=(('early',2.0),)"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Its folder holds the corpus of two sources, and the run `run/`, which was made longer once."""
    commands = small_experiment(tmp_path_factory.mktemp("mixed"))
    assert prepare(commands, *SOURCES).status == 0
    for steps in ("--config.train.steps=10", SHORT):
        ended = commands.pretrain(commands.folder / "run", steps, MIXTURE)
        assert ended.status == 0, ended.stderr
    (commands.folder / "report.txt").write_text(ended.stdout)
    return commands


@pytest.fixture(scope="module")
def run(mixed: Commands) -> Path:
    return mixed.folder / "run"


def combined(sources: dict[str, Any], direction: str, when: str) -> float:
    """Returns the perplexity of all sources together."""
    tokens = [source["tokens"] for source in sources.values()]
    nats = [math.log(source[when][direction]) for source in sources.values()]
    return math.exp(np.average(nats, weights=tokens))


def test_sources_combine_to_the_heldout_perplexity(run: Path) -> None:
    result = result_of(run)
    sources = result["heldout_sources"]
    assert list(sources) == ["early", "later"]
    for direction in ("forward", "backward", "average"):
        for when, whole in (("before", "heldout_perplexity_before"), ("after", "heldout_perplexity")):
            assert combined(sources, direction, when) == pytest.approx(result[whole][direction], rel=1e-5)
    counted = {s["name"]: s for s in Corpus.open(run.parent / "corpus").sources("heldout")}
    for name, source in sources.items():
        assert source["tokens"] == counted[name]["tokens"]
        assert source["unknown"] == pytest.approx(counted[name]["unknown_targets"])
        assert source["after"]["average"] < source["before"]["average"]
    assert sources["early"]["after"] != sources["later"]["after"]


def test_metrics_and_reports_name_the_sources(mixed: Commands, run: Path) -> None:
    sources = result_of(run)["heldout_sources"]
    actual = [record for record in records(run) if "heldout/perplexity/average" in record]
    assert [record["step"] for record in actual] == [0, 10, 20]
    for name, source in sources.items():
        for when, record in (("before", actual[0]), ("after", actual[-1])):
            assert record[f"heldout/{name}/perplexity/average"] == source[when]["average"]
        assert actual[-1][f"heldout/{name}/tokens"] == source["tokens"]
        written = b"".join(path.read_bytes() for path in (run / "tensorboard").iterdir())
        assert f"heldout/{name}/perplexity/average".encode() in written
    report = (mixed.folder / "report.txt").read_text()
    for name, source in sources.items():
        assert f" · {name} {source['after']['average']:,.1f}" in report  # in the progress
        assert f"\n  {name:<18} {source['after']['forward']:>12,.1f}" in report


@pytest.mark.slow
def test_the_mixture_changes_what_is_read(mixed: Commands, run: Path, tmp_path: Path) -> None:
    assert mixed.pretrain(tmp_path / "same", SHORT, MIXTURE).status == 0
    assert_same_end(tmp_path / "same", run, step=20)
    assert mixed.pretrain(tmp_path / "plain", SHORT).status == 0
    assert losses(tmp_path / "plain") != losses(run) == losses(tmp_path / "same")


@pytest.mark.slow
def test_a_run_of_a_version_without_mixtures_is_the_same_run(mixed: Commands, tmp_path: Path) -> None:
    run = epath.Path(tmp_path / "run")
    assert mixed.pretrain(tmp_path / "run", "--config.train.steps=2").status == 0
    written = read_config_file(run)
    del written["config"]["data"]["mixture"]
    write_checksummed_json(run / "config.json", written, covered_by_seal)
    assert "data.mixture was () and is now (('early', 2.0),)" in mixed.refuse_pretrain(tmp_path / "run", MIXTURE)
    again = mixed.pretrain(tmp_path / "run", "--config.train.steps=2")
    assert again.status == 0 and "this run is complete" in again.stdout


@pytest.mark.slow
def test_epochs_are_those_of_the_mixture(mixed: Commands, tmp_path: Path) -> None:
    corpus = Corpus.open(mixed.folder / "corpus")
    early, later = (source["tokens"] for source in corpus.sources("train"))
    epochs = ("--config.train.steps=0", "--config.train.epochs=0.05", "--config.data.mixture=(('later',0),('early',3))")
    assert epoch_tokens(corpus, (("later", 0.0), ("early", 3.0))) == 3 * early < corpus.tokens("train") == early + later
    assert mixed.pretrain(tmp_path / "run", *epochs).status == 0
    assert result_of(tmp_path / "run")["steps"] == math.ceil(0.05 * 3 * early / 80)


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ("(('early',1.0),)", "data.mixture was (('early', 2.0),) and is now (('early', 1.0),)"),
        ("()", "data.mixture was (('early', 2.0),) and is now ()"),
        ("(('earl',2.0),)", "config.data.mixture: no source 'earl'; the training text of corpus has the sources early"),
        ("(('early',0),('later',0))", "config.data.mixture: every source has the weight 0"),
        ("(('early',1),('early',2))", "config.data.mixture: the source 'early' is listed twice"),
        ("(('early',-1),)", "config.data.mixture: expected each to be a number of at least 0 and at most 100, got -1"),
    ],
)
def test_mixtures_that_are_refused(mixed: Commands, run: Path, mixture: str, message: str) -> None:
    before = files(run)
    assert message in mixed.refuse_pretrain(run, SHORT, f"--config.data.mixture={mixture}")
    assert files(run) == before


def test_evaluate_reports_the_sources(mixed: Commands, run: Path) -> None:
    for data in (("corpus",), ("early=text/1790-Washington-1.txt", "other=text/1791-Washington-1.txt")):
        ended = mixed.inside("evaluate", run, "--data", *data, "--json", mixed.folder / "found.json")
        assert ended.status == 0, ended.stderr
        actual = json.loads((mixed.folder / "found.json").read_text())
        assert list(actual["sources"]) == ["early", "later" if data == ("corpus",) else "other"]
        assert sum(source["tokens"] for source in actual["sources"].values()) == actual["tokens"]
        for name, source in actual["sources"].items():
            assert f"\n  {name}: forward {source['perplexity']['forward']:,.2f} · " in ended.stdout
        if data == ("corpus",):
            for name, source in result_of(run)["heldout_sources"].items():
                assert actual["sources"][name]["perplexity"] == pytest.approx(source["after"], rel=1e-5)
    text = mixed.folder / "text" / "1790-Washington-1.txt"
    refused = mixed.inside("evaluate", run, "--data", "a=text", "--json", text)
    assert "--json: " in refused.complaint and "would be overwritten" in refused.complaint


@pytest.mark.slow
def test_fine_tuning_reports_the_sources(mixed: Commands, run: Path) -> None:
    arguments = ("finetune", "--from", run, "--workdir", mixed.folder / "tuned", "--data", *SOURCES, "--processes", "1")
    ended = mixed.run(*arguments, "--config.train.steps=4", "--config.data.mixture=(('later',0.0),)", "--workers", "1")
    assert ended.status == 0, ended.stderr
    result = result_of(mixed.folder / "tuned")
    for when in ("before", "after"):
        assert combined(result["heldout_sources"], "average", when) == pytest.approx(result[when]["domain"]["average"])
    for name, source in result["heldout_sources"].items():
        assert f"\n  {name:<18} {source['after']['forward']:>12,.1f}" in ended.stdout
