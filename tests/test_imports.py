"""Tests that imports point in one direction, and that light imports do not load heavy packages."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

PACKAGE = Path(__file__).parents[1] / "elmo_jax"
# Each part may import itself and the parts before it.
ORDER = [
    *(
        "version",
        "environment",
        "types",
        "errors",
        "interrupts",
        "files",
        "settings",
        "config",
        "characters",
        "words",
        "text_files",
    ),
    *(
        "distributed",
        "model",
        "runs",
        "data",
        "pretrained",
        "checkpoints",
        "embedding",
        "training",
        "finetuning",
        "tasks",
        "analysis",
        "aot",
        "demo",
    ),
    *("config_file", "cli", "__main__"),
]


def rank(part):
    assert part in ORDER, f"{part} has no place in the order of imports"
    return ORDER.index(part)


def imports(path):
    """Returns the parts of the package that a file imports, at any depth of the file."""
    actual = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "elmo_jax":
                names = [f"elmo_jax.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        actual |= {name.split(".")[1] for name in names if name.startswith("elmo_jax.")}
    return actual


def test_imports_point_one_way():
    files = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]
    assert len(files) > 30
    for path in files:
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for other in imports(path):
            same_side = other == part
            assert same_side or rank(other) < rank(part), f"{path.relative_to(PACKAGE)} imports elmo_jax.{other}"


def test_heavy_packages_stay_out():
    """One process imports more and more."""
    stages = (
        ("import elmo_jax.cli.main", ("jax", "numpy")),
        (
            "import elmo_jax; elmo_jax.load_bilm('english')",
            ("elmo_jax.training", "elmo_jax.data", "tensorflow", "tensorstore", "torch", "optax", "orbax", "h5py"),
        ),
        (
            "import elmo_jax.training.loop, elmo_jax.data.prepare.pipeline",
            ("tensorflow", "torch", "pandas", "apache_beam"),
        ),
    )
    code = "import sys"
    for statement, absent in stages:
        code += f"; {statement}; print(*[name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [""] * len(stages)


def test_no_private_parts_of_jax_and_nothing_outside_the_package():
    outside = re.compile(r"^\s*(from|import) (performance|experiments|tests|tools)\b", re.MULTILINE)
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "jax._src" not in text and not outside.search(text), path


def test_a_star_imports_the_whole_public_interface():
    actual: dict = {}
    exec("from elmo_jax import *", actual)
    lazily = {
        alias.name
        for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text()))
        if isinstance(node, ast.With)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert actual.keys() - {"__builtins__"} == lazily | {"__version__"} and len(lazily) > 15
