"""Converts the parameters of e2e-coref to those of this package."""

import jax.numpy as jnp
import numpy as np


def from_e2e(params):
    """Converts the model of e2e-coref without its words."""
    directions = ("fw", "bw")
    cells = [f"layer_0/bidirectional_rnn/{side}/CustomLSTMCell/" for side in directions]
    states = [f"layer_0/{side}_cell/lstm_initial_" for side in directions]

    def scorer(scope):
        layers = {f"hidden_{number}": (f"hidden_weights_{number}", f"hidden_bias_{number}") for number in (0, 1)}
        layers["output"] = ("output_weights", "output_bias")
        actual = {}
        for name, (kernel, bias) in layers.items():
            actual[f"{name}_kernel"], actual[f"{name}_bias"] = params[scope + kernel], params[scope + bias]
        return actual

    return {
        "lstm": {
            "kernel": np.stack([params[cell + "output_weights"] for cell in cells]),
            "bias": np.stack([params[cell + "output_bias"] for cell in cells]),
            "initial_cell": np.stack([params[state + "cell_state"][0] for state in states]),
            "initial_hidden": np.stack([params[state + "hidden_state"][0] for state in states]),
        },
        "head_score": {
            "kernel": params["head_scores/output_weights"],
            "bias": params["head_scores/output_bias"],
        },
        "width": params["span_width_embeddings"],
        "mention": scorer("mention_scores/"),
        "antecedent": scorer("coref_layer/slow_antecedent_scores/"),
        "speaker": params["coref_layer/same_speaker_emb"],
        "genre": params["genre_embeddings"],
        "distance": params["coref_layer/antecedent_distance_emb"],
    }


def e2e_words(params, given):
    """Computes the words of e2e-coref: its input and its head embeddings, [S, T, ...]."""
    characters = params["char_embeddings"][given["char_index"]]  # [S, T, characters, 3]
    pooled = []
    for number in (0, 1):
        filters = params[f"conv_{number}/w"]
        windows = characters.shape[2] - len(filters) + 1
        convolved = sum(
            jnp.einsum("stcd,df->stcf", characters[:, :, offset : offset + windows], filters[offset])
            for offset in range(len(filters))
        )
        pooled.append(jnp.max(jnp.maximum(convolved + params[f"conv_{number}/b"], 0), axis=2))
    characters = jnp.concatenate(pooled, -1)
    weights = jnp.exp(params["lm_aggregation/lm_scores"])
    elmo = given["lm_emb"] @ (weights / weights.sum()) * params["lm_aggregation/lm_scaling"]
    vectors = jnp.concatenate([given["context_word_emb"], characters, elmo], -1)
    return vectors, jnp.concatenate([given["head_word_emb"], characters], -1)
