"""The engine: a request's tokens depend on nothing but itself."""
import random

import pytest

import engine_api as api

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

    def make(**options):
        made.append(api.Engine(turbolm_lib, tiny_model(), **options))
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
