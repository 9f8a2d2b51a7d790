#!/usr/bin/env python3
"""Perplexity of a text by transformers, float64, for tests/test_perplexity.py: tests/data/perplexity/tiny.json.

usage: make_perplexity_goldens.py (needs torch and transformers)
"""
import json
import os
import sys
import tempfile

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import tiny_model  # noqa: E402

TEXT = "".join("%d bottles: %s\n" % (99 - i, "take one down, pass it around" if i % 4 else "naïve — 漢字")
               for i in range(24))


def main():
    with tempfile.TemporaryDirectory() as folder:
        tiny_model.make(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    cases = []
    for length, bos in [(64, True), (150, True), (150, False)]:
        stream, losses = [tokenizer.bos_token_id] * bos + ids, []
        for at in range(0, len(stream) - length + 1, length):
            row = torch.tensor([stream[at : at + length]])
            if bos:
                row[0, 0] = tokenizer.bos_token_id
            with torch.no_grad():
                logits = model(row).logits[0, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="none"))
        loss = torch.cat(losses)
        ppl = loss.mean().exp()
        cases.append({"length": length, "bos": "true" if bos else "false", "tokens": loss.numel(),
                      "ppl": ppl.item(), "ppl_se": (ppl * loss.std() / loss.numel() ** 0.5).item()})
    golden = {"made_by": "transformers %s, torch %s" % (transformers.__version__, torch.__version__.split("+")[0]),
              "text": TEXT, "cases": cases}
    path = os.path.join(HERE, "..", "data", "perplexity", "tiny.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(golden, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
