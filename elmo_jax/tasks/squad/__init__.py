"""Question answering on SQuAD: BiDAF with self-attention (Clark and Gardner 2018) and ELMo."""
