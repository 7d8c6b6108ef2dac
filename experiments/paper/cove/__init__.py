"""CoVe (McCann et al. 2017): contextual vectors of a translation model, with which the paper compares the biLM."""
