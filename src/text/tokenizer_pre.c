/* Which row of tokenizer_pre.def splits text as a tokenizer does. Patterns are
 * compared as texts, less what they can be written differently in: escapes of
 * characters that need none, and characters by their number. */
#include <string.h>

#include "text/tokenizer_gguf.h"
#include "text/utf8.h"

/* One unit of a pattern. */
struct unit {
    uint32_t c;
    bool escaped; /* and this changes its meaning */
};

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Up to max hexadecimal digits at s into *v; how many there are. */
static size_t hex_number(const char *s, size_t max, uint32_t *v)
{
    size_t n = 0;
    for (*v = 0; n < max && hex_value(s[n]) >= 0; n++)
        *v = *v * 16 + (uint32_t)hex_value(s[n]);
    return n;
}

/* The escape after the backslash at s[-1]. */
static const char *next_escape(const char *s, struct unit *u)
{
    static const char special[] = ".^$*+?()[]{}|\\-&~#";
    size_t n = 0;
    if (*s == 'x' && s[1] == '{' && (n = hex_number(s + 2, 6, &u->c)) && s[2 + n] == '}')
        return s + n + 3;
    if (*s == 'x' && hex_number(s + 1, 2, &u->c) == 2)
        return s + 3;
    if (*s == 'u' && hex_number(s + 1, 4, &u->c) == 4)
        return s + 5;
    u->c = (uint8_t)*s;
    if (*s == 'n' || *s == 'r' || *s == 't')
        u->c = *s == 'n' ? '\n' : *s == 'r' ? '\r' : '\t';
    else
        u->escaped = (*s >= '0' && *s <= '9') || ((*s | 32) >= 'a' && (*s | 32) <= 'z') || strchr(special, *s);
    return s + (*s != 0);
}

static const char *next_unit(const char *s, struct unit *u)
{
    *u = (struct unit){0, false};
    if (*s == '\\')
        return next_escape(s + 1, u);
    size_t left = strlen(s), n = left ? (size_t)utf8_len(*s) : 0;
    if (!n || n > left)
        n = left > 0;
    for (size_t i = 0; i < n; i++) /* valid text: the value need only be its own */
        u->c = i ? u->c << 6 | ((uint8_t)s[i] & 0x3f) : (uint8_t)s[0] & (n > 1 ? 0x7fu >> n : 0xffu);
    return s + n;
}

static bool same_pattern(const char *a, const char *b)
{
    struct unit x, y;
    while (*a && *b) {
        a = next_unit(a, &x);
        b = next_unit(b, &y);
        if (x.c != y.c || x.escaped != y.escaped)
            return false;
    }
    return !*a && !*b;
}

/* The steps of a tokenizer in the table's words; false for one that has none. */
static bool steps_of(const struct tlm_tokenizer *t, const char *step[PRE_STEPS])
{
    int n = 0;
    for (uint32_t i = 0; i < t->pretoks.n; i++) {
        const struct tok_pretok *p = &t->pretoks.list[i];
        bool last = i + 1 == t->pretoks.n;
        if (n + 2 > PRE_STEPS)
            return false;
        switch (p->kind) {
        case PRETOK_BYTE_LEVEL:
            if (p->add_prefix_space)
                return false;
            if (p->use_regex)
                step[n++] = tok_pre_regex("gpt-2");
            if (!last)
                step[n++] = "@ByteLevel";
            break;
        case PRETOK_DIGITS:
            step[n++] = p->individual_digits ? "\\p{N}" : "@DigitRuns";
            break;
        case PRETOK_PUNCTUATION:
            if (p->behavior != PRETOK_CONTIGUOUS)
                return false;
            step[n++] = "@Punctuation";
            break;
        case PRETOK_SPLIT: /* what lies between matches is dropped or not; the patterns leave nothing out */
            if (!p->pattern.regex || !p->pattern.text ||
                !(p->invert ? p->behavior == PRETOK_REMOVED : p->behavior == PRETOK_ISOLATED))
                return false;
            step[n++] = p->pattern.text;
            break;
        default:
            return false;
        }
    }
    return true;
}

static bool same_steps(const struct pre_row *r, const char *const step[PRE_STEPS])
{
    for (int i = 0; i < PRE_STEPS; i++) {
        if (!r->step[i] != !step[i] || (step[i] && !same_pattern(r->step[i], step[i])))
            return false;
        if (!step[i])
            break;
    }
    return true;
}

enum tlm_status tok_pre_name(const struct tlm_tokenizer *t, const char **name, struct tlm_error *e)
{
    const char *step[PRE_STEPS] = {NULL};
    const struct tok_norms *norms = &t->norms;
    bool plain = norms->n == 0;
    unsigned norm = norms->n != 1                      ? 0
                    : norms->list[0].kind == NORM_NFC  ? PRE_NFC
                    : norms->list[0].kind == NORM_NFKC ? PRE_NFKC
                                                       : 0;
    if (!plain && !norm)
        return err_set(e, TLM_EUNSUPPORTED, "tokenizer: its normalizer has no form in GGUF files");
    bool known = steps_of(t, step);
    for (int pass = 0; known && pass < 2; pass++) {
        const struct pre_row *r;
        for (size_t i = 0; (r = tok_pre_row(i)) != NULL; i++) {
            bool whole = (r->flags & PRE_WHOLE) != 0;
            if ((r->flags & PRE_MARKS) || whole != t->model.ignore_merges || !same_steps(r, step))
                continue;
            if (pass == 0 && (r->flags & (PRE_NFC | PRE_NFKC)) != norm)
                continue;
            if (pass == 1)
                log_warn("tokenizer: written as \"%s\", whose normalizer is another one", r->name);
            *name = r->name;
            return TLM_OK;
        }
    }
    return err_set(e, TLM_EUNSUPPORTED,
                   "tokenizer: its pre-tokenizer splits as none of the values of tokenizer.ggml.pre does");
}
