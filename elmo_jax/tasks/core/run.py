"""Runs a task: reads its examples and its biLM, trains once with each seed, and summarizes and draws the results."""

import dataclasses
import hashlib
import statistics as stdlib_statistics
from collections.abc import Sequence
from typing import Any

import jax
from etils import epath

from elmo_jax import files
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.errors import UserError
from elmo_jax.interrupts import Stopped, StopSignals
from elmo_jax.model.bilm import parameter_count
from elmo_jax.runs.folder import check_usable, open_workdir
from elmo_jax.runs.lock import locked
from elmo_jax.runs.metrics import read_records
from elmo_jax.runs.result import Finished, best_effort, plot, read_result, write_result
from elmo_jax.tasks.core.config import CHANGEABLE, TaskConfig
from elmo_jax.tasks.core.data import predict
from elmo_jax.tasks.core.inputs import elmo_mixes
from elmo_jax.tasks.core.program import Model, TaskState
from elmo_jax.tasks.core.setup import SPLITS, TaskSetup, check_labels, open_model, rows_of, short_enough, training_share
from elmo_jax.tasks.core.trainer import Trainer
from elmo_jax.tasks.core.vocabulary import build
from elmo_jax.tasks.formats.sources import read_part
from elmo_jax.tasks.registry import get_task, packages_of

WHERE = {"input": "at the input", "output": "at the output", "after_first": "after the first layer"}  # ELMo enters


def train_task(
    config: TaskConfig, workdir: epath.Path, title: str, devices: Sequence[jax.Device] | None = None
) -> Finished | Stopped:
    """Trains a task with every seed of its config, to the end or until SIGTERM or SIGINT.

    A run that was stopped or killed in `workdir` is resumed. Without `devices`, all local ones are used.
    """
    workdir = files.parse_path(workdir)
    if files.in_bucket(workdir):
        raise UserError(f"{workdir}: a task is trained in a folder of this machine")
    task = get_task(config.task)
    bilm = open_model(config)
    if not config.data.language:
        language = bilm.language if bilm else "en"
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, language=language))
    splits = {name: read_part(task, config, name) for name in SPLITS}
    for name in ("train", "dev"):
        if not splits[name]:
            raise UserError(f"config.data.{name}: no examples; give a file")
    chosen = training_share(splits["train"], config)
    labels = task.labels(chosen, config)
    for name in ("dev", "test"):
        check_labels(task, splits[name], labels, f"config.data.{name}", refuse=len(chosen) == len(splits["train"]))
    others = [row for name in ("dev", "test") for row in rows_of(task, splits[name])]
    words, table = build(rows_of(task, chosen), others, config.word_vectors, config.characters)
    fingerprints = {
        "bilm": bilm.vectors_fingerprint if bilm else None,
        "data": {name: _digest(examples) for name, examples in splits.items()},
        "word_vectors": files.digest_of([words.as_dict(), table.fingerprint]),
    }
    check_usable(workdir)
    with locked(workdir):
        open_workdir(workdir, config, {"fingerprint": fingerprints}, CHANGEABLE, packages_of(config))
        mesh = make_mesh(list(devices or jax.local_devices()))
        setup = TaskSetup(task, config, labels, words, table, bilm, mesh)
        trainer = Trainer(setup, {**splits, "train": short_enough(task, chosen, config)}, workdir)
        already = True
        for seed in config.seeds:
            folder = workdir / f"seed_{seed}"
            if read_result(folder) is None:
                folder.mkdir(parents=True, exist_ok=True)
                with StopSignals() as signals:
                    ended = trainer.train(seed, signals)
                if isinstance(ended, Stopped):
                    return ended
                # There is nothing to save here: a signal ends the process, and the next launch makes the result.
                write_result(folder, _result_of_seed(trainer, seed, ended, folder))
                already = False
        result = {**_result(trainer, workdir), **fingerprints}
        write_result(workdir, result)
        with best_effort(workdir / "curve.png"):
            draw(workdir, title, result)
        return Finished(result, already)


def _digest(examples: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _scores(trainer: Trainer, models: Sequence[Model], folder: epath.Path | None = None) -> dict[str, dict[str, float]]:
    task, scores = trainer.setup.task, {}
    for name in SPLITS[1:]:
        if data := trainer.data.get(name):
            predictions = predict(trainer.setup, trainer.program, models, data)
            scores[name] = task.score(data.examples, predictions)
            if folder is not None:
                files.write_text(folder / f"{name}.predictions", task.write(data.examples, predictions))
    return scores


def _result_of_seed(trainer: Trainer, seed: int, state: TaskState, folder: epath.Path) -> dict[str, Any]:
    params, steps_per_epoch = trainer.program.evaluated(state), len(trainer.data["train"].epoch(None))
    frozen = trainer.program.frozen(seed, trainer.layers_are_given)
    records = read_records(folder / "metrics.jsonl")
    last = [record for record in records if "train/seconds" in record]
    inputs = state.params.get("inputs", {})
    words, bilm = ({name: inputs.get(name, {})} for name in ("words", "bilm"))
    return {
        "seed": seed,
        "step": int(state.step),
        "epoch": -(-int(state.step) // steps_per_epoch),  # from 1; 0 before the first step
        **_scores(trainer, [(params, frozen)], folder),
        "epochs": -(-records[-1]["step"] // steps_per_epoch),
        "words_per_second": last[-1]["train/words"] / last[-1]["train/seconds"] if last else 0.0,
        "seconds": records[-1]["wall_seconds"],
        "parameters": parameter_count(state.params) - parameter_count(words) - parameter_count(bilm),
        "word_vector_parameters": parameter_count(words),
        "elmo": elmo_mixes(params, trainer.setup.config),
    }


def _result(trainer: Trainer, workdir: epath.Path) -> dict[str, Any]:
    task, config, data = trainer.setup.task, trainer.setup.config, trainer.data
    seeds = [read_result(workdir / f"seed_{seed}") or {} for seed in config.seeds]
    result: dict[str, Any] = {
        "task": task.name,
        "metric": task.metric,
        "steps": sum(seed["step"] for seed in seeds),
        **{name: statistics([s[name][task.metric] for s in seeds]) for name in ("dev", "test") if name in seeds[0]},
        "seeds": seeds,
        "examples": {name: len(data[name].examples) if name in data else 0 for name in SPLITS},
        "parameters": seeds[0]["parameters"],
        "word_vector_coverage": trainer.setup.table.coverage,
        "elmo": dataclasses.asdict(config.elmo) if config.bilm else None,
    }
    if task.supports_ensembling and len(seeds) > 1:
        models = [trainer.program.load(workdir, seed, trainer.layers_are_given) for seed in config.seeds]
        result["ensemble"] = _scores(trainer, models)
    return result


def statistics(values: Sequence[float]) -> dict[str, float | int | None]:
    """Returns the `mean` of values, their number `n`, and the standard deviation `sd` of a sample, None for n = 1."""
    deviation = stdlib_statistics.stdev(values) if len(values) > 1 else None
    return {"mean": stdlib_statistics.fmean(values), "sd": deviation, "n": len(values)}


def shown(values: dict[str, Any]) -> str:
    """Returns the result of `statistics` as text, such as `93.40 ± 0.12 (n = 5)`."""
    deviation = "" if values["sd"] is None else f" ± {values['sd']:.2f}"
    return f"{values['mean']:.2f}{deviation} (n = {values['n']})"


def table(result: dict[str, Any], workdir: epath.Path) -> str:
    """Returns the table that is printed at the end of a task's run."""
    metric, seeds = result["metric"], result["seeds"]
    lines = [f"{result['task']}, {metric}"]
    lines += [f"{name:<5} {shown(result[name])}" for name in ("dev", "test") if name in result]
    if "ensemble" in result:
        together = " · ".join(f"{name} {values[metric]:.2f}" for name, values in result["ensemble"].items())
        lines.append(f"ensemble of the {len(seeds)} seeds (mean of probabilities): {together}")
    for seed in seeds:
        parts = [f"{name} {seed[name][metric]:.2f}" for name in ("dev", "test") if name in seed]
        lines.append(
            f"  seed {seed['seed']}: {' · '.join(parts)} · best epoch {seed['epoch']} of {seed['epochs']}"
            f" · {seed['words_per_second']:,.0f} words/s"
        )
    if result["word_vector_coverage"]:
        types, tokens = result["word_vector_coverage"]
        lines.append(f"pretrained word vectors: {types:.1%} of the training text's words, {tokens:.1%} of its tokens")
    for name, where in WHERE.items():
        mixes = [seed["elmo"][name] for seed in seeds if name in seed["elmo"]]
        if mixes:
            lines.append(f"ELMo {where}: {_mean_mix(mixes)}")
    lines += [
        f"{result['parameters']:,} parameters without word vectors and the biLM",
        "",
        f"result       {workdir / 'result.json'}",
        f"plot         {workdir / 'curve.png'}",
        f"predictions  {workdir / 'seed_*' / '*.predictions'}",
        "",
        f"next: elmo-jax task predict {workdir} --input YOUR_TEXT.txt",
    ]
    return "\n".join(lines)


def _mean_mix(mixes: Sequence[dict[str, Any]]) -> str:
    scale = stdlib_statistics.fmean(mix["scale"] for mix in mixes)
    weights = [stdlib_statistics.fmean(values) for values in zip(*(mix["weights"] for mix in mixes), strict=True)]
    shares = " / ".join(f"{weight:.2f}" for weight in weights)
    return (f"weights of layers {shares}, " if shares else "") + f"scale {scale:.2f}"


def draw(workdir: epath.Path, title: str, result: dict[str, Any]) -> None:
    """Draws `curve.png`: the training loss, the dev metric and the weights of the biLM's layers."""
    seeds, measure = result["seeds"], result["metric"]
    mixes = [name for name in WHERE if any(seed["elmo"].get(name, {}).get("weights") for seed in seeds)]
    with plot(workdir / "curve.png", 4.5 * (2 + len(mixes)), 4.0) as figure:
        loss, metric, *weights = figure.subplots(1, 2 + len(mixes))
        for name in (f"seed_{seed['seed']}" for seed in seeds):
            records = read_records(workdir / name / "metrics.jsonl")
            for axes, key in ((loss, "train/loss"), (metric, f"dev/{measure}")):
                points = [(record["step"], record[key]) for record in records if key in record]
                axes.plot(*zip(*points, strict=True) if points else ((), ()), label=name.replace("_", " "), lw=1.5)
        loss.set(title="training loss", xlabel="step")
        metric.set(title=f"{measure} on dev", xlabel="step")
        for axes, name in zip(weights, mixes, strict=True):
            layers = list(zip(*(seed["elmo"][name]["weights"] for seed in seeds), strict=True))
            summaries = [statistics(values) for values in layers]
            labels = ["characters", *(f"LSTM {j}" for j in range(1, len(layers)))]
            errors = [summary["sd"] or 0.0 for summary in summaries]
            axes.bar(labels, [summary["mean"] for summary in summaries], yerr=errors, color="tab:blue", capsize=3)
            axes.axhline(1 / len(layers), color="black", lw=0.8, ls=":")
            axes.set(title=f"weights of the layers, {name}", ylim=(0, None))
        for axes in (loss, metric, *weights):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
        if len(seeds) > 1:
            loss.legend(frameon=False)
        figure.suptitle(title)
