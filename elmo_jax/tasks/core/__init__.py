"""What every task shares: its interface, its data, its inputs, its training and its trained form.

From `elmo-jax task train` to the loop, and from `elmo-jax task predict` to the same programs:

    run.train_task                 reads the examples and the biLM, and trains with each seed
      setup.TaskSetup              the task, its settings, labels, vocabulary, word vectors, biLM and devices
      trainer.Trainer.train        one seed, from its first step or newest checkpoint; `_epoch` has the loop over steps
        data.TaskData              the examples of a split in batches of few shapes
        program.TaskProgram        the training step and the evaluation, compiled for each shape
    trained_task.TrainedTask       the parameters of a run with the same setup, data and program
"""
