"""Draws the biLM and the task models as SVG files for the documentation: python tools/drawings.py

The colors of boxes, arrows and labels are readable on a light and on a dark page.
"""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parents[1] / "docs" / "plots"
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 112, 42, 18, 20, 4
COLORS = {"layer": "#3949ab", "elmo": "#bf360c", "data": "#546e7a"}
LINES = "#8a8a8a"

Position = tuple[float, float]  # the column and the row of a box


class Drawing:
    """Boxes on a grid, and arrows between them."""

    def __init__(self, title: str) -> None:
        """Begins an empty drawing; the title is for readers who do not see it."""
        self._title, self._parts, self._size = title, list[str](), (0.0, 0.0)

    def box(self, position: Position, text: str, kind: str = "layer") -> None:
        """Draws a box with one or two lines of text, separated by |."""
        x, y = MARGIN + position[0] * (WIDTH + GAP_X), MARGIN + position[1] * (HEIGHT + GAP_Y)
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{COLORS[kind]}"/>'
        )
        lines = text.split("|")
        for number, line in enumerate(lines):
            self._text(x + WIDTH / 2, y + HEIGHT / 2 + 4.5 + 16 * (number - (len(lines) - 1) / 2), line, "#ffffff")
        self._size = max(self._size[0], x + WIDTH + MARGIN), max(self._size[1], y + HEIGHT + MARGIN)

    def label(self, position: Position, text: str) -> None:
        """Writes a text without a box, centered where a box would be."""
        x, y = MARGIN + position[0] * (WIDTH + GAP_X) + WIDTH / 2, MARGIN + position[1] * (HEIGHT + GAP_Y) + HEIGHT / 2
        self._text(x, y + 4.5, text, LINES)
        self._size = max(self._size[0], x + WIDTH / 2 + MARGIN), max(self._size[1], y + HEIGHT / 2 + MARGIN)

    def arrow(self, start: Position, end: Position) -> None:
        """Draws an arrow from a box to one to its right, or above or below it."""
        (a, b), (c, d) = start, end
        if a == c:
            x = MARGIN + a * (WIDTH + GAP_X) + WIDTH / 2
            y, z = (MARGIN + row * (HEIGHT + GAP_Y) + HEIGHT * (row == min(b, d)) for row in (b, d))
            self._path(f"M{x:g},{y:g} V{z + 2 * (1 if z < y else -1):g}")
            return
        x, z = MARGIN + a * (WIDTH + GAP_X) + WIDTH, MARGIN + c * (WIDTH + GAP_X) - 2
        y, w = (MARGIN + row * (HEIGHT + GAP_Y) + HEIGHT / 2 for row in (b, d))
        self._path(f"M{x:g},{y:g} L{z:g},{w:g}" if y == w else f"M{x:g},{y:g} H{z - GAP_X / 2:g} V{w:g} H{z:g}")

    def bypass(self, start: Position, end: Position, up: bool) -> None:
        """Draws an arrow from the right of one box around the next one, above or below it, to the left of another."""
        x, z = MARGIN + start[0] * (WIDTH + GAP_X) + WIDTH, MARGIN + end[0] * (WIDTH + GAP_X) - 2
        y = MARGIN + start[1] * (HEIGHT + GAP_Y) + HEIGHT / 2
        over = y - (HEIGHT / 2 + GAP_Y / 2) * (1 if up else -1)
        self._path(f"M{x:g},{y:g} H{x + GAP_X / 3:g} V{over:g} H{z - GAP_X:g} V{y:g}", head=False)

    def write(self, name: str) -> None:
        """Writes `docs/plots/NAME.svg`."""
        width, height = self._size
        size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" font-size="13">'
            f'<title>{escape(self._title)}</title><defs><marker id="head" markerWidth="8" markerHeight="8" refX="6"'
            f' refY="4" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{LINES}"/></marker></defs>'
        )
        text = "\n".join([head, *self._parts, "</svg>\n"])
        (FOLDER / f"{name}.svg").write_text(text, encoding="utf-8")

    def _text(self, x: float, y: float, text: str, color: str) -> None:
        self._parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="middle" fill="{color}">{escape(text)}</text>')

    def _path(self, path: str, head: bool = True) -> None:
        end = ' marker-end="url(#head)"' if head else ""
        self._parts.append(f'<path d="{path}" fill="none" stroke="{LINES}" stroke-width="1.6"{end}/>')


def bilm() -> None:
    """Draws the biLM with the paper's sizes."""
    drawing = Drawing("The biLM: characters, token encoder, two LSTM layers per direction, and the softmax")
    encoder = ("characters|50 × 16", "filters, max|2,048", "2 highways|2,048", "projection|512")
    for row, text in enumerate(encoder):
        drawing.box((0, row), text, "layer" if row else "data")
        if row:
            drawing.arrow((0, row - 1), (0, row))
    drawing.label((1.6, 1), "Θx, the token encoder: shared")
    drawing.box((3.5, 3), "softmax Θs,|shared")
    for row, direction, word in ((2, "→", "next word"), (4, "←", "previous word")):
        drawing.box((1.2, row), f"LSTM 1 {direction}|4,096 → 512")
        drawing.box((2.2, row), f"LSTM 2 {direction}|4,096 → 512")
        drawing.arrow((0, 3), (1.2, row))
        drawing.arrow((1.2, row), (2.2, row))
        drawing.arrow((2.2, row), (3.5, 3))
        drawing.bypass((1.2, row), (3.5, row), up=row > 3)
        drawing.label((2.2, 3 + (row - 3) * 0.28), "residual")
        drawing.box((4.5, 2.5 + (row - 2) / 2), word, "data")
        drawing.arrow((3.5, 3), (4.5, 2.5 + (row - 2) / 2))
    for column, text in ((0, "h0 = [x; x]"), (1.2, "h1 = [→; ←]"), (2.2, "h2 = [→; ←]")):
        drawing.box((column, 5), text, "elmo")
    drawing.label((3.9, 5), "the L + 1 layers of a word")
    drawing.write("bilm")


def chain(name: str, title: str, texts: Sequence[str], at: dict[int, str], result: str) -> None:
    """Draws layers from left to right, and where ELMo enters.

    Args:
      name: the name of the file.
      title: for readers who do not see the drawing.
      texts: the input and the layers.
      at: what ELMo is called at the arrows to some layers, by the number of the layer.
      result: the output.
    """
    drawing = Drawing(title)
    for column, text in enumerate([*texts, result]):
        drawing.box((column, 0), text, "layer" if 0 < column < len(texts) else "data")
        if column:
            drawing.arrow((column - 1, 0), (column, 0))
    for column, text in at.items():
        drawing.box((column, 1), text, "elmo")
        drawing.arrow((column, 1), (column, 0))
    drawing.write(name)


INPUT, OUTPUT = "ELMo|at the input", "ELMo|at the output"
TASKS: tuple[tuple[str, str, str, dict[int, str], str], ...] = (  # the arguments of `chain`, the layers divided by /
    (
        "task_squad",
        "BiDAF with self-attention",
        "question and|paragraph / biGRU|of each / join / attention|(BiDAF) / biGRU, self-|attention / 2 biGRUs",
        {1: INPUT, 2: OUTPUT},
        "first, last word|of the answer",
    ),
    (
        "task_snli",
        "ESIM",
        "premise and|hypothesis / biLSTM|of each / join / attention|between both / dense,|biLSTM / mean and|max, dense",
        {1: INPUT, 2: OUTPUT},
        "3 classes",
    ),
    (
        "task_srl",
        "Interleaved highway LSTMs",
        "words and the|predicate's flag / highway LSTMs|→ ← → ← … / join / softmax / Viterbi|(BIO)",
        {1: INPUT, 2: OUTPUT},
        "roles",
    ),
    (
        "task_coref",
        "Span ranking",
        "document / biLSTM|per sentence / join / spans: ends,|head, width / mention scores,|keep 0.4 T"
        " / antecedent|scores",
        {1: INPUT, 2: OUTPUT},
        "clusters",
    ),
    (
        "task_ner",
        "biLSTM-CRF",
        "words and|their characters / biLSTM 1 / biLSTM 2 / join / dense,|CRF",
        {1: INPUT, 2: "ELMo as TagLM|after_first", 3: OUTPUT},
        "entities",
    ),
    (
        "task_sst",
        "Biattentive classification network",
        "sentence / dense,|biLSTM / attention|to itself / biLSTM / join / max, min, mean,|own attention",
        {1: INPUT, 4: OUTPUT},
        "5 classes",
    ),
)


def tasks() -> None:
    """Draws the model of each task."""
    for name, title, texts, at, result in TASKS:
        chain(name, title, texts.split(" / "), at, result)


if __name__ == "__main__":
    bilm()
    tasks()
