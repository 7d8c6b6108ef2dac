"""What fine-tuning refuses before there is a run; the command itself is tested in end_to_end/."""

import jax
import pytest
from etils import epath

from elmo_jax.errors import UserError
from elmo_jax.finetuning.finetune import Text


@pytest.mark.parametrize(("folder", "processes"), [("gs://bucket/run/corpus", 1), ("run/corpus", 2)])
def test_text_is_not_prepared_into_a_bucket_or_by_many_processes(monkeypatch, tmp_path, folder, processes):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    (tmp_path / "text.txt").write_text("a house\n" * 200)
    with pytest.raises(UserError, match="prepare it first") as error:
        Text(["text.txt"]).prepare(epath.Path(folder))
    assert "--data CORPUS" in str(error.value) and "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
