"""Reads compiled programs."""

import re


def loop_computations(program: str) -> dict[str, str]:
    """All computations that a `while` runs, directly or through calls, in a compiled program."""
    bodies = dict(re.findall(r"^(?:ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", program, re.M | re.S))
    one = re.compile(r"(?:body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
    several = re.compile(r"(?:branch_computations|called_computations)=\{([^}]*)\}")
    calls = {
        name: [*one.findall(text), *(n for group in several.findall(text) for n in re.findall(r"[\w.\-]+", group))]
        for name, text in bodies.items()
    }
    actual: set[str] = set()
    waiting = [name for text in bodies.values() for name in re.findall(r"body=%?([\w.\-]+)", text)]
    while waiting:
        name = waiting.pop()
        if name not in actual:
            actual.add(name)
            waiting += calls.get(name, ())
    return {name: bodies[name] for name in actual if name in bodies}


COLLECTIVE = re.compile(r"\b(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
