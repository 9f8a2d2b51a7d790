"""Makes tests/data/sampler/{rng,cases}.inc: random numbers and sampled tokens of the original library.

Needs mlx[cpu]==0.32.4 and mlx-lm==0.31.3. (mlx draws from one distribution by
inverse CDF since 0.32.1. The filters are those of mlx-lm 0.31.3; 0.32.0 changed
top-p to a sum from the most likely token down, another rounding and other ties.)

Logits are a hash of (case, step), so a case stores only its settings and the
tokens and log probabilities that came out:

    seed = FNV-1a of "<case>.<step>"; x_i = splitmix64 finaliser of seed + (i+1) * 0x9E3779B97F4A7C15
    v_i  = (x_i >> 40) * 2^-23 - 1;  logit_i = float32(scale * v_i), rounded to multiples of `grid` if that is > 0
    prompt, bias tokens, kept ids: see hashed() below

A second implementation of the definition in numpy runs beside mlx-lm, and both
must agree. It alone makes the cases named tie_* and tiny_*, for which mlx-lm has
no answer to compare with: equal logits at the edge of top-k and of min-p's
minimum are left to a partial sort there, and a top-p so small that 1 - p rounds
to 1 removes every token. Penalties get the whole prompt and output, as mlx-lm's
batches have it; its single-sequence path drops all of the prompt but one token.

    python tests/oracle/make_sampler_goldens.py
"""

import math
import random
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import make_logits_processors, make_sampler

OUT = Path(__file__).resolve().parent.parent / "data" / "sampler"
F = np.float32
DEFAULT = dict(vocab=100, scale=8.0, grid=0.0, prompt=6, draws=24, seed=0, temp=1.0, top_p=0.0, min_p=0.0, min_keep=1,
               top_k=0, xtc_p=0.0, xtc_t=0.1, keep=0, bias=0, rep=0.0, rep_n=20,
               pres=0.0, pres_n=20, freq=0.0, freq_n=20)


def hash_stream(name, n):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.uint64(h) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_units(name, n):
    return (hash_stream(name, n) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0


def hash_ids(name, n, vocab):
    return [int(t) for t in (hash_stream(name, n) >> np.uint64(40)) % np.uint64(vocab)]


def hashed(case, name):
    """Prompt, biases and kept ids of a case. Biased and kept ids are distinct."""
    prompt = hash_ids(f"{name}.prompt", case["prompt"], case["vocab"])
    start = hash_ids(f"{name}.bias", 1, case["vocab"])[0]
    values = (4 * hash_units(f"{name}.value", case["bias"])).astype(F)
    bias = {(start + 3 * j) % case["vocab"]: float(values[j]) for j in range(case["bias"])}
    start = hash_ids(f"{name}.keep", 1, case["vocab"])[0]
    keep = [(start + 3 * j) % case["vocab"] for j in range(case["keep"])]
    return prompt, bias, keep


def row(case, name, step):
    x = case["scale"] * hash_units(f"{name}.{step}", case["vocab"])
    if case["grid"]:
        x = np.floor(x / case["grid"]) * case["grid"]
    return x.astype(F)


def log_probabilities(x):
    w = np.exp(x - x.max())
    return x - (np.log(np.cumsum(w)[-1]) + x.max())


def best_first(x):
    return np.lexsort((np.arange(len(x)), -x))


def filter_row(x, c, keep):
    if 0 < c["top_p"] < 1:
        order = np.argsort(x, kind="stable")
        above = np.cumsum(np.exp(x[order])) > F(1 - c["top_p"])
        above[-1] = True
        x = x.copy()
        x[order[~above]] = -np.inf
    if c["min_p"]:
        gone = x < x.max() + F(math.log(c["min_p"]))
        gone[best_first(x)[: c["min_keep"]]] = False
        x = np.where(gone, F(-np.inf), x)
    if c["xtc_p"] > 0:
        apply = mx.random.uniform(0, 1).item() <= F(c["xtc_p"])
        w = np.exp(x - x.max())
        p = w * (F(1) / np.cumsum(w)[-1])
        high = p[p > F(c["xtc_t"])]
        gone = p > (high.min() if len(high) else np.inf)
        gone[keep] = False
        if apply:
            x = np.where(gone, F(-np.inf), x)
    if c["top_k"]:
        x = x.copy()
        x[best_first(x)[c["top_k"] :]] = -np.inf
    return x


def numpy_step(x, c, history, bias, keep):
    x = x.copy()
    for token, b in bias.items():
        x[token] += F(b)
    window = lambda n: history[-n:] if n else history
    if c["rep"]:
        for t in set(window(c["rep_n"])):
            x[t] = x[t] * F(c["rep"]) if x[t] < 0 else x[t] / F(c["rep"])
    if c["pres"]:
        for t in set(window(c["pres_n"])):
            x[t] -= F(c["pres"])
    if c["freq"]:
        for t in window(c["freq_n"]):
            x[t] -= F(c["freq"])
    logprobs = log_probabilities(x)
    if c["temp"] == 0:
        token = int(logprobs.argmax())
    else:
        y = filter_row(logprobs, c, keep) * F(1.0 / c["temp"])
        cdf = np.cumsum(np.exp(y - y.max()))
        u = F(mx.random.uniform(shape=()).item()) * cdf[-1]
        token = int(np.searchsorted(np.concatenate([[F(0)], cdf[:-1]]), u, "right")) - 1
    return token, float(logprobs[token])


def run_numpy(c, name):
    prompt, bias, keep = hashed(c, name)
    mx.random.seed(c["seed"])
    out, history = [], list(prompt)
    for step in range(c["draws"]):
        out.append(numpy_step(row(c, name, step), c, history, bias, keep))
        history.append(out[-1][0])
    return out


def accept_bool(put_along_axis=mx.put_along_axis):
    """mlx-lm 0.31.3 passes a Python bool, which mlx 0.32 no longer takes."""
    return lambda a, i, v, axis: put_along_axis(a, i, mx.array(v) if isinstance(v, bool) else v, axis)


def run_mlx(c, name):
    prompt, bias, keep = hashed(c, name)
    sampler = make_sampler(c["temp"], c["top_p"], c["min_p"], c["min_keep"], c["top_k"], c["xtc_p"], c["xtc_t"], keep)
    processors = make_logits_processors(bias, c["rep"], c["rep_n"], c["pres"], c["pres_n"], c["freq"], c["freq_n"])
    mx.random.seed(c["seed"])
    out, history = [], list(prompt)
    for step in range(c["draws"]):
        logits = mx.array(row(c, name, step))[None]
        for p in processors:
            logits = p(mx.array(history, dtype=mx.int32), logits)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        token = int(sampler(logprobs).item())
        out.append((token, logprobs[0, token].item()))
        history.append(token)
    return out


def make_cases():
    rng = random.Random(20240917)
    cases = {}

    def add(name, **settings):
        c = {**DEFAULT, "seed": rng.getrandbits(64 if len(cases) % 3 == 0 else 31), **settings}
        for k in ("temp", "top_p", "min_p", "xtc_p", "xtc_t", "rep", "pres", "freq", "scale", "grid"):
            c[k] = float(F(c[k]))
        cases[name] = c

    add("greedy", temp=0)
    add("greedy_penalties", temp=0, rep=1.3, pres=0.5, freq=0.25, bias=4, scale=2)
    for t in (0.1, 0.7, 1.0, 2.0):
        add(f"temp_{t}", temp=t)
    for p in (0.01, 0.5, 0.9, 0.999):
        add(f"top_p_{p}", top_p=p, temp=0.8)
    for p in (0.001, 0.05, 0.3, 1.0):
        add(f"min_p_{p}", min_p=p)
    add("min_keep", min_p=0.9, min_keep=5)
    for k in (1, 5, 99):
        add(f"top_k_{k}", top_k=k)
    for t in (0.0, 0.02, 0.1, 0.5):
        add(f"xtc_{t}", xtc_p=1, xtc_t=t, vocab=60)
        add(f"xtc_keep_{t}", xtc_p=0.6, xtc_t=t, vocab=50, keep=8)
    for n in (0, 1, 3, 40):
        add(f"window_{n}", rep=1.5, rep_n=n, pres=0.7, pres_n=n, freq=0.3, freq_n=n, vocab=50, scale=1, prompt=9)
    add("no_prompt", rep=2, prompt=0, vocab=50, scale=2)
    add("reward", rep=0.8, pres=-0.5, freq=-0.2, vocab=50, scale=2)
    on = lambda p, value, off: value if rng.random() < p else off
    for i in range(90):
        vocab = rng.randrange(50, 300)
        add(f"mix_{i}", vocab=vocab, scale=rng.choice([2, 5, 9]), prompt=rng.randrange(0, 30),
            temp=rng.choice([0.2, 0.6, 0.8, 1, 1.3]), top_p=on(0.5, rng.choice([0.3, 0.8, 0.9, 0.95, 0.99]), 0),
            min_p=on(0.4, rng.choice([0.02, 0.05, 0.1, 0.5]), 0), min_keep=rng.choice([1, 1, 3, 10]),
            top_k=on(0.4, rng.choice([2, 10, 40]), 0), xtc_p=on(0.4, rng.choice([0.3, 0.5, 1]), 0),
            xtc_t=rng.choice([0.01, 0.05, 0.1]), keep=rng.choice([0, 4]), bias=on(0.3, 6, 0),
            rep=on(0.4, rng.choice([1.1, 1.5, 0.9]), 0), rep_n=rng.choice([0, 2, 20]),
            pres=on(0.4, rng.choice([0.3, 1.5, -0.5]), 0), pres_n=rng.choice([0, 5, 20]),
            freq=on(0.4, rng.choice([0.1, 0.6, -0.2]), 0), freq_n=rng.choice([0, 7, 20]))
    for p in (0.5, 0.9, 0.97):
        add(f"wide_{p}", vocab=262144, scale=12, draws=4, temp=1, top_p=p)
    add("wide_temp", vocab=151936, scale=10, draws=6, temp=1.2)
    add("wide_mix", vocab=151936, scale=10, draws=4, top_p=0.95, min_p=0.05, top_k=40, xtc_p=0.5, temp=0.7, rep=1.1)
    add("wide_top_k", vocab=50257, scale=6, draws=6, top_k=200)
    for i in range(12):
        add(f"tie_{i}", vocab=rng.randrange(50, 300), scale=4, grid=rng.choice([0.5, 1, 4]),
            temp=rng.choice([0, 0.7, 1]), top_p=on(0.5, rng.choice([0.5, 0.9]), 0),
            min_p=on(0.5, 0.6, 0), min_keep=rng.choice([1, 7]),
            top_k=on(0.6, rng.choice([3, 20]), 0), xtc_p=on(0.3, 0.5, 0), xtc_t=0.01)
    add("tie_wide_top_k", vocab=20000, scale=4, grid=0.125, draws=6, top_k=100)
    add("tiny_top_p", top_p=1e-9)
    add("tiny_top_p_tie", top_p=1e-9, scale=4, grid=1)
    return cases


def literal(x):
    text = "%.9g" % F(x)
    return text + "f" if "." in text or "e" in text else text


def write_cases():
    cases, lines, total = make_cases(), [], 0
    for name, c in cases.items():
        out = run_numpy(c, name)
        if not name.startswith(("tie_", "tiny_")):
            other = run_mlx(c, name)
            assert [t for t, _ in out] == [t for t, _ in other], name
            out = other
        total += len(out)
        settings = ", ".join(f".{k} = {c[k]}u" if k == "seed" else f".{k} = {literal(c[k])}"
                             for k in DEFAULT if c[k] != 0)
        tokens = ", ".join("{%d, %s}" % (t, literal(p)) for t, p in out)
        lines.append(f'{{.name = "{name}", {settings}, .out = {{{tokens}}}}},\n')
    head = (f"/* Made by tests/oracle/make_sampler_goldens.py with mlx {mx.__version__} and mlx-lm 0.31.3.\n"
            f" * {len(cases)} cases, {total} tokens with their log probabilities. */\n")
    (OUT / "cases.inc").write_text(head + "".join(lines))
    print(len(cases), "cases,", total, "tokens")


def write_rng():
    lines = [f"/* Made by tests/oracle/make_sampler_goldens.py with mlx {mx.__version__}.\n"
             " * One row per draw: seed, count, first values of a stream's only draw. */\n"]
    for seed in (0, 1, 42, 123, 0xFFFFFFFF, 0x123456789ABCDEF0, 2**64 - 1):
        for n in (1, 2, 3, 4, 5, 7, 8, 33):
            mx.random.seed(seed)
            u = [literal(v) for v in mx.random.uniform(shape=(n,)).tolist()]
            mx.random.seed(seed)
            k = mx.random.randint(-1000, 50000, (n,)).tolist()
            pick = sorted({0, 1, n // 2, n - 1} & set(range(n)))
            row = ", ".join("{%d, %s, %d}" % (i, u[i], k[i]) for i in pick)
            lines.append(f"{{{seed}u, {n}, {len(pick)}, {{{row}}}}},\n")
    (OUT / "rng.inc").write_text("".join(lines))


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    mx.disable_compile()
    mx.put_along_axis = accept_bool()
    OUT.mkdir(parents=True, exist_ok=True)
    write_rng()
    write_cases()
