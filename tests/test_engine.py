"""The engine: a request's tokens depend on nothing but itself."""
import random

import pytest

import engine_api as api
import tiny_model as maker

VOCAB = 256


def make_requests(rng, n):
    out = []
    for i in range(n):
        ids = [rng.randrange(32, 127) for _ in range(rng.choice([1, 2, 5, 17, 63, 64, 65, 130, 200]))]
        settings = {"max_tokens": rng.randrange(1, 40)}
        if i % 2:
            settings |= {"temperature": 0.9, "seed": 1000 + i}
        out.append((ids, settings))
    return out


@pytest.fixture
def engine(turbolm_lib, tiny_model):
    made = []

    def make(config=None, **options):
        made.append(api.Engine(turbolm_lib, tiny_model(**(config or {})), **options))
        return made[-1]

    yield make
    for e in made:
        e.close()


def alone(engine, requests):
    e = engine
    out = []
    for ids, settings in requests:
        i = e.submit(ids, **settings)
        out.append(e.run([i])[i])
    return out


@pytest.mark.parametrize("precision", [api.EXACT, api.FAST], ids=["exact", "fast"])
@pytest.mark.parametrize("batch", [2, 3, 7, 16])
def test_company_changes_nothing(engine, batch, precision):
    rng = random.Random(batch)
    requests = make_requests(rng, 16)
    want = alone(engine(precision=precision, threads=1), requests)
    # others join and leave: at most `batch` run at once, the rest wait
    e = engine(precision=precision, threads=2, max_sequences=batch)
    ids = [e.submit(r[0], **r[1]) for r in requests]
    got = e.run(ids)
    assert [got[i] for i in ids] == want


@pytest.mark.parametrize("step", [1, 7, 64, 100])
def test_chunk_size_changes_nothing(engine, step):
    requests = make_requests(random.Random(5), 6)
    want = alone(engine(), requests)
    e = engine(step=step)
    ids = [e.submit(r[0], **r[1]) for r in requests]
    got = e.run(ids)
    assert [got[i] for i in ids] == want


def test_cancelled_neighbour_changes_nothing(engine):
    prompt = list(range(40, 100))
    want = alone(engine(), [(prompt, {"max_tokens": 60})])[0]
    e = engine()
    endless = e.submit([65], max_tokens=-1)
    first = e.submit(prompt, max_tokens=60)
    got = {first: ([], b"", None)}
    seen = 0
    while got[first][2] is None:
        ev, text = e.next()
        if ev.id == first:
            tokens, so_far, _ = got[first]
            if ev.type == api.TOKEN:
                tokens.append(ev.token)
                seen += 1
            got[first] = (tokens, so_far + text, ev.finish if ev.type == api.DONE else None)
        if seen == 20:
            e.cancel(endless)
    assert got[first] == want


def test_cancel_ends_the_request(engine):
    e = engine()
    i = e.submit([65], max_tokens=-1)
    while e.next()[0].type != api.TOKEN:
        pass
    e.cancel(i)
    while True:
        ev, _ = e.next()
        if ev.type == api.DONE:
            break
    assert ev.id == i and ev.finish == api.FINISH_CANCELLED


def test_no_tokens_asked(engine):
    e = engine()
    i = e.submit([65], max_tokens=0)
    assert e.run([i])[i] == ([], b"", api.FINISH_LENGTH)


def test_stop_text_is_not_emitted(engine):
    e = engine()
    i = e.submit([65, 66, 67], max_tokens=40)
    text = e.run([i])[i][1].decode()
    assert len(text) == 40  # every token of this model is one printable character
    stop = text[17:20]
    at = text.index(stop)
    i = e.submit([65, 66, 67], max_tokens=40, stop=[stop, "not in the text"])
    tokens, got, finish = e.run([i])[i]
    assert got.decode() == text[:at] and finish == api.FINISH_STOP


def test_partial_stop_text_is_given_back(engine):
    e = engine()
    i = e.submit([65, 66, 67], max_tokens=20)
    text = e.run([i])[i][1].decode()
    i = e.submit([65, 66, 67], max_tokens=20, stop=[text[-3:] + "\n"])
    assert e.run([i])[i][1].decode() == text


@pytest.mark.parametrize("ids, settings, message", [
    ([], {}, "prompt is empty"),
    ([260], {}, "outside the vocabulary"),
    ([-1], {}, "outside the vocabulary"),
    ([65], {"max_tokens": -2}, "max_tokens"),
    ([65], {"temperature": -1.0}, "temperature"),
    ([65], {"stop": [""]}, "stop text"),
])
def test_bad_requests(engine, ids, settings, message):
    e = engine()
    with pytest.raises(api.Failed, match=message):
        e.submit(ids, **settings)
    i = e.submit([65], max_tokens=2)  # the engine goes on
    assert len(e.run([i])[i][0]) == 2


def test_depth_is_a_context_of_zeros(engine):
    e = engine()
    i = e.submit([65, 66], max_tokens=3, depth=1000)
    assert len(e.run([i])[i][0]) == 3


# The formats need heads of 64; -1: no block stays exact for being the first.
HEADS = {"head_dim": 64}
SLIDING = HEADS | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 70}
MIXED = SLIDING | {"layer_types": ["sliding_attention", "full_attention"]}
ENCODED = ["turbo4", "affine4", "rot4+qjl"]
FORMATS = ENCODED + ["tq2", "f16:f32", "prod3;1=fp8:split2.5"]


def printable(seed, n):
    rng = random.Random(seed)
    return [rng.randrange(32, 127) for _ in range(n)]


def long_requests(rng, n):
    out = []
    for i in range(n):
        ids = [rng.randrange(32, 127) for _ in range(rng.choice([5, 63, 64, 129, 200, 300]))]
        out.append((ids, {"max_tokens": rng.randrange(10, 80)} | ({"temperature": 0.9, "seed": i} if i % 2 else {})))
    return out


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("config", [HEADS, MIXED], ids=["full", "mixed"])
def test_company_changes_nothing_encoded(engine, kv_format, config):
    requests = long_requests(random.Random(kv_format), 8)
    options = {"kv_format": kv_format, "kv_sink": -1, "config": config}
    want = alone(engine(threads=1, **options), requests)
    if kv_format != "f16:f32":
        plain = alone(engine(threads=1, config=config, kv_format="f16"), requests)
        assert want != plain  # something was encoded
    for batch in 3, 8:
        e = engine(threads=2, max_sequences=batch, **options)
        ids = [e.submit(r[0], **r[1]) for r in requests]
        got = e.run(ids)
        assert [got[i] for i in ids] == want


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("start", [0, 100], ids=["", "start100"])
def test_chunk_size_changes_nothing_encoded(engine, kv_format, start):
    requests = long_requests(random.Random(9), 4)
    options = {"kv_format": kv_format, "kv_sink": -1, "config": MIXED, "quantized_kv_start": start}
    want = alone(engine(**options), requests)
    for step in 1, 7, 64, 100:
        e = engine(step=step, **options)
        ids = [e.submit(r[0], **r[1]) for r in requests]
        got = e.run(ids)
        assert [got[i] for i in ids] == want, step


@pytest.mark.parametrize("kv_format", [None, "f16"] + FORMATS)
@pytest.mark.parametrize("config", [HEADS, SLIDING, MIXED], ids=["full", "sliding", "mixed"])
@pytest.mark.parametrize("sink", [0, -1])
def test_warm_prefixes_change_nothing(engine, kv_format, config, sink):
    text, other = printable(3, 330), printable(4, 100)
    options = {"kv_format": kv_format, "kv_sink": sink, "config": config}
    prompts = [text, text, text[:200], text + other, text[:150] + other, text[:64], text[:65] + other, text[:300]]
    prompts += [text + other, text[:150] + other + text]
    want = [alone(engine(**options), [(p, {"max_tokens": 30})])[0] for p in prompts]
    e = engine(**options)
    cached = []
    for p, w in zip(prompts, want):
        i = e.submit(p, max_tokens=30)
        assert e.run([i])[i] == w, (len(cached), cached)
        cached.append(e.cached[i])
        assert cached[-1] < len(p)
    assert cached[0] == 0
    assert cached[1] >= 320 - 64  # the same prompt again
    if config is HEADS:
        assert cached[2] >= 192 - 64 and cached[3] >= 256 and cached[4] >= 128 and cached[8] >= 384


def test_conversation_is_cached(engine):
    """A prompt that goes on where an answer ended finds the answer's tokens too."""
    for kv_format in ["f16"] + ENCODED:
        e = engine(config=HEADS, kv_format=kv_format)
        ids = printable(1, 150)
        i = e.submit(ids, max_tokens=120)
        answer = e.run([i])[i][0]
        more = ids + answer + [40, 41, 42]
        i = e.submit(more, max_tokens=40)
        got = e.run([i])[i]
        assert e.cached[i] >= 256
        assert got == alone(engine(config=HEADS, kv_format=kv_format), [(more, {"max_tokens": 40})])[0]


@pytest.mark.parametrize("kv_format", ["f16"] + ENCODED)
def test_large_limits_change_nothing(engine, kv_format):
    requests = long_requests(random.Random(2), 3)
    options = {"kv_format": kv_format, "config": MIXED}
    want = alone(engine(**options), requests)
    assert alone(engine(max_kv_size=100000, **options), requests) == want
    late = alone(engine(quantized_kv_start=100000, **options), requests)
    assert late == alone(engine(config=MIXED, kv_format="f16"), requests)


@pytest.mark.parametrize("kv_format", ENCODED)
def test_late_start_is_exact_before(engine, kv_format):
    ids = printable(1, 100)
    options = {"kv_format": kv_format, "kv_sink": -1, "config": HEADS}
    plain = alone(engine(config=HEADS, kv_format="f16"), [(ids, {"max_tokens": 150})])[0]
    late = alone(engine(quantized_kv_start=128, **options), [(ids, {"max_tokens": 150})])[0]
    assert late[0][:28] == plain[0][:28]  # up to 128 tokens
    assert late[0] != plain[0]


@pytest.mark.parametrize("size", [5, 40, 100])
def test_max_kv_size_is_a_window(engine, size):
    """Rows see the first 4 tokens and the last size - 4."""
    ids = printable(4, 150)
    want = maker.greedy(ids, 8, maker.CONFIG | HEADS, lambda row, t: (t > row - (size - 4)) | (t < 4))
    assert want != maker.greedy(ids, 8, maker.CONFIG | HEADS)
    for step in 0, 50, 1:
        e = engine(config=HEADS, max_kv_size=size, step=step)
        i = e.submit(ids, max_tokens=8)
        assert e.run([i])[i][1].decode() == want
    e = engine(config=HEADS, max_kv_size=size, kv_format="turbo4")
    i = e.submit(ids, max_tokens=60)
    again = e.submit(ids, max_tokens=60)
    got = e.run([i, again])
    assert len(got[i][0]) == 60 and got[i] == got[again]
