"""The parts that all kinds of runs share: the run's folder, metrics, progress, signals and reports."""
