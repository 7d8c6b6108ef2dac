"""What every task shares: `run` trains with each seed by `trainer` and `program`, and `trained_task` predicts."""
