"""Reports the memory and the exchanges of a compiled training step, and estimates its speed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from elmo_jax.aot.chips import Chip
from elmo_jax.aot.cost import Assume, Assumption, Collective, Cost, cost_of, once
from elmo_jax.aot.hlo import Instruction, parse
from elmo_jax.aot.step import Compiled, Memory, Target
from elmo_jax.aot.words import BatchWords
from elmo_jax.config import Config
from elmo_jax.training.row_gradients import FURTHER_ROUNDS
from elmo_jax.training.throughput import Work


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimate of a step's time, from the program and the chip's published rates; nothing is run.

    Attributes:
      compute: the seconds per step that the matrix products alone would take.
      memory: the seconds per step that the traffic of the main memory alone would take.
      exchange: the seconds per step that the exchanges between devices alone would take.
      tokens: the tokens per step of all chips.
      model_flops: the operations per step of all chips, as `throughput.Work` counts them.
      peak: the bf16 operations per second of all chips.
    """

    compute: float
    memory: float
    exchange: float
    tokens: int
    model_flops: float
    peak: float

    @property
    def limits(self) -> dict[str, float]:
        """The seconds of each part by its name."""
        return {"matrix products": self.compute, "main memory": self.memory, "exchange": self.exchange}

    @property
    def limited_by(self) -> str:
        """The name of the part that takes longest."""
        return max(self.limits, key=self.limits.__getitem__)

    @property
    def seconds(self) -> float:
        """The seconds per step: those of the longest part, as if the others were hidden behind it."""
        return max(self.limits.values())

    @property
    def tokens_per_second(self) -> float:
        """The tokens per second of all chips; each token of the text counts once."""
        return self.tokens / self.seconds

    @property
    def flop_utilisation(self) -> float:
        """The model's operations, divided by what the matrix units could do in that time."""
        return self.model_flops / (self.seconds * self.peak)


@dataclasses.dataclass(frozen=True)
class Report:
    """All that is shown about a compiled step."""

    title: str
    config: Config
    target: Target
    vocabulary_size: int
    word_types: int
    compile_seconds: float
    compiled_before: bool  # by an earlier command, which took these seconds
    memory: Memory
    cost: Cost
    words: BatchWords
    estimate: Estimate | None  # None if no rates of the device are published

    @property
    def rows(self) -> int:
        """The rows per device."""
        return self.config.train.batch_size // len(self.target.devices)

    @property
    def sent(self) -> float:
        """The bytes that a device sends per step."""
        return sum(exchange.times * exchange.sent for exchange in self.cost.collectives)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for `--json`, in bytes, seconds and operations."""
        chip, estimate = self.target.chip, self.estimate
        return {
            "experiment": self.title,
            "topology": self.target.topology,
            "devices": len(self.target.devices),
            "batch_size": self.config.train.batch_size,
            "rows_per_device": self.rows,
            "precision": self.config.train.precision,
            "vocabulary_size": self.vocabulary_size,
            "word_types": self.word_types,
            "compile_seconds": self.compile_seconds,
            "compiled_before": self.compiled_before,
            "fits": True,
            "memory": {
                **self.memory.parts,
                "temporaries": self.memory.temporaries,
                "program": self.memory.program,
                "total": self.memory.total,
                "usable": chip.usable if chip else None,
            },
            "collectives": [
                {
                    "kind": exchange.kind,
                    "payload_bytes": exchange.payload,
                    "sent_bytes": exchange.sent,
                    "devices": exchange.group,
                    "times": exchange.times,
                    "loops": list(exchange.loops),
                    "op_name": exchange.op_name,
                }
                for exchange in self.cost.collectives
            ],
            "loops": [{"op_name": name, "turns": turns, "known": why} for name, turns, why in self.cost.loops],
            "program_flops": dict(self.cost.flops),
            "bf16_flops": self.cost.bf16_flops,
            "main_memory_bytes": self.cost.bytes,
            "largest_traffic": dict(sorted(self.cost.traffic.items(), key=lambda item: -item[1])[:20]),
            "sent_bytes": self.sent,
            "assumed": dataclasses.asdict(self.words),
            "estimate": None
            if estimate is None
            else {
                **dataclasses.asdict(estimate),
                "seconds": estimate.seconds,
                "limited_by": estimate.limited_by,
                "tokens_per_second": estimate.tokens_per_second,
                "flop_utilisation": estimate.flop_utilisation,
            },
        }

    def describe(self) -> str:
        """Returns the report as tables for the terminal."""
        when = " by an earlier command" if self.compiled_before else ""
        head = (
            f"{self.title} on {self.target.topology}: {len(self.target.devices)} devices, {self.rows} rows each,"
            f" {self.config.train.precision}, {self.vocabulary_size:,} words in the softmax"
            f" (compiled in {self.compile_seconds:.0f} s{when})"
        )
        return "\n\n".join([head, self._memory(), self._exchanges(), self._estimate(), self._assumed()])

    def _memory(self) -> str:
        memory, chip = self.memory, self.target.chip
        rows = {**memory.parts, "temporaries": memory.temporaries, "program": memory.program}
        lines = [f"{'memory of a device':<24}{'GB':>8}"]
        lines += [f"  {name:<22}{size / 1e9:>8.2f}" for name, size in rows.items()]
        of = f" of {chip.usable / 1e9:.2f} that a program can have: fits" if chip else ""
        return "\n".join([*lines, f"  {'in all':<22}{memory.total / 1e9:>8.2f}{of}"])

    def _exchanges(self) -> str:
        lines = [f"{'exchanges of a step':<24}{'payload MB':>12}{'a device sends MB':>20}  where"]
        for exchange in self.cost.collectives:
            where = "outside all loops"
            if exchange.loops:
                where = f"inside a loop, {exchange.times:,.0f} times per step: {_short(exchange.loops[-1])}"
            lines.append(
                f"  {exchange.kind:<22}{exchange.payload / 1e6:>12,.2f}"
                f"{exchange.times * exchange.sent / 1e6:>20,.2f}  {where}"
            )
        return "\n".join([*lines, f"  {'in all':<22}{'':>12}{self.sent / 1e6:>20,.2f}"])

    def _estimate(self) -> str:
        flops, cost = sum(self.cost.flops.values()), self.cost
        amounts = (
            f"{flops / 1e12:.2f} TFLOP" + (f" ({cost.bf16_flops / flops:.1f} bf16 passes)" if flops else ""),
            f"{cost.bytes / 1e9:.1f} GB",
            f"{self.sent / 1e9:.2f} GB",
        )
        estimate, chip = self.estimate, self.target.chip
        if estimate is None or chip is None:
            lines = ["work of a step on a device (no rates are published for it, so there is no estimate of its time)"]
            return "\n".join([*lines, *(f"  {n:<18}{a}" for n, a in zip(_PARTS, amounts, strict=True))])
        bytes_per_second = (f"{rate / 1e9:.0f} GB/s" for rate in (chip.memory_rate, chip.link_rate))
        rates = (f"{chip.flops / 1e12:.0f} TFLOP/s", *bytes_per_second)
        lines = ["estimate of a step, from the program and the chip's published rates; nothing was run"]
        for (name, seconds), amount, rate in zip(estimate.limits.items(), amounts, rates, strict=True):
            lines.append(f"  {name:<18}{amount:<32}at {rate:<14}{seconds * 1e3:>8.2f} ms")
        each = estimate.tokens_per_second / len(self.target.devices)
        return "\n".join(
            [
                *lines,
                f"  estimated step: {estimate.seconds * 1e3:.2f} ms, limited by: {estimate.limited_by}",
                f"  estimated tokens/s: {estimate.tokens_per_second:,.0f} ({each:,.0f} per chip)",
                f"  estimated FLOP utilisation: {estimate.flop_utilisation:.0%} of the chips' bf16 rate",
            ]
        )

    def _assumed(self) -> str:
        lines = [
            "assumed, where the program's work depends on the text",
            f"  {self.words.distinct:,} distinct words in a device's batch, filters applied to"
            f" {self.words.positions:.1f} positions ({self.words.why})",
        ]
        others = [(name, why) for name, _, why in self.cost.loops if why not in ("as compiled", self.words.why)]
        lines += dict.fromkeys(f"  a loop {why}: {_short(name)}" for name, why in others)
        return "\n".join(lines)


_PARTS = ("matrix products", "main memory", "exchange")


def _short(op_name: str) -> str:
    return op_name.split("shard_map/")[-1]


def report(
    title: str,
    config: Config,
    target: Target,
    compiled: Compiled,
    vocabulary_size: int,
    word_types: int,
    words: BatchWords,
    chunk: int,
) -> Report:
    """Analyses a compiled step.

    Args:
      title: the name of the experiment.
      config: the settings.
      target: the devices that the step was compiled for.
      compiled: the compiled step.
      vocabulary_size: the words of the softmax.
      word_types: the words of the lexicon.
      words: the assumed words of a device's batch.
      chunk: the number of words that are encoded at a time.
    """
    devices = len(target.devices)
    rows = config.train.batch_size // devices
    room = min(2 * config.train.unroll_steps * rows, word_types)
    cost = cost_of(parse(compiled.text), assumed_work(words, room, chunk))
    estimate = None
    if target.chip is not None:
        estimate = _estimate(config, target.chip, devices, vocabulary_size, cost, words)
    return Report(
        title,
        config,
        target,
        vocabulary_size,
        word_types,
        compiled.seconds,
        compiled.kept,
        compiled.memory,
        cost,
        words,
        estimate,
    )


def assumed_work(words: BatchWords, room: int, chunk: int) -> Assume:
    """Returns the assumptions about work that depends on the batch.

    The token encoder skips chunks without words and positions without characters. The exchange of softmax rows has
    further rounds only for batches that hardly ever occur.

    Args:
      words: the assumed words of a device's batch.
      room: the number of distinct words that a device's batch can have.
      chunk: the number of words that are encoded at a time.
    """
    chunk = min(chunk, room)

    def assume(instruction: Instruction, loops: tuple[str, ...]) -> Assumption:
        if FURTHER_ROUNDS in instruction.op_name:
            return Assumption(0.0, "of rounds that hardly any batch needs, counted as none")
        if "token_encoder" not in instruction.op_name:
            return once(instruction, loops)
        if instruction.opcode == "while":
            return Assumption(words.positions, words.why)
        return Assumption(min(1.0, math.ceil(words.distinct / chunk) / math.ceil(room / chunk)), words.why)

    return assume


def _estimate(
    config: Config, chip: Chip, devices: int, vocabulary_size: int, cost: Cost, words: BatchWords
) -> Estimate:
    tokens = config.train.tokens_per_step
    work = Work(config, vocabulary_size, words.positions)
    exchanges: list[Collective] = cost.collectives
    return Estimate(
        compute=cost.bf16_flops / chip.flops,
        memory=cost.bytes / chip.memory_rate,
        exchange=sum(exchange.times * exchange.sent for exchange in exchanges) / chip.link_rate,
        tokens=tokens,
        model_flops=work.operations(tokens, words.distinct * devices),
        peak=chip.flops * devices,
    )
