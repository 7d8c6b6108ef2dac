"""The command `demo` in a browser, which types, clicks and reads."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from elmo_jax.demo.views import LONGEST
from elmo_jax.tasks.core.run import train_task
from tests.tasks.problems import PROBLEMS, config_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
WAIT = 120_000  # milliseconds, since models compile for each new shape of text


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window: Playwright's own, or the system's."""
    pytest.importorskip("gradio", reason="gradio is not installed: make test-slow installs it")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-slow does")
    with playwright.sync_playwright() as started:
        own = started.chromium.executable_path
        path = own if os.path.exists(own) else shutil.which("chromium") or shutil.which("google-chrome")
        if path is None:
            pytest.skip("no Chromium: install the package chromium of your system")
        launched = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def server(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The command with a small task and the packaged biLM, which Ctrl-C ends afterwards; its address."""
    folder = tmp_path_factory.mktemp("demo")
    train_task(config_of("ner", PROBLEMS["ner"](), folder), epath.Path(folder / "names"), "names")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "elmo_jax", "demo", "names", "english", "--port", port]
    (folder / "temporary").mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "temporary")}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == f"open http://127.0.0.1:{port} in a browser; Ctrl-C ends it\n", process.communicate()[1]
    yield line.split()[1]
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "", "elmo-jax: interrupted\n")
    assert not list((folder / "temporary").iterdir())


@pytest.fixture
def page(browser: Any, server: str) -> Iterator[Any]:
    """The page; afterwards, nothing but the server was asked for anything, and no script had an error."""
    opened = browser.new_page()
    opened.set_default_timeout(WAIT)
    asked: list[str] = []
    errors: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(server)
    yield opened
    opened.close()
    assert len(asked) > 10 and not errors
    assert [url for url in asked if not url.startswith((server, "data:", "blob:"))] == []


def reads(page: Any, text: str) -> None:
    """Waits until the page shows some text."""
    page.get_by_text(text).locator("visible=true").first.wait_for()


def test_a_task(page: Any) -> None:
    field = page.get_by_label("Text", exact=True).locator("visible=true")
    button = page.get_by_role("button", name="Predict")
    field.fill("Ann took a hat to New York")
    button.click()
    for text in ("Ann", "PER", "New York", "LOC"):
        reads(page, text)
    field.fill("<img src=x onerror=alert(1)> took a hat to Rome")
    button.click()
    reads(page, "onerror")
    assert page.locator("img[src=x]").count() == 0
    field.fill(" ")
    button.click()
    reads(page, "Text: has no words; type some")
    field.fill("a" * (LONGEST + 1))
    button.click()
    reads(page, "Text: has 5,001 characters; the limit is 5,000")


def test_a_bilm(page: Any) -> None:
    page.get_by_role("tab", name="english").click()
    page.get_by_role("button", name="Show the words").click()
    page.get_by_text("bank", exact=True).first.click()
    reads(page, "He sat on the [bank] of the river")
    page.get_by_role("heading", name="Similarity").click()
    page.get_by_label("Sentence 1").fill("He sat by the bank of the river.")
    page.get_by_role("button", name="Compare").click()
    reads(page, "layer 2")
    page.get_by_label("Word 1").fill("shore")
    page.get_by_label("Word 1").press("Enter")
    reads(page, "the word 'shore' is not in the sentence: 'He sat by the bank of the river .'")
