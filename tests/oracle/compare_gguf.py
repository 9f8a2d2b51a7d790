#!/usr/bin/env python3
"""GGUF files that turbolm writes, read by the gguf package and by llama.cpp: its perplexity against ours.

usage: compare_gguf.py MODEL_DIR ... --bin turbolm --llama DIR --text FILE [--types F16,Q8_0,...] [--chunks N]

DIR holds llama-perplexity. The text is used without "<unk>", which Gemma's tokenizer takes for a token and llama.cpp
for text. A row for each file; status 1 when a difference is above 0.5%.
"""
import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile

from gguf import GGUFReader

BOUND = 0.005


def run(cmd):
    done = subprocess.run(cmd, capture_output=True, text=True)
    if done.returncode:
        sys.exit("%s\n%s" % (" ".join(cmd), (done.stdout + done.stderr)[-2000:]))
    return done.stdout + done.stderr


def ours(args, model, text):
    out = run([args.bin, "perplexity", "--model", model, "--data-path", text, "--sequence-length", "512",
               "--num-samples", str(args.chunks), "--score-from", "257", "--csv", "-"])
    lines = [line for line in out.splitlines() if not line.startswith("[")]
    first = next(i for i, line in enumerate(lines) if line.startswith("model,"))
    return float(next(csv.DictReader(lines[first:]))["ppl"])


def peer(args, model, text):
    out = run([os.path.join(args.llama, "llama-perplexity"), "-m", model, "-f", text, "-c", "512", "--chunks",
               str(args.chunks)])
    return float(re.search(r"Final estimate: PPL = ([0-9.]+)", out).group(1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("models", nargs="+")
    p.add_argument("--bin", required=True)
    p.add_argument("--llama", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--types", default="F16,BF16,Q8_0,Q4_0,Q4_1")
    p.add_argument("--chunks", type=int, default=4)
    args = p.parse_args()
    worst = 0
    with tempfile.TemporaryDirectory() as work:
        text = os.path.join(work, "text")
        with open(args.text, encoding="utf-8") as f, open(text, "w", encoding="utf-8") as g:
            g.write(f.read().replace("<unk>", ""))
        for model in args.models:
            for kind in args.types.split(","):
                name = os.path.join(work, "model.gguf")
                run([args.bin, "convert", "--model", model, "--to", "gguf", "--gguf-type", kind, "--out", name])
                tensors = len(GGUFReader(name).tensors)
                a, b = ours(args, name, text), peer(args, name, text)
                worst = max(worst, abs(a / b - 1))
                print("%-34s %-5s %4d tensors, perplexity turbolm %.4f llama.cpp %.4f, %+.2f%%" % (
                    os.path.basename(os.path.normpath(model)), kind, tensors, a, b, 100 * (a / b - 1)), flush=True)
                os.unlink(name)
    sys.exit(worst > BOUND)


if __name__ == "__main__":
    main()
