"""The biLMs that come with the package, each an export in float16 without a softmax.

`english` was made with `experiments/pretrain_english.py`, `experiments/finetune_english.py` and `tools/ship.py`. Its
`info` has the sources of the text and their licences.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent


def packaged_names() -> list[str]:
    """Returns the names of the packaged biLMs, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.safetensors"))


def packaged_path(name: str) -> Path | None:
    """Returns the file of a packaged biLM, or None if there is none of that name."""
    return _FOLDER / f"{name}.safetensors" if name in packaged_names() else None
