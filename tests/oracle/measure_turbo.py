#!/usr/bin/env python3
"""Measures mode turbo against affine at equal bits per weight: converts models and compares them with the original.

usage: measure_turbo.py --bin turbolm --text FILE MODEL ... [--work DIR] [--samples N] [--bits 4 3]

Prints a table in Markdown. turbolm has to know `compare`. turbo has groups of 32, affine of 64: with a 16-bit scale,
and a 16-bit scale and offset, both have bits + 0.5 per weight.
"""
import argparse
import csv
import os
import re
import shutil
import subprocess
import tempfile


def main():
    p = argparse.ArgumentParser()
    p.add_argument("models", nargs="+")
    p.add_argument("--bin", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--work", default=tempfile.gettempdir())
    p.add_argument("--samples", default="-1")
    p.add_argument("--bits", nargs="+", default=["4", "3"])
    a = p.parse_args()
    print("| model | format | bits per weight | perplexity | KL mean | KL 99% | top-1 |\n|---|---|---|---|---|---|---|")
    for model in a.models:
        for bits in a.bits:
            for mode, group in (("affine", "64"), ("turbo", "32")):
                out = os.path.join(a.work, "measure-%s%s" % (mode, bits))
                shutil.rmtree(out, ignore_errors=True)
                got = subprocess.run([a.bin, "convert", "--model", model, "--out", out, "-q", "--q-mode", mode,
                                      "--q-bits", bits, "--q-group-size", group],
                                     check=True, capture_output=True, text=True).stdout
                width = re.search(r"with ([0-9.]+) bits per weight", got).group(1)
                got = subprocess.run([a.bin, "compare", model, out, "--data-path", a.text, "--sequence-length", "512",
                                      "--num-samples", a.samples, "--csv", "-"],
                                     check=True, capture_output=True, text=True).stdout
                r = list(csv.DictReader(got.splitlines()))[0]
                print("| %s | %s%s | %s | %s (%s) | %s | %s | %s |" % (
                    os.path.basename(os.path.normpath(model)), mode, bits, width, r["ppl_b"], r["ppl_a"], r["kl_mean"],
                    r["kl_p99"], r["top1"]), flush=True)
                shutil.rmtree(out)


if __name__ == "__main__":
    main()
