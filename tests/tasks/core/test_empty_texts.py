"""A text without words has no class."""

from __future__ import annotations

import pytest

from elmo_jax.errors import UserError
from elmo_jax.tasks.snli.task import TASK as SNLI
from elmo_jax.tasks.sst.task import TASK as SST


def test_a_text_without_words_is_refused() -> None:
    with pytest.raises(UserError, match="expected a sentence with words"):
        SST.from_words([[]], {})
    for texts in ([["a"], []], [[], ["a"]]):
        with pytest.raises(UserError, match="expected a premise and a hypothesis with words"):
            SNLI.from_words(texts, {})
