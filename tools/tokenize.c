/* turbolm tokenize: text to token ids and back. Opens the tokenizer alone, no
 * weights. With --jsonl a line is a request and its answer is flushed, so that
 * another program can talk to this one through pipes.
 *
 * A line's JSON is read here, not by cJSON, whose strings end at U+0000. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "out.h"
#include "run.h"

enum { MODEL, NO_SPECIAL, DECODE, JSONL, FILE_NAME, TEXT, N_OPTIONS };

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = {"--model", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,
               "model directory, tokenizer.json or GGUF file; only the tokenizer is read"},
    [NO_SPECIAL] = {"--no-special", NULL, CLI_FLAG, 0, NULL, NULL, NULL, NULL,
                    "add no special tokens around the text; with --decode: leave special tokens out of the text"},
    [DECODE] = {"--decode", NULL, CLI_FLAG, 0, NULL, NULL, NULL, NULL, "turn token ids into text"},
    [JSONL] = {"--jsonl", NULL, CLI_FLAG, 0, NULL, NULL, NULL, NULL,
               "each line of input is a JSON string, its line of output a JSON array of ids; with --decode the "
               "reverse"},
    [FILE_NAME] = {"--file", "-f", CLI_TEXT, 0, NULL, NULL, NULL, NULL, "file to read, byte for byte"},
    [TEXT] = {"TEXT", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL,
              "the input itself; without TEXT and --file standard input is read"},
};

extern const struct command tokenize_command;

struct bytes {
    char *data;
    size_t n, room;
};

static void bytes_add(struct bytes *b, const char *data, size_t n)
{
    if (b->room - b->n < n) {
        size_t room = b->room < 256 ? 256 : b->room;
        while (room - b->n < n)
            room *= 2;
        b->data = tool_grow(b->data, room, 1);
        b->room = room;
    }
    if (n > 0)
        memcpy(b->data + b->n, data, n);
    b->n += n;
}

/* Where lines come from: a stream, or a text that is all there. */
struct input {
    const char *name; /* for messages */
    FILE *stream;     /* NULL: text */
    const char *text;
    struct bytes line;
};

static int read_failed(const struct input *in)
{
    out_error("cannot read %s: %s", in->name, strerror(errno));
    return 1;
}

/* All that is left into in->line; 0, or the exit status after a message. */
static int read_all(struct input *in)
{
    char part[65536];
    size_t n;
    if (in->stream == NULL) {
        bytes_add(&in->line, in->text, strlen(in->text));
        return 0;
    }
    while ((n = fread(part, 1, sizeof part, in->stream)) > 0)
        bytes_add(&in->line, part, n);
    return ferror(in->stream) ? read_failed(in) : 0;
}

/* The next line without its end into in->line; -1: one is there, else the exit status. */
static int read_line(struct input *in)
{
    in->line.n = 0;
    if (in->stream == NULL) {
        size_t n = strcspn(in->text, "\n");
        if (*in->text == '\0')
            return 0;
        bytes_add(&in->line, in->text, n);
        in->text += n + (in->text[n] == '\n');
        return -1;
    }
    int c = getc(in->stream);
    if (c == EOF)
        return ferror(in->stream) ? read_failed(in) : 0;
    for (; c != EOF && c != '\n'; c = getc(in->stream)) {
        char byte = (char)c;
        bytes_add(&in->line, &byte, 1);
    }
    return ferror(in->stream) ? read_failed(in) : -1;
}

/* JSON ---------------------------------------------------------------------- */

struct reader {
    const char *p, *end;
};

static void skip_space(struct reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\r' || *r->p == '\n'))
        r->p++;
}

static int take(struct reader *r, char c)
{
    skip_space(r);
    if (r->p == r->end || *r->p != c)
        return 0;
    r->p++;
    return 1;
}

static int at_end(struct reader *r)
{
    skip_space(r);
    return r->p == r->end;
}

/* Four hexadecimal digits, or -1. */
static long take_hex(struct reader *r)
{
    long value = 0;
    if (r->end - r->p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *at = r->p[i] != '\0' ? strchr(digits, r->p[i]) : NULL;
        if (at == NULL)
            return -1;
        value = value * 16 + (at - digits) % 16;
    }
    r->p += 4;
    return value;
}

static void add_character(struct bytes *b, long c)
{
    char s[4];
    int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6)
        s[i] = (char)(0x80 | (c & 0x3f));
    s[0] = (char)(n == 1 ? c : (0xf00 >> n & 0xff) | c);
    bytes_add(b, s, (size_t)n);
}

/* \uXXXX, a pair of surrogates being one character. A surrogate alone stands
 * for no character: U+FFFD, as invalid UTF-8 would become. */
static int take_unicode(struct reader *r, struct bytes *out)
{
    long c = take_hex(r);
    if (c < 0)
        return 0;
    if (c >= 0xd800 && c < 0xdc00 && r->end - r->p >= 6 && r->p[0] == '\\' && r->p[1] == 'u') {
        struct reader next = {r->p + 2, r->end};
        long low = take_hex(&next);
        if (low >= 0xdc00 && low < 0xe000) {
            c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
            r->p = next.p;
        }
    }
    add_character(out, c >= 0xd800 && c < 0xe000 ? 0xfffd : c);
    return 1;
}

/* NULL, or what is wrong. */
static const char *parse_string(const struct bytes *line, struct bytes *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    struct reader r = {line->data, line->data + line->n};
    out->n = 0;
    if (!take(&r, '"'))
        return "expected a JSON string";
    while (r.p < r.end && *r.p != '"') {
        char c = *r.p++;
        if ((unsigned char)c < 0x20)
            return "a control character in a JSON string";
        if (c != '\\') {
            const char *plain = r.p - 1;
            while (r.p < r.end && *r.p != '"' && *r.p != '\\' && (unsigned char)*r.p >= 0x20)
                r.p++;
            bytes_add(out, plain, (size_t)(r.p - plain));
            continue;
        }
        c = r.p < r.end ? *r.p++ : '\0';
        const char *at = c != '\0' ? strchr(from, c) : NULL;
        if (at != NULL)
            bytes_add(out, to + (at - from), 1);
        else if (c != 'u' || !take_unicode(&r, out))
            return "an invalid escape in a JSON string";
    }
    if (!take(&r, '"'))
        return "a JSON string without its end";
    return at_end(&r) ? NULL : "text after the JSON string";
}

static void print_string(const char *text, size_t n)
{
    out_write("\"", 1);
    for (size_t i = 0; i < n;) {
        size_t plain = i;
        while (i < n && (unsigned char)text[i] >= 0x20 && text[i] != '"' && text[i] != '\\')
            i++;
        out_write(text + plain, i - plain);
        if (i == n)
            break;
        static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
        const char *at = text[i] != '\0' ? strchr(from, text[i]) : NULL;
        if (at != NULL)
            out_print("\\%c", to[at - from]);
        else
            out_print("\\u%04x", (unsigned char)text[i]);
        i++;
    }
    out_write("\"\n", 2);
}

/* Ids ----------------------------------------------------------------------- */

struct ids {
    int32_t *at;
    size_t n, room;
};

static void ids_add(struct ids *l, int32_t id)
{
    if (l->n == l->room) {
        l->room = l->room > 0 ? 2 * l->room : 256;
        l->at = tool_grow(l->at, l->room, sizeof *l->at);
    }
    l->at[l->n++] = id;
}

/* An id of the vocabulary as digits, in JSON without zeros before them; 0 when it is none. */
static int take_id(struct reader *r, int32_t size, int json, struct ids *out)
{
    int64_t id = 0;
    const char *from = r->p;
    for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++)
        id = id < INT32_MAX ? id * 10 + (*r->p - '0') : id;
    if (r->p == from || id >= size || (json && *from == '0' && r->p - from > 1))
        return 0;
    ids_add(out, (int32_t)id);
    return 1;
}

static const char *parse_array(const struct bytes *line, int32_t size, struct ids *out)
{
    struct reader r = {line->data, line->data + line->n};
    if (!take(&r, '['))
        return "expected a JSON array of token ids";
    for (int first = 1; !take(&r, ']'); first = 0) {
        if (!first && !take(&r, ','))
            return "a JSON array without its end";
        skip_space(&r);
        if (!take_id(&r, size, 1, out))
            return "found what is not a token id of this vocabulary";
    }
    return at_end(&r) ? NULL : "text after the JSON array";
}

static const char *parse_plain(const struct bytes *text, int32_t size, struct ids *out)
{
    struct reader r = {text->data, text->data + text->n};
    for (;;) {
        const char *from = r.p;
        while (r.p < r.end && (*r.p == ',' || *r.p == ' ' || (*r.p >= '\t' && *r.p <= '\r')))
            r.p++;
        if (r.p == r.end)
            return NULL;
        if ((from == r.p && r.p != text->data) || !take_id(&r, size, 0, out))
            return "found what is not a token id of this vocabulary";
    }
}

static void print_ids(const int32_t *ids, size_t n, int json)
{
    char text[16];
    if (json)
        out_write("[", 1);
    for (size_t i = 0; i < n; i++) {
        int len = snprintf(text, sizeof text, "%s%d", i == 0 ? "" : json ? ", " : " ", (int)ids[i]);
        out_write(text, (size_t)len);
    }
    out_write(json ? "]\n" : "\n", json ? 2 : 1);
}

/* The command ----------------------------------------------------------------- */

static int encode(const struct tlm_tokenizer *t, const struct bytes *text, int special, int json)
{
    struct tlm_error e = {TLM_OK, ""};
    int32_t *ids;
    size_t n;
    if (tlm_tokenizer_encode(t, text->n > 0 ? text->data : "", text->n, special ? TLM_ENCODE_SPECIAL : 0, &ids, &n,
                             &e) != TLM_OK)
        return out_tlm_error(&e);
    print_ids(ids, n, json);
    tlm_free(ids);
    return 0;
}

static int decode(const struct tlm_tokenizer *t, const struct ids *ids, int special, int json)
{
    struct tlm_error e = {TLM_OK, ""};
    char *text;
    size_t n;
    if (tlm_tokenizer_decode(t, ids->at, ids->n, special ? 0 : TLM_DECODE_SKIP_SPECIAL, &text, &n, &e) != TLM_OK)
        return out_tlm_error(&e);
    if (json)
        print_string(text, n);
    else
        out_write(text, n);
    tlm_free(text);
    return 0;
}

static int run_lines(const struct tlm_tokenizer *t, struct input *in, int decoding, int special)
{
    struct tlm_tokenizer_info info;
    struct bytes text = {NULL, 0, 0};
    struct ids ids = {NULL, 0, 0};
    int status;
    tlm_tokenizer_info_get(t, &info);
    for (unsigned long line = 1; (status = read_line(in)) < 0; line++) {
        ids.n = 0;
        const char *wrong = decoding ? parse_array(&in->line, info.vocab_size, &ids) : parse_string(&in->line, &text);
        if (wrong != NULL) {
            out_error("%s: line %lu: %s", in->name, line, wrong);
            status = 1;
        } else {
            status = decoding ? decode(t, &ids, special, 1) : encode(t, &text, special, 1);
        }
        out_flush();
        if (status != 0 || out_failed())
            break;
    }
    tool_free(text.data);
    tool_free(ids.at);
    return status;
}

static int run_whole(const struct tlm_tokenizer *t, struct input *in, int decoding, int special)
{
    struct tlm_tokenizer_info info;
    struct ids ids = {NULL, 0, 0};
    int status = read_all(in);
    tlm_tokenizer_info_get(t, &info);
    if (status != 0 || !decoding)
        return status != 0 ? status : encode(t, &in->line, special, 0);
    const char *wrong = parse_plain(&in->line, info.vocab_size, &ids);
    if (wrong != NULL) {
        out_error("%s: %s, after %zu ids", in->name, wrong, ids.n);
        status = 1;
    } else {
        status = decode(t, &ids, special, 0);
    }
    tool_free(ids.at);
    return status;
}

static int run(const char *prog, const struct cli_value *v)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_tokenizer *t = NULL;
    struct input in = {"TEXT", NULL, v[TEXT].text, {NULL, 0, 0}};
    if (v[FILE_NAME].given && v[TEXT].given)
        return cli_usage_error(&tokenize_command, prog, "TEXT", "not allowed with argument --file/-f");
    char *path;
    int status = run_resolve(v[MODEL].text, &path);
    if (status != 0)
        return status;
    if (tlm_tokenizer_open(path, &t, &e) != TLM_OK)
        status = out_tlm_error(&e);
    tlm_hub_path_free(path);
    if (status != 0)
        return status;
    if (v[FILE_NAME].given) {
        in.name = v[FILE_NAME].text;
        in.stream = fopen(in.name, "rb");
        if (in.stream == NULL)
            status = read_failed(&in);
    } else if (!v[TEXT].given) {
        in.name = "standard input";
        in.stream = stdin;
    }
    if (status == 0)
        status = (v[JSONL].given ? run_lines : run_whole)(t, &in, v[DECODE].given, !v[NO_SPECIAL].given);
    if (v[FILE_NAME].given && in.stream != NULL)
        fclose(in.stream);
    tool_free(in.line.data);
    tlm_tokenizer_free(t);
    return status;
}

static const struct cli_table tables[] = {{options, N_OPTIONS}, {NULL, 0}};

const struct command tokenize_command = {
    "tokenize", "Turn text into token ids, or ids into text.",
    "Prints the ids on one line, or with --decode the text without a newline of its own. Invalid UTF-8 in the input "
    "becomes one U+FFFD for each maximal invalid part, and so does a lone surrogate in a JSON string; a NUL byte and "
    "\\u0000 are characters like any other. With --jsonl every answer is flushed, and a line that cannot be read ends "
    "the command with its number and status 1.",
    tables, run};
