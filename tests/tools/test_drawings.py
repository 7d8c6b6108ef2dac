"""The drawings of the documentation are those of `tools/drawings.py`, and their texts fit their boxes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools import drawings

FILES = sorted(drawings.FOLDER.glob("*.svg"))


def test_the_files_are_what_the_script_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FILES}
    monkeypatch.setattr(drawings, "FOLDER", tmp_path)
    drawings.bilm()
    drawings.tasks()
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == committed


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_drawing_has_a_title_and_is_shown_on_a_page(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    assert root[0].tag.endswith("title") and root[0].text
    pages = [page.read_text(encoding="utf-8") for page in drawings.FOLDER.parent.glob("*.md")]
    assert sum(f"](plots/{path.name})" in page for page in pages) == 1
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        half = 3.45 * len(text.text or "")  # of a sans-serif font of 13 px
        assert half < float(text.attrib["x"]) < width - half and 0 < float(text.attrib["y"]) < height
        assert text.attrib["fill"] != "#ffffff" or half <= drawings.WIDTH / 2
