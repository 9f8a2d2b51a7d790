"""Makes tests/data/tokenizer: small tokenizers trained here with the HF
tokenizers library (0.23.3), and what it gives for hard lines. Lines of a
.golden file: text in hex | ids | decoding in hex (= for the text) | decoding
without special tokens in hex (= for the one before).

    make_tokenizer_goldens.py OUT_DIR [SMOLLM2_DIR]"""
import json
import os
import random
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
import tiny_model
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


def wordlevel():
    t = Tokenizer(models.WordLevel(unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated"),
                                               pre_tokenizers.Digits(individual_digits=False)])
    t.train_from_iterator(train_lines(), trainers.WordLevelTrainer(vocab_size=500, special_tokens=SPECIAL,
                                                                   show_progress=False))
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    return t


def suffix():
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=False))
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                         normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.Whitespace()])
    t.decoder = decoders.BPEDecoder()
    t.train_from_iterator(train_lines(), trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL, limit_alphabet=250, end_of_word_suffix="</w>", show_progress=False))
    return t


def fallback():
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    few = [s.replace(" ", "▁") for s in train_lines()]
    t.train_from_iterator(few, trainers.BpeTrainer(
        vocab_size=800, special_tokens=SPECIAL + [f"<0x{b:02X}>" for b in range(256)], limit_alphabet=150,
        show_progress=False))
    d = json.loads(t.to_str())
    d["added_tokens"] = [a for a in d["added_tokens"] if not a["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(d))


RULES = {"ａ": "a", "ﬁ": "fi", "①": "1", "e\u0301": "é", "\t": " ", "\n": " ", "\u00a0": " ", "\u3000": " ",
         "\u200b": "",
         "\r": "", "\u212b": "\u00c5", "…": "..."}


def sentencepiece(out, **options):
    """Trains a model without sentencepiece's own large character map."""
    import sentencepiece as spm
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "rules.tsv"), "w") as f:
            for a, b in RULES.items():
                f.write(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n")
        with open(os.path.join(d, "text"), "w", encoding="utf-8") as f:
            f.write("\n".join(s.replace("\n", " ").replace("\0", "") for s in train_lines() if s and max(s) < "\u0500"))
        if options.pop("rules", False):
            options["normalization_rule_tsv"] = os.path.join(d, "rules.tsv")
        else:
            options["normalization_rule_name"] = "identity"
        spm.SentencePieceTrainer.train(input=os.path.join(d, "text"), model_prefix=os.path.join(d, "m"), minloglevel=2,
                                       character_coverage=.98, **options)
        with open(os.path.join(d, "m.model"), "rb") as f:
            data = f.read()
    with open(out, "wb") as f:
        f.write(data)


def t5():
    """As transformers builds T5 and XLM-R: a character map, then words with U+2581."""
    from transformers.convert_slow_tokenizer import import_protobuf
    with tempfile.TemporaryDirectory() as d:
        sentencepiece(os.path.join(d, "m"), model_type="unigram", vocab_size=280, rules=True)
        proto = import_protobuf().ModelProto()
        with open(os.path.join(d, "m"), "rb") as f:
            proto.ParseFromString(f.read())
    t = Tokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=0))
    t.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    t.decoder = decoders.Metaspace()
    t.add_special_tokens(SPECIAL)
    t.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return t


def model_directories(out):
    """A SentencePiece model alone, and a tiktoken file, each with its goldens."""
    import base64

    import tiktoken
    from transformers import TokenizersBackend
    folder = os.path.join(out, "sentencepiece")
    os.makedirs(folder, exist_ok=True)
    sentencepiece(os.path.join(folder, "tokenizer.model"), model_type="bpe", vocab_size=800, byte_fallback=True,
                  user_defined_symbols=["<sep>", "ab"])
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "TokenizersBackend", "bos_token": "<s>", "eos_token": "</s>",
                   "unk_token": "<unk>"}, f)
    t = TokenizersBackend.from_pretrained(folder)._tokenizer
    write(os.path.join(out, "sentencepiece.golden"), t, lines(40, 20))

    folder = os.path.join(out, "tiktoken")
    os.makedirs(folder, exist_ok=True)
    d = json.loads(level().to_str())
    byte = {c: b for b, c in tiny_model.byte_characters().items()}
    ranks = {bytes(byte[c] for c in token): i - 3 for token, i in d["model"]["vocab"].items() if i >= 3}
    names = {len(ranks): "[BOS]", len(ranks) + 1: "[EOS]", len(ranks) + 4: "<|im_end|>"}
    with open(os.path.join(folder, "tiktoken.model"), "wb") as f:
        f.write(b"".join(base64.b64encode(k) + b" %d\n" % i for k, i in ranks.items()))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
                   "added_tokens_decoder": {i: {"content": s, "special": True} for i, s in names.items()}}, f)
    n = len(ranks)
    special = {names.get(i, "<|reserved_token_%d|>" % i): i for i in range(n, n + 258)}
    encoding = tiktoken.Encoding("golden", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    write(os.path.join(out, "tiktoken.golden"), Tiktoken(encoding, special), lines(40, 20))


HAN = r"&&[^\p{Han}]]"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}" + HAN, r"[\p{Ll}\p{Lm}\p{Lo}\p{M}" + HAN
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + SHORT,
                 r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + SHORT, r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                 r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


class Tiktoken:
    """tiktoken with the methods of the library that write() uses."""

    def __init__(self, encoding, special):
        self.encoding, self.special = encoding, set(special.values())

    def encode(self, text, add_special_tokens):
        del add_special_tokens
        self.ids = self.encoding.encode(text, allowed_special="all")
        return self

    def decode(self, ids, skip_special_tokens):
        kept = [i for i in ids if not (skip_special_tokens and i in self.special)]
        return self.encoding.decode_bytes(kept).decode("utf-8", "replace")


def splittings(out):
    """`pre` names of GGUF files on the vocabulary of level.json: name|text in hex|ids."""
    import compare_pre
    d = json.loads(level().to_str())
    texts = corpus.SAMPLES[:24:6] + list(corpus.code(1)) + [
        "1234567 12,345 123abc ½12 ١٢٣٤٥ x1 2", "  \n \n\n a\r\n\r\n  b   ", "don't I'LL we've 'tis o'clock's",
        "漢字kana한글ไทย"]
    seen = set()
    with open(os.path.join(out, "pre.golden"), "w", encoding="ascii") as f:
        for name, flags, steps in compare_pre.rows():
            key = repr((flags, steps))
            if "PRE_MARKS" in flags or key in seen:
                continue
            seen.add(key)
            form = [x[4:] for x in flags if x in ("PRE_NFC", "PRE_NFKC")]
            d.update(added_tokens=[], post_processor=None, normalizer={"type": form[0]} if form else None,
                     pre_tokenizer=compare_pre.pretokenizer(steps))
            d["model"]["ignore_merges"] = "PRE_WHOLE" in flags
            t = Tokenizer.from_str(json.dumps(d))
            for s in texts:
                f.write("%s|%s|%s\n" % (name, s.encode().hex(), " ".join(map(str, t.encode(s).ids))))


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
    model_directories(out)
    splittings(out)
    for make in (level, spm, unigram, wordpiece, wordlevel, suffix, fallback, t5):
        t = make()
        t.save(os.path.join(out, make.__name__ + ".json"), pretty=False)
        write(os.path.join(out, make.__name__ + ".golden"), t, lines(40, 20))
    if len(sys.argv) > 2:
        t = Tokenizer.from_file(os.path.join(sys.argv[2], "tokenizer.json"))
        write(os.path.join(out, "smollm2.golden"), t, lines(110, 60))


main()
