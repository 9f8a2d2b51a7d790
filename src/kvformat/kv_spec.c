/* Reading a choice of cache formats. */
#include "kvformat/kv_spec.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *key, *value;
} presets[] = {
#define KV_PRESET(name, key, value) {name, key, value},
#include "kvformat/kv_presets.def"
#undef KV_PRESET
    {"auto", "chan4+pre+mix", "tq4"}, /* bits of keys to be chosen by layer */
};

enum { N_PRESETS = sizeof presets / sizeof presets[0] };

const char *kv_preset_name(int i)
{
    return i < N_PRESETS ? presets[i].name : NULL;
}

static enum tlm_status parse_choice(const char *p, size_t n, struct kv_choice *out, struct tlm_error *e)
{
    *out = (struct kv_choice){0};
    for (int i = 0; i < N_PRESETS; i++) {
        if (strlen(presets[i].name) != n || memcmp(presets[i].name, p, n))
            continue;
        out->automatic = i == N_PRESETS - 1;
        enum tlm_status s = kv_format_parse(presets[i].key, strlen(presets[i].key), true, &out->key, e);
        return s == TLM_OK ? kv_format_parse(presets[i].value, strlen(presets[i].value), false, &out->value, e) : s;
    }
    const char *colon = memchr(p, ':', n);
    size_t key = colon ? (size_t)(colon - p) : n;
    enum tlm_status s = kv_format_parse(p, key, true, &out->key, e);
    if (s == TLM_OK && colon)
        s = kv_format_parse(colon + 1, n - key - 1, false, &out->value, e);
    else if (s == TLM_OK)
        out->value = kv_format_partner(&out->key);
    return s;
}

/* A number at *p, before end; -1 when there is none. */
static int number(const char **p, const char *end)
{
    int v = -1;
    while (*p < end && **p >= '0' && **p <= '9' && v < 100000) {
        v = (v < 0 ? 0 : v) * 10 + (**p - '0');
        (*p)++;
    }
    return v;
}

/* "0-1,23" [p, end): gives those layers the choice. */
static enum tlm_status set_layers(const char *p, const char *end, const struct kv_choice *c, int n_layers,
                                  struct kv_choice *out, struct tlm_error *e)
{
    const char *all = p;
    do {
        int from = number(&p, end), to = from;
        if (p < end && *p == '-') {
            p++;
            to = number(&p, end);
        }
        if (from < 0 || to < from || (p < end && *p != ','))
            return err_set(e, TLM_EINVAL, "cache format: layers '%.*s', expected numbers and ranges like 0-1,23",
                           (int)(end - all), all);
        if (to >= n_layers)
            return err_set(e, TLM_EINVAL, "cache format: layer %d, but the model has layers 0 to %d", to, n_layers - 1);
        for (int i = from; i <= to; i++)
            out[i] = *c;
    } while (p < end && *p++ == ',');
    return TLM_OK;
}

enum tlm_status kv_spec_parse(const char *text, int n_layers, struct kv_choice *out, struct tlm_error *e)
{
    struct kv_choice c;
    for (const char *p = text, *end; p; p = *end ? end + 1 : NULL) {
        end = p + strcspn(p, ";");
        const char *equals = p == text ? NULL : memchr(p, '=', (size_t)(end - p));
        if (p != text && !equals)
            return err_set(e, TLM_EINVAL, "cache format: '%.*s', expected LAYERS=SPEC", (int)(end - p), p);
        const char *spec = equals ? equals + 1 : p;
        enum tlm_status s = parse_choice(spec, (size_t)(end - spec), &c, e);
        if (s != TLM_OK)
            return s;
        for (int i = 0; !equals && i < n_layers; i++)
            out[i] = c;
        if (equals)
            s = set_layers(p, equals, &c, n_layers, out, e);
        if (s != TLM_OK)
            return s;
    }
    return TLM_OK;
}

void kv_choice_name(const struct kv_choice *c, char out[KV_CHOICE_NAME_MAX])
{
    char key[KV_FORMAT_NAME_MAX], value[KV_FORMAT_NAME_MAX];
    kv_format_name(&c->key, true, key);
    kv_format_name(&c->value, false, value);
    if (kv_format_is_exact(&c->key) && c->key.kind == c->value.kind)
        snprintf(out, KV_CHOICE_NAME_MAX, "%s", key);
    else
        snprintf(out, KV_CHOICE_NAME_MAX, "%s:%s", key, value);
}

static int count_equal(const struct kv_choice *c, int n, int i)
{
    char want[KV_CHOICE_NAME_MAX], name[KV_CHOICE_NAME_MAX];
    int count = 0;
    kv_choice_name(&c[i], want);
    for (int k = 0; k < n; k++) {
        kv_choice_name(&c[k], name);
        count += !strcmp(name, want);
    }
    return count;
}

struct writer {
    char *p;
    size_t left;
    bool full;
};

static void put(struct writer *w, const char *text)
{
    size_t n = strlen(text);
    if (w->full || n + 4 > w->left) { /* "..." still fits */
        w->full = true;
        return;
    }
    memcpy(w->p, text, n + 1);
    w->p += n;
    w->left -= n;
}

/* ";LAYERS=SPEC" for the layers from i on that have c[i]'s name. */
static void put_layers(struct writer *w, const struct kv_choice *c, int n, int i)
{
    char want[KV_CHOICE_NAME_MAX], name[KV_CHOICE_NAME_MAX], range[32];
    kv_choice_name(&c[i], want);
    const char *before = ";";
    for (int k = i; k < n; k++) {
        int end = k;
        for (; end < n; end++) {
            kv_choice_name(&c[end], name);
            if (strcmp(name, want))
                break;
        }
        if (end == k)
            continue;
        if (end == k + 1)
            snprintf(range, sizeof range, "%s%d", before, k);
        else
            snprintf(range, sizeof range, "%s%d-%d", before, k, end - 1);
        put(w, range);
        before = ",";
        k = end;
    }
    put(w, "=");
    put(w, want);
}

void kv_choices_name(const struct kv_choice *c, int n, char *out, size_t size)
{
    struct writer w = {out, size, false};
    char usual[KV_CHOICE_NAME_MAX], name[KV_CHOICE_NAME_MAX], earlier[KV_CHOICE_NAME_MAX];
    int best = 0, most = 0;
    out[0] = '\0';
    for (int i = 0; i < n; i++)
        if (count_equal(c, n, i) > most) {
            most = count_equal(c, n, i);
            best = i;
        }
    kv_choice_name(&c[best], usual);
    put(&w, usual);
    for (int i = 0; i < n; i++) {
        bool seen = false;
        kv_choice_name(&c[i], name);
        for (int k = 0; k < i && !seen; k++) {
            kv_choice_name(&c[k], earlier);
            seen = !strcmp(earlier, name);
        }
        if (!seen && strcmp(name, usual))
            put_layers(&w, c, n, i);
    }
    if (w.full)
        memcpy(w.p, "...", 4);
}
