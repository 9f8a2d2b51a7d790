"""Goldens of a real model: what transformers computes from the GGUF file that tests fetch.

    python make_real_goldens.py --models DIR > ../data/real/smollm2.json

Weights are dequantised to float32 by transformers. Stored: token ids of a text, of each
row the logits of its four best tokens and of 24 tokens spread over the vocabulary, 64
greedy tokens after the first 32, and the greedy answer to a chat prompt with the gap
between the two best logits of every step. Needs torch, transformers, gguf.
"""
import argparse
import json
import sys
from importlib.metadata import version

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FILE = "smollm2-135m-instruct.Q4_1.gguf"
TEXT = (
    "The tower was built between 1887 and 1889 as the entrance to a fair. It is 330 metres tall, about the height "
    "of a building of 81 storeys.\n\ndef area(r):\n    return 3.14159 * r ** 2\n\nDuring its construction it passed "
    "the monument that had been the tallest structure made by man, a title it held for 41 years."
)
QUESTION = "Name three rivers in Europe."


def greedy(model, ids, n):
    out = model.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False, return_dict_in_generate=True,
                         output_logits=True)
    best = [step[0].float().topk(2).values for step in out.logits]
    return out.sequences[0, len(ids):].tolist(), [round(float(b[0] - b[1]), 5) for b in best]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--models", required=True)
    args = ap.parse_args()
    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(args.models, gguf_file=FILE, dtype=torch.float32)
    tok = AutoTokenizer.from_pretrained(args.models, gguf_file=FILE)
    ids = tok(TEXT, add_special_tokens=False).input_ids
    logits = model(torch.tensor([ids])).logits[0]
    columns = [(i * 2053 + 17) % logits.shape[1] for i in range(24)]
    rows = []
    for row in logits:
        top = row.topk(4)
        rows.append({"top": top.indices.tolist(), "values": [round(float(v), 5) for v in top.values],
                     "spread": [round(float(row[c]), 5) for c in columns]})
    prompt = tok.apply_chat_template([{"role": "user", "content": QUESTION}], add_generation_prompt=True,
                                     tokenize=False)
    chat = tok(prompt, add_special_tokens=False).input_ids
    more, gaps = greedy(model, ids[:32], 64)
    answer, answer_gaps = greedy(model, chat, 48)
    json.dump({
        "file": FILE, "versions": {p: version(p) for p in ("transformers", "torch", "gguf")},
        "ids": ids, "columns": columns, "rows": rows, "greedy": more, "greedy_gaps": gaps,
        "question": QUESTION, "chat_ids": chat, "answer": tok.decode(answer, skip_special_tokens=True),
        "answer_ids": answer, "answer_gaps": answer_gaps,
    }, sys.stdout, indent=0)


if __name__ == "__main__":
    main()
