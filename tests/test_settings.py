"""Every number among the settings has a range, and values outside it are refused."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
import re
import typing
from pathlib import Path
from typing import Any

import pytest

import elmo_jax.tasks
from elmo_jax.cli.main import main
from elmo_jax.config_file import with_overrides
from elmo_jax.errors import UserError
from elmo_jax.settings import Range, from_dict, setting
from elmo_jax.tasks.registry import default_config

pytestmark = pytest.mark.quick


def config_modules() -> list[str]:
    """Returns the names of the modules that declare settings."""
    tasks = [name for _, name, is_package in pkgutil.iter_modules(elmo_jax.tasks.__path__) if is_package]
    names = [f"elmo_jax.tasks.{task}.{part}" for task in tasks for part in ("model", "task")]
    return [
        "elmo_jax.config",
        "elmo_jax.tasks.core.config",
        *(name for name in names if importlib.util.find_spec(name)),
    ]


def numeric_settings() -> list[Any]:
    """Returns the class, the name and the type (int, float or a tuple of them) of every setting that has numbers."""
    actual = []
    for module in map(importlib.import_module, config_modules()):
        for cls in vars(module).values():
            if not isinstance(cls, type) or not dataclasses.is_dataclass(cls) or cls.__module__ != module.__name__:
                continue
            fields = [field for field in dataclasses.fields(cls) if "range" in field.metadata]
            types = typing.get_type_hints(cls) if fields else {}
            for field in fields:
                if re.search(r"\b(int|float)\b", str(types[field.name])):
                    name = f"{module.__name__.removeprefix('elmo_jax.')}.{cls.__name__}.{field.name}"
                    actual.append(pytest.param(cls, field, types[field.name], id=name))
    return actual


SETTINGS = numeric_settings()


def number_type(kind: Any) -> type:
    """Returns int or float, for a type that has it: `float`, `tuple[float, ...]`, `tuple[tuple[str, float], ...]`."""
    while typing.get_origin(kind) is tuple:
        kind = [part for part in typing.get_args(kind) if part is not ...][-1]
    return kind


def as_value(number: Any, kind: Any) -> Any:
    """Returns a value of the setting's type that contains the number."""
    if typing.get_origin(kind) is not tuple:
        return number
    item = typing.get_args(kind)[0]
    return [(typing.get_args(item)[0](1), number) if typing.get_origin(item) is tuple else number]


def test_all_settings_are_found():
    assert len(SETTINGS) > 90
    package, actual = Path(elmo_jax.__file__).parent, set()
    for path in package.rglob("*.py"):
        if re.search(
            r"^\s+\w+: .*\bsetting\($|^\s+\w+: .* = setting\(", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            actual.add(".".join(path.relative_to(package.parent).with_suffix("").parts))
    assert actual == {name for name in config_modules() if name in actual} and len(actual) >= 10


@pytest.mark.parametrize(("cls", "field", "kind"), SETTINGS)
def test_numbers_outside_their_range_are_refused(cls, field, kind):
    allowed, number = field.metadata["range"], number_type(kind)
    assert allowed.least is not None or allowed.above is not None, "no lower bound"
    assert allowed.most is not None or allowed.below is not None, "no upper bound"
    outside = [bound for bound in (allowed.above, allowed.below) if bound is not None]
    outside += [] if allowed.least is None else [allowed.least - 1, allowed.least - 10**12]
    outside += [] if allowed.most is None else [allowed.most + 1, 10 * allowed.most + 10**12]
    if number is float:
        outside += [math.nan, math.inf, -math.inf, 1e308, 10**400]
        outside += [] if allowed.least is None else [allowed.least - 1e-9]
    else:
        outside += [10**400, -(10**400)]
    for value in outside:
        # 10**400 exceeds all floats, and is given as an integer, which a Python file may contain.
        given = value if abs(value) > 1e307 and isinstance(value, int) else number(value)
        with pytest.raises(UserError) as caught:
            from_dict({field.name: as_value(given, kind)}, cls)
        assert f"config.{field.name}: expected " in str(caught.value) and str(allowed) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("cls", "field", "kind"), SETTINGS)
def test_values_that_are_no_numbers_are_refused(cls, field, kind):
    for value in (True, "1", None, [1], {}):
        with pytest.raises(UserError, match=f"config.{field.name}: expected "):
            from_dict({field.name: as_value(value, kind)}, cls)
    if typing.get_origin(kind) is tuple:
        with pytest.raises(UserError, match=f"config.{field.name}: expected "):
            from_dict({field.name: number_type(kind)(1)}, cls)
    if number_type(kind) is int:
        with pytest.raises(UserError, match=f"config.{field.name}: expected "):
            from_dict({field.name: as_value(1.5, kind)}, cls)


@pytest.mark.parametrize(("cls", "field", "kind"), SETTINGS)
def test_the_default_and_the_bounds_are_in_the_range(cls, field, kind):
    allowed = field.metadata["range"]
    numbers = [bound for bound in (allowed.least, allowed.most) if bound is not None]
    assert all(number in allowed for number in numbers)
    if typing.get_origin(kind) is not tuple:
        assert field.default in allowed
        for value in numbers:
            with_bound = from_dict_alone(cls, field.name, number_type(kind)(value))
            assert with_bound == value and type(with_bound) is number_type(kind)
    elif number_type(kind) is float:
        assert all(part in allowed for part in field.default)


def from_dict_alone(cls: type, name: str, value: Any) -> Any:
    """Returns a setting as it is read, without the checks between settings."""
    alone = dataclasses.make_dataclass(
        "Alone",
        [
            (
                name,
                typing.get_type_hints(cls)[name],
                dataclasses.field(metadata=cls.__dataclass_fields__[name].metadata, default=0),
            )
        ],
    )
    return getattr(from_dict({name: value}, alone), name)


def test_whole_numbers_are_taken_for_floats():
    @dataclasses.dataclass(frozen=True)
    class Some:
        rate: float = setting(0.5, "A rate.", least=0, most=1)
        rates: tuple[float, ...] = setting((0.5,), "Several rates.", least=0, below=1)

    assert from_dict({"rate": 1, "rates": [0, 0.25]}, Some) == Some(1.0, (0.0, 0.25))
    assert isinstance(from_dict({"rates": [0]}, Some).rates[0], float)
    assert str(Range(least=0, below=1)) == "a number of at least 0 and below 1"


@pytest.mark.parametrize("epochs", ["nan", "inf", "-1", "1e7"])
def test_epochs_of_the_command_line(tmp_path, capsys, epochs):
    command = ["finetune", "--from", "no", "--data", "no", "--workdir", str(tmp_path / "run"), f"--epochs={epochs}"]
    assert main(command) == 2
    assert "--epochs: expected a number of at least 0 and at most 1,000,000, got" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rows", ["0", "-1", "10000000"])
def test_rows_of_the_command_line(capsys, rows):
    assert main(["evaluate", "no", "--data", "no", f"--batch-size={rows}"]) == 2
    assert "--batch-size: expected a whole number of at least 1 and at most 65,536, got" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "old", "new"),
    [
        ("pos", "train.shapes=2", "num_buckets"),
        ("pos", "elmo.vectors=computed", "precompute"),
        ("squad", "model.longest_answer=5", "max_answer_length"),
        ("coref", "model.widest=5", "max_span_width"),
        ("coref", "model.spans_per_word=0.3", "top_span_ratio"),
    ],
)
def test_the_old_name_of_a_setting_is_refused_with_the_new_one(task: str, old: str, new: str) -> None:
    with pytest.raises(UserError, match=f"{old.partition('=')[0]}=.*its name is now '{new}'"):
        with_overrides(default_config(task), [f"--config.{old}"])
