"""The six task models of the paper and part-of-speech tagging, with and without ELMo.

Each task is a folder whose module `task` has its model, files and scores; those of large tasks are in others next to
it. A task never imports another one; what several share is in `core` (training), `formats` (files) and `layers`.
"""
