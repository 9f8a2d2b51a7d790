"""Makes tests/data/tokenizer: small tokenizers trained here with the HF
tokenizers library (0.23.3), and what it gives for hard lines. Lines of a
.golden file: text in hex | ids | decoding in hex (= for the text) | decoding
without special tokens in hex (= for the one before).

    make_tokenizer_goldens.py OUT_DIR [SMOLLM2_DIR]"""
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, os.path.dirname(__file__))
import tokenizer_corpus as corpus

SPECIAL = [AddedToken("<unk>", normalized=False), AddedToken("<s>", normalized=False),
           AddedToken("</s>", normalized=False)]
GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+")


def train_lines():
    return [s for s in corpus.SAMPLES if s] * 3 + list(corpus.mixed(300, seed=9))


def level():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GPT4), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(train_lines(), trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    t.add_tokens([AddedToken("word", single_word=True, normalized=True), AddedToken("<L>", lstrip=True),
                  AddedToken("<R>", rstrip=True, normalized=False)])
    return t


def spm():
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    t.train_from_iterator(train_lines(), trainers.BpeTrainer(
        vocab_size=900, special_tokens=SPECIAL + bytes_, limit_alphabet=200, show_progress=False))
    t.pre_tokenizer = None
    # The byte tokens are the model's alone.
    import json
    d = json.loads(t.to_str())
    d["added_tokens"] = [a for a in d["added_tokens"] if not a["content"].startswith("<0x")]
    t = Tokenizer.from_str(json.dumps(d))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def unigram():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(),
                                         normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    few = [s for s in corpus.SAMPLES if s and max(s) < "\u0500"] * 4
    t.train_from_iterator(few, trainers.UnigramTrainer(
        vocab_size=600, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False))
    return t


def wordpiece():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(train_lines(), trainers.WordPieceTrainer(
        vocab_size=700, limit_alphabet=300, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False))
    t.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return t


def lines(n_mixed, n_runs):
    out = [s for s in corpus.SAMPLES] + list(corpus.mixed(n_mixed, seed=3))
    runs = list(corpus.runs())
    out += random.Random(2).sample([r for r in runs if len(r) < 140], n_runs)
    out += ["a word words word-word sword word", "x  <L>  y <R>  z<R><L> <L><L>", "<s>a</s> <unk> <s></s>"]
    return out


def write(path, t, texts):
    with open(path, "w", encoding="ascii") as f:
        for s in texts:
            ids = t.encode(s, add_special_tokens=False).ids
            whole = t.decode(ids, skip_special_tokens=False)
            short = t.decode(ids, skip_special_tokens=True)
            f.write("|".join((s.encode().hex(), " ".join(map(str, ids)), "=" if whole == s else whole.encode().hex(),
                              "=" if short == whole else short.encode().hex())) + "\n")


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    for make in (level, spm, unigram, wordpiece):
        t = make()
        t.save(os.path.join(out, make.__name__ + ".json"), pretty=False)
        write(os.path.join(out, make.__name__ + ".golden"), t, lines(40, 20))
    if len(sys.argv) > 2:
        t = Tokenizer.from_file(os.path.join(sys.argv[2], "tokenizer.json"))
        write(os.path.join(out, "smollm2.golden"), t, lines(110, 60))


main()
