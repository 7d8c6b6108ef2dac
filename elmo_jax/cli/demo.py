"""Defines the command `demo`."""

import argparse
import importlib.util
import os
import socket
from typing import Any

from elmo_jax import files
from elmo_jax.cli.options import Commands
from elmo_jax.cli.values import whole
from elmo_jax.errors import UserError


def add_command(commands: Commands) -> None:
    """Adds the command `demo`."""
    parser = commands.add_parser(
        "demo",
        help="try models on a page in the browser",
        description="Serves a page on which you type text and see the predictions of task models, the nearest contexts"
        " of a word, and the similarity of two words in each layer of a biLM. Ctrl-C ends it. This needs Gradio: pip"
        " install 'elmo_jax[demo]'.",
    )
    run = (
        "the run of a task, or a biLM: english, a run, an export, hf:USER/NAME[@REVISION], a checkpoint of bilm-tf, or"
        " published weights in a folder or zip file (default: english)"
    )
    parser.add_argument("models", nargs="*", default=["english"], metavar="RUN", help=run)
    host = "address at which the page is served (default: %(default)s, which only this machine can reach)"
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=host)
    parser.add_argument("--port", type=whole(1, 65_535), default=7860, metavar="N", help="port (default: %(default)s)")
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = os.environ["GRADIO_RUN_HISTORY"] = "False"
    host, port = options.host, options.port
    if not host.strip():
        raise UserError("--host: expected an address, got an empty one")
    try:  # before the models are opened
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--host {host} --port {port}: {reason}; give another --host or --port") from None
    with files.temporary_folder() as folder:
        os.environ["GRADIO_TEMP_DIR"] = str(folder)  # Gradio's own stays in the folder for temporary files
        if importlib.util.find_spec("gradio") is None:
            raise UserError("gradio is not installed; run: pip install 'elmo_jax[demo]'")
        models = [(name, _open(name)) for name in options.models]
        from elmo_jax.demo.page import serve

        serve(models, host, port)
    return 0


def _open(name: str) -> Any:
    from elmo_jax.checkpoints.hub import fetched
    from elmo_jax.checkpoints.open import is_run
    from elmo_jax.embedding.bilm import load_bilm
    from elmo_jax.runs.folder import read_config_file
    from elmo_jax.tasks.core.trained_task import load_task

    source = fetched(name)
    if is_run(source) and read_config_file(files.parse_path(source))["config"].get("task"):
        return load_task(source)
    return load_bilm(source)
