"""The package as others get it: built from the tracked files, installed where nothing of this checkout is."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source distribution and a wheel that was built from it."""
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.split("\n")[:-1]:
        if (ROOT / name).exists() and not name.startswith("tests/oracles"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((folder / "dist").glob("*.tar.gz")), next((folder / "dist").glob("*.whl"))


def test_the_wheel_runs_where_the_checkout_is_not(built: tuple[Path, Path], tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    site = next(environment.glob("lib/python*/site-packages"))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python")]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", str(built[1])],
        check=True,
        env={**clean, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    # Installing the dependencies takes a minute, so they are links to those of this environment.
    here = Path(next(path for path in sys.path if path.endswith("site-packages")))
    for entry in here.iterdir():
        if not (site / entry.name).exists() and "elmo_jax" not in entry.name and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    run = {"cwd": tmp_path, "capture_output": True, "text": True, "check": True, "env": clean}
    where = subprocess.run([environment / "bin/python", "-c", "import elmo_jax; print(elmo_jax.__file__)"], **run)
    assert where.stdout.strip() == str(site / "elmo_jax" / "__init__.py")
    shown = subprocess.run([environment / "bin/elmo-jax", "--help"], **run)
    assert "prepare" in shown.stdout and "pretrain" in shown.stdout
    version = subprocess.run([environment / "bin/elmo-jax", "--version"], **run).stdout.split()
    assert version[0] == "elmo-jax" and built[1].name.startswith(f"elmo_jax-{version[1]}-")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    example = next(number for number, block in enumerate(blocks) if "import elmo_jax" in block)
    printed = subprocess.run([environment / "bin/python", "-c", blocks[example]], **run).stdout
    assert printed == blocks[example + 1]


def test_what_is_in_the_distributions(built: tuple[Path, Path]) -> None:
    source, wheel = built
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "setup.cfg", "elmo_jax/cli/main.py", "elmo_jax/py.typed"} <= names
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in packed if name.endswith("/METADATA"))
    assert "elmo_jax/py.typed" in packed and any(name.endswith("licenses/LICENSE") for name in packed)
    assert not [name for name in packed if not name.startswith("elmo_jax")]
    assert "License: Apache-2.0" in metadata and "Classifier: Typing :: Typed" in metadata
