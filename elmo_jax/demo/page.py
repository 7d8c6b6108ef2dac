"""The page of `elmo-jax demo`, made with Gradio, and its server."""

import functools
import socket
import threading
from collections.abc import Callable, Sequence

import fastapi
import gradio as gr
import uvicorn

from elmo_jax.demo import views
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.errors import UserError
from elmo_jax.tasks.core.trained_task import TrainedTask

# the fields of each task, and the text that is in them at first
FIELDS = {
    "pos": {"Text": "My fellow citizens, peace has come."},
    "ner": {"Text": "Ada Lovelace met Charles Babbage in London."},
    "sst": {"Text": "A warm and funny film that never finds an ending."},
    "srl": {"Text": "The committee wants to publish its report in May."},
    "coref": {"Text": "Ada lost the key to her house. A neighbour found it and gave it back to her."},
    "snli": {"Premise": "A man is playing a guitar in the street.", "Hypothesis": "A person is making music."},
    "squad": {"Question": "Where was the treaty signed?", "Paragraph": "The treaty was signed in Paris in 1783."},
}
TEXT = (
    "He sat on the bank of the river and watched the boats. The other bank was green. The bank has suspended payment of"
    " its notes. They rowed slowly to the far bank. No bank would lend him money. The river had flooded its left bank."
)
STYLE = """
.prose.elmo p { line-height: 2.2; overflow-wrap: anywhere }
.prose.elmo p.message { line-height: 1.5; color: #d97706 }
.prose.elmo sub { font-size: .7em; margin-left: .3em; bottom: 0; white-space: nowrap }
.prose.elmo mark { padding: .2em .35em; border-radius: .35em; box-shadow: inset 0 0 0 1px #0003 }
.prose.elmo mark, .prose.elmo mark sub { color: #111827; box-decoration-break: clone }
.prose.elmo .word { display: inline-block; text-align: center; line-height: 1.3; margin: 0 .3em .5em 0 }
.prose.elmo .word sub { display: block; margin: 0; line-height: 1.3 }
.prose.elmo table, .prose.elmo tr { border: 0 }
.prose.elmo td { border: 0; padding: .3em .8em .3em 0; vertical-align: top; white-space: nowrap }
.prose.elmo td:last-child { width: 99%; white-space: normal }
.prose.elmo .bar { background: #6366f1; height: .9em; margin-top: .3em }
"""


def page(models: Sequence[tuple[str, TrainedTask | EmbeddingBiLM]]) -> gr.Blocks:
    """Returns the page, with a tab for each model and its name."""
    with gr.Blocks(title="elmo_jax", analytics_enabled=False) as blocks:
        gr.Markdown("# elmo_jax")
        with gr.Tabs():
            for path, model in models:
                name = path.rstrip("/").rpartition("/")[2]
                if isinstance(model, TrainedTask):
                    with gr.Tab(f"{name} ({model.config.task})"):
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
    fields = FIELDS.get(model.config.task) or {f"Text {n + 1}": "" for n in range(model.texts_per_example)}
    boxes = [gr.Textbox(_example(model, text), label=name, lines=2) for name, text in fields.items()]
    _asked("Predict", functools.partial(views.predicted, model, tuple(fields)), boxes)


def _similarity(bilm: EmbeddingBiLM) -> None:
    boxes = []
    for number, sentence in enumerate(("They rowed to the far bank.", "The bank has suspended payment."), 1):
        boxes.append(gr.Textbox(_example(bilm, sentence), label=f"Sentence {number}"))
        boxes.append(gr.Textbox(_example(bilm, "bank"), label=f"Word {number} (its first use in the sentence)"))
    _asked("Compare", functools.partial(views.similarity, bilm), boxes)


def _asked(name: str, function: Callable[..., str], boxes: list[gr.Textbox]) -> None:
    button, shown = gr.Button(name, variant="primary"), gr.HTML(elem_classes="elmo")
    gr.on([button.click, *(box.submit for box in boxes)], lambda *texts: function(*texts), boxes, shown)


def _nearest(bilm: EmbeddingBiLM) -> None:
    text = gr.Textbox(_example(bilm, TEXT), label="Text", lines=5)
    button = gr.Button("Show the words", variant="primary")
    layers = list(range(bilm.config.lstm.layers + 1))
    layer = gr.Radio(layers, value=layers[-1], label="Layer (0 is without context)")
    sentences = gr.State([])
    words = gr.HighlightedText(label="Click a word to see its nearest contexts")
    shown = gr.HTML(elem_classes="elmo")

    def split(text: str) -> tuple[list[list[str]], list[tuple[str, None]], str]:
        try:
            found = views.sentences("Text", text, bilm.language, views.LONGEST_TEXT)
        except UserError as error:
            return [], [], views.message(str(error))
        return found, [(f"{word} ", None) for sentence in found for word in sentence], ""

    def select(sentences: list[list[str]], layer: int, event: gr.SelectData) -> str:
        return views.nearest(bilm, sentences, event.index, layer)

    button.click(split, text, [sentences, words, shown])
    words.select(select, [sentences, layer], shown)


def serve(models: Sequence[tuple[str, TrainedTask | EmbeddingBiLM]], listening: socket.socket, url: str) -> None:
    """Serves the page at a socket until the process ends; the server's thread leaves the signals alone."""
    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    gr.mount_gradio_app(app, page(models), "/", css=STYLE, footer_links=[])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    print(f"open {url} in a browser; Ctrl-C ends it", flush=True)
    thread.join()
