"""Coreference resolution: the span-ranking model (Lee et al. 2017) with ELMo."""
