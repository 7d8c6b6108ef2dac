"""The training of a biLM: devices, state, optimizer, step, loop, evaluation and report.

From the command to the loop, there are four classes to read:

    elmo-jax pretrain                cli/train.py       experiment file, overrides, processes
      pretrain(config, workdir)      pretrain.py        corpus, lock, checks of what the run was opened with
        TrainingSetup                setup.py           mesh, model, programs, batches and texts on the devices
          TrainStep                  step.py            one update, as the program of one device
        RunContext                   run_context.py     checkpoints, metrics, progress, time of this launch
        Trainer.run                  loop.py            `while step < total`, evaluate, export; before, `train` restores

and four that are data: `Config`, `Corpus`, `TrainState` (step.py) and `Recipe` (setup.py). `finetune` differs in the
recipe: the initial parameters, what is frozen, when training ends, and which texts are measured before and after.
`pretrain` exports the last step; a recipe with `exports="best"` the one of the lowest held-out perplexity.
"""
