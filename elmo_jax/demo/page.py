"""The page of `elmo-jax demo`, made with Gradio, and its server."""

import html
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import gradio as gr

from elmo_jax.demo import views
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.errors import UserError
from elmo_jax.tasks.core.task import Highlighted
from elmo_jax.tasks.core.trained_task import TrainedTask

Answer = TypeVar("Answer")

TEXT = (
    "He sat on the bank of the river and watched the boats. The other bank was green. The bank has suspended payment of"
    " its notes. They rowed slowly to the far bank. No bank would lend him money. The river had flooded its left bank."
)


def page(models: Sequence[tuple[str, TrainedTask | EmbeddingBiLM]]) -> gr.Blocks:
    """Returns the page, with a tab for each model and its name."""
    with gr.Blocks(title="elmo_jax", analytics_enabled=False) as blocks:
        gr.Markdown("# elmo_jax")
        with gr.Tabs():
            for path, model in models:
                name = path.rstrip("/").rpartition("/")[2]
                if isinstance(model, TrainedTask):
                    with gr.Tab(f"{name} ({model.task.name})"):
                        _task(model)
                else:
                    with gr.Tab(name):  # one below the other, since a narrow screen hides inner tabs
                        gr.Markdown("## Nearest contexts")
                        _nearest(model)
                        gr.Markdown("## Similarity")
                        _similarity(model)
    return blocks


def _example(model: TrainedTask | EmbeddingBiLM, text: str) -> str:
    """Returns a text that is in a field at first; the fields of a model for another language than English are empty."""
    return text if views.language_of(model) == "en" else ""


def _task(model: TrainedTask) -> None:
    fields = model.task.sample or {f"Text {n + 1}": "" for n in range(model.task.texts_per_example)}
    boxes = [gr.Textbox(_example(model, text), label=name, lines=2) for name, text in fields.items()]
    button = gr.Button("Predict", variant="primary")
    text, classes = gr.HighlightedText(label="Prediction"), gr.Label(visible=False, show_label=False)

    def predict(*texts: str) -> tuple[Highlighted, gr.Label]:
        shown, probabilities = _asked(views.predicted, model, tuple(fields), *texts)
        return shown, gr.Label(probabilities, visible=bool(probabilities))

    gr.on([button.click, *(box.submit for box in boxes)], predict, boxes, [text, classes])


def _similarity(bilm: EmbeddingBiLM) -> None:
    boxes = []
    for number, sentence in enumerate(("They rowed to the far bank.", "The bank has suspended payment."), 1):
        boxes.append(gr.Textbox(_example(bilm, sentence), label=f"Sentence {number}"))
        boxes.append(gr.Textbox(_example(bilm, "bank"), label=f"Word {number} (its first use in the sentence)"))
    button = gr.Button("Compare", variant="primary")
    shown = gr.Dataframe(headers=["layer", "cosine"])
    events = [button.click, *(box.submit for box in boxes)]
    gr.on(events, lambda *texts: _asked(views.similarity, bilm, *texts), boxes, shown)


def _nearest(bilm: EmbeddingBiLM) -> None:
    text = gr.Textbox(_example(bilm, TEXT), label="Text", lines=5)
    button = gr.Button("Show the words", variant="primary")
    layers = list(range(bilm.config.lstm.layers + 1))
    layer = gr.Radio(layers, value=layers[-1], label="Layer (0 is without context)")
    sentences = gr.State([])
    words = gr.HighlightedText(label="Click a word to see its nearest contexts")
    shown = gr.Dataframe(headers=["cosine", "context"], wrap=True)

    def split(text: str) -> tuple[list[list[str]], Highlighted]:
        sentences = _asked(views.sentences, "Text", text, bilm.language, views.LONGEST_TEXT)
        return sentences, [(f"{word} ", None) for sentence in sentences for word in sentence]

    def select(sentences: list[list[str]], layer: int, event: gr.SelectData) -> list[tuple[str, str]]:
        return _asked(views.nearest, bilm, sentences, event.index, layer)

    button.click(split, text, [sentences, words])
    words.select(select, [sentences, layer], shown)


def _asked(function: Callable[..., Answer], *arguments: Any) -> Answer:
    """Returns what a function returns, and shows a mistake of the user as a message on the page."""
    try:
        return function(*arguments)
    except UserError as error:
        raise gr.Error(html.escape(str(error)), print_exception=False) from None


def serve(models: Sequence[tuple[str, TrainedTask | EmbeddingBiLM]], host: str, port: int) -> None:
    """Serves the page until the process ends; the server's threads leave the signals alone."""
    page(models).launch(
        server_name=host, server_port=port, prevent_thread_lock=True, quiet=True, footer_links=[], ssr_mode=False
    )
    address = f"[{host}]" if ":" in host else host
    print(f"open http://{address}:{port} in a browser; Ctrl-C ends it", flush=True)
    threading.Event().wait()
