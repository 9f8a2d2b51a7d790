#!/usr/bin/env python3
"""What mlx_lm.perplexity makes of data sets, for tests/test_datasets.py: tests/data/datasets/goldens.json.

usage: make_dataset_goldens.py (needs mlx on the CPU, mlx-lm, datasets and numpy)

Each case is a folder of files, which datasets.load_dataset reads, and what load_data and eval_ppl give of it with
the tiny model: the rows of ids, the perplexity and its standard error. Orders are numpy's alone.
"""
import json
import os
import sys
import tempfile

os.environ["HF_DATASETS_OFFLINE"] = "1"

import datasets  # noqa: E402
import mlx.core as mx  # noqa: E402
import mlx_lm  # noqa: E402
import numpy as np  # noqa: E402
from mlx_lm import perplexity  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import tiny_model  # noqa: E402

WORDS = "one naïve 漢字 \"two\" three\n four\t5 😀 <|end|> café \\ six".split(" ")
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"x": 1.0, "y": [1e3, None]}}}]
TEMPLATE = ("{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}"
            "{% if tools %}{{ tools | tojson }}{% endif %}{% if enable_thinking %}T{% endif %}"
            "{% if add_generation_prompt %}G{% endif %}")


def words(i, n):
    return " ".join(WORDS[(i * 7 + k * k) % len(WORDS)] for k in range(n))


def texts(n):
    return [{"text": words(i, i % 9) + ("<|end|>" if i % 5 == 0 else ""), "id": i} for i in range(n)]


def chats(n):
    return [{"id": i, "messages": [{"role": r, "content": words(i + k, 2 + (i + k) % 5)}
                                   for k, r in enumerate(["system", "user", "assistant"][i % 2 :])]} for i in range(n)]


def completions(n):
    return [{"prompt": words(i, 3), "completion": words(i + 1, 4), "text": "not this", "messages": []}
            for i in range(n)]


CASES = [
    ("text", {"train.jsonl": texts(37), "test.jsonl": texts(3)}, 123, 32, 5),
    ("text", {"a.jsonl": texts(5), "b.jsonl": texts(9)}, 0, 20, 4),
    ("text", {"b-train-1.jsonl": texts(5), "a_train.jsonl": texts(9), "dev.jsonl": texts(2)}, 7, 20, 4),
    ("chat", {"train.jsonl": chats(30)}, 123, 48, 6),
    ("chat", {"train.jsonl": [c | {"tools": TOOLS} for c in chats(12)]}, 4294967295, 64, 5),
    ("completions", {"train.jsonl": completions(300)}, 9, 33, 9),
]


def main():
    mx.set_default_device(mx.cpu)
    golden = {"made_by": "mlx-lm %s, mlx %s, datasets %s, numpy %s" % (
        mlx_lm.__version__, mx.__version__, datasets.__version__, np.__version__), "template": TEMPLATE, "cases": [],
        "orders": []}
    with tempfile.TemporaryDirectory() as folder:
        datasets.config.HF_DATASETS_CACHE = os.path.join(folder, "cache")
        model, tokenizer = mlx_lm.load(tiny_model.make(os.path.join(folder, "model"), template=TEMPLATE))
        for i, (form, files, seed, length, samples) in enumerate(CASES):
            data = os.path.join(folder, "data%d" % i)
            os.mkdir(data)
            for name, rows in files.items():
                with open(os.path.join(data, name), "w", encoding="utf-8") as f:
                    f.writelines(json.dumps(r, ensure_ascii=i % 2 == 0) + "\n" for r in rows)
            np.random.seed(seed)
            rows = perplexity.load_data(tokenizer, data, samples, length)
            ppl, error = perplexity.eval_ppl(model, rows, batch_size=2)
            golden["cases"].append({"form": form, "ascii": i % 2 == 0, "files": files, "seed": seed, "length": length,
                                    "samples": samples, "rows": rows.tolist(), "ppl": ppl, "ppl_se": error})
    for seed, n in [(0, 1), (1, 2), (123, 10), (2**32 - 1, 625), (123, 70000)]:
        np.random.seed(seed)
        order = np.random.permutation(n)
        golden["orders"].append({"seed": seed, "n": n, "first": order[:40].tolist(), "sum": int(
            sum(int(v) * (k % 1009 + 1) for k, v in enumerate(order)))})
    path = os.path.join(HERE, "..", "data", "datasets", "goldens.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(golden, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
