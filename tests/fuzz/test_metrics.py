"""The held-out perplexity of a run's checkpoint, whose record in `metrics.jsonl` is damaged."""

import re
import shutil
from pathlib import Path

import pytest

from elmo_jax.errors import UserError
from tests.fuzz.files import read_run


@pytest.fixture
def run(things: Path, tmp_path: Path) -> Path:
    """A copy of the run, whose last step is 2."""
    shutil.copytree(things / "run", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r'(.*heldout/perplexity/forward": \d+\.)\d', r"\g<1>"),
        (r'(.*heldout/perplexity/backward": )\d', r"\g<1>-"),
        (r'(.*heldout/perplexity/average": \d+\.)\d', r"\g<1>"),
        (r"(.*)heldout/perplexity/average", r"\g<1>heldout/perplexity/averagf"),
        (r'(.*)"step": 2,(?=[^\n]*heldout)', r'\g<1>"step": 3,'),
        (r"(.*\n).*heldout.*\n", r"\g<1>"),
        (r".*", ""),
    ],
    ids=["forward", "backward", "average", "name", "step", "cut", "empty"],
)
def test_other_perplexities_than_the_checkpoints_are_refused(run: Path, pattern: str, new: str) -> None:
    """A digit that is lost or another one, a name or a step that is another one, and lines that are missing."""
    path = run / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(re.sub(pattern, new, whole, count=1, flags=re.DOTALL))
    assert path.read_text() != whole
    with pytest.raises(UserError, match=r"metrics.jsonl: damaged: the held-out perplexity of step 2 is not that"):
        read_run(run)


def test_a_run_without_metrics_has_no_perplexities(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    assert read_run(run)[3]["heldout_perplexity"] is None
