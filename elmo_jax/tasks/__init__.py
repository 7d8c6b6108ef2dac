"""The six task models of the paper and part-of-speech tagging, with and without ELMo.

Each task is a folder with its file formats (`reader`), its Flax modules (`model`) and its scores (`metric`). A task
never imports another one; what several tasks share is in `core` (training), `formats` (files) and `layers`.
"""
