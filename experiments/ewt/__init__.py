"""The parts of the experiments `pos_ewt.py` and `pos_ewt_layers.py`."""
