"""The documentation builds without warnings, its links lead somewhere, and what it names exists."""

import ast
import configparser
import html.parser
import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

import elmo_jax

ROOT = Path(__file__).parents[1]
MARKDOWN = [ROOT / "README.md", ROOT / "WORKSPACE.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(path.read_text() for path in MARKDOWN)


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [value for name in ("href", "src") if (value := values.get(name))]
        self.anchors.add(values.get("id") or values.get("name") or "")


def broken(pages: dict[Path, Page]) -> list[str]:
    """The links of pages to files or anchors that do not exist; links to other sites are left out."""
    actual = []
    for path, page in pages.items():
        for link in page.links:
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if re.match(r"[a-z]+:", link):
                continue
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors):
                actual.append(f"{path.name}: {link}")
    return actual


@pytest.mark.quick
def test_the_site_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path: Page(path) for path in tmp_path.glob("*.html") if path.name != "404.html"}
    assert tmp_path / "api.html" in pages and sum(len(page.links) for page in pages.values()) > 500
    assert broken(pages) == []
    assert {"elmo_jax.load_bilm", "elmo_jax.EmbeddingBiLM.embed"} <= pages[tmp_path / "api.html"].anchors


@pytest.mark.quick
def test_links_between_markdown_files_lead_somewhere() -> None:
    pages = {}
    for path in MARKDOWN:
        page = pages[path] = Page.__new__(Page)
        page.links = re.findall(r"\]\(([^)\s]+)\)", path.read_text())
        titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
        page.anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    assert [link for link in broken(pages) if "#elmo_jax." not in link] == []  # those that mkdocstrings makes


@pytest.mark.quick
def test_files_extras_and_targets_of_make_exist() -> None:
    files = re.findall(r"`((?:[a-z_\d]+/)+[a-z_\d]+\.(?:py|json|sbatch|sh))`", TEXT)
    assert len(files) > 20
    missing = {name for name in files if not any((folder / name).exists() for folder in (ROOT, ROOT / "elmo_jax"))}
    assert missing == {
        "bin/restart.py",
        "bin/dump_weights.py",
    }  # bilm-tf's, and to be made
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert set(re.findall(r"elmo_jax\[(\w+)\]", TEXT)) <= set(config["options.extras_require"])
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)`", TEXT))
    assert {"pretrain", "docs"} <= named <= targets


@pytest.mark.quick
def test_the_public_names_are_those_of_the_api_reference() -> None:
    listed = re.findall(r"^::: elmo_jax\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [name for name in dir(elmo_jax) if not name.startswith("_")]


@pytest.mark.quick
def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {elmo_jax.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {elmo_jax.__version__}\n" in changelog and len(changelog.encode()) <= 4096


def tour() -> nbformat.NotebookNode:
    return nbformat.read(ROOT / "docs" / "tour.ipynb", 4)


@pytest.mark.quick
def test_the_tour_is_committed_with_its_outputs() -> None:
    cells = [cell for cell in tour().cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run it from top to bottom"
    for cell in cells:
        ast.parse(cell.source)
        assert {output.output_type for output in cell.outputs} <= {"stream", "display_data"}
        shown = [output.data for output in cell.outputs if "data" in output]
        assert ("plt.show()" in cell.source) == any("image/png" in data for data in shown)
        assert all(output.name == "stdout" for output in cell.outputs if output.output_type == "stream")


@pytest.mark.slow
def test_the_tour_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook, path = tour(), {"metadata": {"path": str(ROOT / "docs")}}
    nbclient.NotebookClient(notebook, timeout=1800, kernel_name="python3", resources=path).execute()
    printed = "".join(output.text for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output)
    assert "the same predictions: True" in printed and "the model was made with another biLM" in printed
    before, after = (
        float(re.search(rf"domain, {when} .* ([\d.]+) +[\d.]+%", printed)[1]) for when in ("before", "after")
    )
    assert after < before / 2


@pytest.mark.quick
def test_error_messages_are_those_of_the_program() -> None:
    """Each message of docs/troubleshooting.md, without its numbers and what `…` stands for, is in the source."""
    code = "\n".join(path.read_text() for path in (ROOT / "elmo_jax").rglob("*.py"))
    code = re.sub(r"\"\s+f?\"|\{[^{}]*\}|\d+", "", code)
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]+ [^`]+)`", text, re.MULTILINE) + re.findall(r"\d: `([^`]+)`", text)
    assert len(messages) > 25
    for message in messages:
        for part in re.split(r"…|\d+|[A-Z]{4,}", message):
            assert part.strip(" :(") in code, message
