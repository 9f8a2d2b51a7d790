"""Inverse frequencies and factors of transformers' rotary types.

    python make_rope_goldens.py > ../data/rope/goldens.json

Each case: settings as a config has them, head size, positions, the length of the call,
and what transformers computes: inv_freq and the factor on cos and sin. Needs
transformers and torch.
"""
import json
import sys
from importlib.metadata import version

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FACTORS = [1 + 0.13 * i for i in range(16)]
CASES = [
    ({"rope_type": "linear", "factor": 4.0}, 10000.0, 64, 2048, 1),
    ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}, 500000.0, 128, 131072, 1),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 1e6, 128, 131072, 1),
    ({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
      "mscale": 0.707, "mscale_all_dim": 0.707}, 10000.0, 64, 163840, 1),
    ({"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
      "beta_slow": 1.0, "truncate": False}, 150000.0, 64, 131072, 1),
    ({"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8192, "attention_factor": 1.25},
     10000.0, 128, 131072, 1),
    ({"rope_type": "dynamic", "factor": 4.0}, 10000.0, 64, 2048, 100),
    ({"rope_type": "dynamic", "factor": 4.0}, 10000.0, 64, 2048, 5000),
    ({"rope_type": "longrope", "short_factor": FACTORS, "long_factor": [3 * f for f in FACTORS],
      "original_max_position_embeddings": 4096, "factor": 32.0}, 10000.0, 32, 131072, 100),
    ({"rope_type": "longrope", "short_factor": FACTORS, "long_factor": [3 * f for f in FACTORS],
      "original_max_position_embeddings": 4096, "factor": 32.0}, 10000.0, 32, 131072, 9000),
    ({"rope_type": "proportional", "partial_rotary_factor": 0.25}, 1e6, 256, 131072, 1),
]


def main():
    out = []
    for settings, theta, dim, positions, length in CASES:
        config = LlamaConfig(hidden_size=4 * dim, num_attention_heads=4, head_dim=dim,
                             max_position_embeddings=positions,
                             rope_parameters=dict(settings, rope_theta=theta))
        inv, factor = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, "cpu", seq_len=length)
        out.append({"settings": settings, "theta": theta, "dim": dim, "max_positions": positions, "length": length,
                    "inv_freq": [float(x) for x in inv], "factor": float(factor)})
    json.dump({"versions": {p: version(p) for p in ("transformers", "torch")}, "cases": out}, sys.stdout, indent=0)


if __name__ == "__main__":
    main()
