"""What every run shares: its folder, its metrics, its signals and its reports."""
