/* Inverse frequencies of every rotary type, and tables of angles. */
#include "tensor/rope.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { ROPE_DIMS_MAX = 65536 };

static const float two_pi = 6.2831853f;

static const char *type_of(const cJSON *s, struct tlm_error *e)
{
    const char *type = NULL;
    if (json_str(s, "type", &type, e) != TLM_OK) /* `type` wins over `rope_type` */
        return NULL;
    if (!type && json_str(s, "rope_type", &type, e) != TLM_OK)
        return NULL;
    return type ? type : "default";
}

static void plain(float *f, int64_t dims, float theta)
{
    for (int64_t i = 0; i < dims / 2; i++)
        f[i] = 1.0f / powf(theta, (float)(2 * i) / (float)dims);
}

static enum tlm_status need_factor(const cJSON *s, const char *where, float *factor, struct tlm_error *e)
{
    *factor = 0;
    if (json_float(s, "factor", factor, e) != TLM_OK)
        return e ? e->status : TLM_EFORMAT;
    if (!(*factor > 0))
        return err_set(e, TLM_EFORMAT, "%s.factor: found %g, expected a positive number", where, (double)*factor);
    return TLM_OK;
}

static enum tlm_status init_llama3(struct rope *r, const cJSON *s, const char *where, struct tlm_error *e)
{
    float factor, low = 1, high = 4;
    int64_t orig = 8192;
    enum tlm_status st = need_factor(s, where, &factor, e);
    if (st == TLM_OK)
        st = json_float(s, "low_freq_factor", &low, e);
    if (st == TLM_OK)
        st = json_float(s, "high_freq_factor", &high, e);
    if (st == TLM_OK)
        st = json_int(s, "original_max_position_embeddings", 1, INT64_MAX / 2, &orig, e);
    if (st == TLM_OK && !(low > 0 && high > low))
        st = err_set(e, TLM_EFORMAT, "%s: low_freq_factor %g and high_freq_factor %g, expected 0 < low < high", where,
                     (double)low, (double)high);
    if (st != TLM_OK)
        return st;
    for (int64_t i = 0; i < r->dims / 2; i++) {
        float f = r->inv_freq[i], wavelen = two_pi / f;
        float smooth = ((float)orig / wavelen - low) / (high - low);
        if (wavelen > (float)orig / low)
            r->inv_freq[i] = f / factor;
        else if (wavelen >= (float)orig / high)
            r->inv_freq[i] = (1 - smooth) * f / factor + smooth * f;
    }
    return TLM_OK;
}

static float yarn_mscale(float scale, float m)
{
    return scale <= 1 ? 1.0f : 0.1f * m * logf(scale) + 1.0f;
}

struct yarn {
    float factor, beta_fast, beta_slow, mscale, mscale_all, attention_factor;
    int64_t orig;
    bool truncate;
};

static enum tlm_status read_yarn(struct yarn *y, const cJSON *s, const char *where, struct tlm_error *e)
{
    enum tlm_status st = need_factor(s, where, &y->factor, e);
    const struct {
        const char *key;
        float *value;
    } fields[] = {{"beta_fast", &y->beta_fast},
                  {"beta_slow", &y->beta_slow},
                  {"mscale", &y->mscale},
                  {"mscale_all_dim", &y->mscale_all},
                  {"attention_factor", &y->attention_factor}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && st == TLM_OK; i++)
        st = json_float(s, fields[i].key, fields[i].value, e);
    if (st == TLM_OK)
        st = json_int(s, "original_max_position_embeddings", 1, INT64_MAX / 2, &y->orig, e);
    if (st == TLM_OK)
        st = json_bool(s, "truncate", &y->truncate, e);
    return st;
}

/* The index where a wave makes `rotations` turns over the original context. */
static float yarn_index(float rotations, int64_t dims, float base, int64_t orig)
{
    return (float)dims * logf((float)orig / (rotations * two_pi)) / (2 * logf(base));
}

static enum tlm_status init_yarn(struct rope *r, const struct rope_params *p, float theta, const cJSON *s,
                                 const char *where, struct tlm_error *e)
{
    struct yarn y = {.beta_fast = 32, .beta_slow = 1, .mscale = 1, .truncate = true};
    y.orig = p->max_positions > 0 ? p->max_positions : 4096;
    enum tlm_status st = read_yarn(&y, s, where, e);
    if (st != TLM_OK)
        return st;
    float lo = yarn_index(y.beta_fast, r->dims, theta, y.orig);
    float hi = yarn_index(y.beta_slow, r->dims, theta, y.orig);
    if (y.truncate) {
        lo = floorf(lo);
        hi = ceilf(hi);
    }
    lo = fmaxf(lo, 0);
    hi = fminf(hi, (float)(r->dims - 1));
    if (lo == hi)
        hi += 0.001f;
    for (int64_t i = 0; i < r->dims / 2; i++) {
        float ramp = fminf(fmaxf(((float)i - lo) / (hi - lo), 0), 1);
        float extra = r->inv_freq[i], inter = extra / y.factor;
        r->inv_freq[i] = inter * ramp + extra * (1 - ramp);
    }
    r->factor = y.attention_factor > 0 ? y.attention_factor
                                       : yarn_mscale(y.factor, y.mscale) / yarn_mscale(y.factor, y.mscale_all);
    return TLM_OK;
}

static enum tlm_status read_factors(const cJSON *s, const char *key, const char *where, int64_t n, float *out,
                                    struct tlm_error *e)
{
    const cJSON *a = json_get(s, key);
    if (!cJSON_IsArray(a) || cJSON_GetArraySize(a) != n)
        return err_set(e, TLM_EFORMAT, "%s.%s: found %s of %d, expected an array of %lld numbers", where, key,
                       json_type_name(a), a ? cJSON_GetArraySize(a) : 0, (long long)n);
    int64_t i = 0;
    for (const cJSON *v = a->child; v; v = v->next, i++) {
        if (!cJSON_IsNumber(v) || !(v->valuedouble > 0))
            return err_set(e, TLM_EFORMAT, "%s.%s[%lld]: expected a positive number", where, key, (long long)i);
        out[i] = (float)v->valuedouble;
    }
    return TLM_OK;
}

/* Two tables: short_factor up to the original context, long_factor beyond. */
static enum tlm_status init_longrope(struct rope *r, const struct rope_params *p, const cJSON *s, const char *where,
                                     struct tlm_error *e)
{
    int64_t half = r->dims / 2, orig = 0;
    enum tlm_status st = json_int(s, "original_max_position_embeddings", 1, INT64_MAX / 2, &orig, e);
    if (st != TLM_OK)
        return st;
    if (!orig)
        return err_set(e, TLM_EFORMAT, "%s.original_max_position_embeddings: missing", where);
    float scale = (float)p->max_positions / (float)orig, attention = 0, long_mscale = 0, short_mscale = 0;
    st = json_float(s, "factor", &scale, e);
    if (st == TLM_OK)
        st = json_float(s, "attention_factor", &attention, e);
    if (st == TLM_OK)
        st = json_float(s, "long_mscale", &long_mscale, e);
    if (st == TLM_OK)
        st = json_float(s, "short_mscale", &short_mscale, e);
    if (st != TLM_OK)
        return st;
    float m = attention > 0 ? attention : scale <= 1 ? 1.0f : sqrtf(1 + logf(scale) / logf((float)orig));
    float *factors = mem_alloc_array((size_t)half, sizeof *factors);
    r->long_freq = mem_alloc_array((size_t)half, sizeof *r->long_freq);
    if (!factors || !r->long_freq) {
        mem_free(factors);
        return err_nomem(e, (size_t)half * sizeof *factors);
    }
    st = read_factors(s, "long_factor", where, half, factors, e);
    for (int64_t i = 0; i < half && st == TLM_OK; i++)
        r->long_freq[i] = r->inv_freq[i] / factors[i];
    if (st == TLM_OK)
        st = read_factors(s, "short_factor", where, half, factors, e);
    if (st == TLM_OK)
        rope_divide(r, factors, half);
    mem_free(factors);
    r->original_max = orig;
    r->factor = short_mscale > 0 ? short_mscale : m;
    r->long_factor = long_mscale > 0 ? long_mscale : m;
    return st;
}

/* Partial rotation given by the settings: unrotated pairs have frequency 0. */
static enum tlm_status init_proportional(struct rope *r, float theta, const cJSON *s, struct tlm_error *e)
{
    float part = 1, factor = 1;
    enum tlm_status st = json_float(s, "partial_rotary_factor", &part, e);
    if (st == TLM_OK)
        st = json_float(s, "factor", &factor, e);
    if (st != TLM_OK)
        return st;
    int64_t turned = (int64_t)(part * (float)r->head_dim) / 2;
    for (int64_t i = 0; i < r->dims / 2; i++)
        r->inv_freq[i] = i < turned ? 1.0f / powf(theta, (float)(2 * i) / (float)r->head_dim) / factor : 0;
    return TLM_OK;
}

static enum tlm_status init_typed(struct rope *r, const struct rope_params *p, float theta, const char *type,
                                  const cJSON *s, const char *where, struct tlm_error *e)
{
    float factor;
    enum tlm_status st;
    if (!strcmp(type, "default") || !strcmp(type, "mrope"))
        return TLM_OK; /* text positions are the same in all three sections of mrope */
    if (!strcmp(type, "llama3"))
        return init_llama3(r, s, where, e);
    if (!strcmp(type, "yarn") || !strcmp(type, "deepseek_yarn") || !strcmp(type, "telechat3-yarn"))
        return init_yarn(r, p, theta, s, where, e);
    if (!strcmp(type, "longrope") || !strcmp(type, "su"))
        return init_longrope(r, p, s, where, e);
    if (!strcmp(type, "proportional"))
        return init_proportional(r, theta, s, e);
    if (strcmp(type, "linear") && strcmp(type, "dynamic"))
        return err_set(e, TLM_EUNSUPPORTED, "%s: rope type '%s' is not known", where, type);
    if ((st = need_factor(s, where, &factor, e)) != TLM_OK)
        return st;
    if (!strcmp(type, "linear")) {
        for (int64_t i = 0; i < r->dims / 2; i++)
            r->inv_freq[i] /= factor;
        return TLM_OK;
    }
    r->dynamic = true;
    r->base = theta;
    r->scale = factor;
    r->original_max = p->max_positions;
    if (r->original_max <= 0)
        return err_set(e, TLM_EFORMAT, "%s: rope type 'dynamic' needs max_position_embeddings", where);
    return TLM_OK;
}

enum tlm_status rope_init(struct rope *r, const struct rope_params *p, const cJSON *settings, const char *where,
                          struct tlm_error *e)
{
    *r = (struct rope){.head_dim = p->head_dim, .dims = p->dims, .interleaved = p->interleaved, .factor = 1};
    if (p->dims < 2 || p->dims % 2 || p->dims > p->head_dim || p->dims > ROPE_DIMS_MAX)
        return err_set(e, TLM_EFORMAT, "%s: %lld rotated dimensions of a head of %lld", where, (long long)p->dims,
                       (long long)p->head_dim);
    float theta = p->theta;
    enum tlm_status st = json_float(settings, "rope_theta", &theta, e);
    if (st != TLM_OK) {
        err_prefix(e, "%s", where);
        return st;
    }
    if (!(theta > 1))
        return err_set(e, TLM_EFORMAT, "%s%srope_theta: found %g, expected more than 1",
                       json_get(settings, "rope_theta") ? where : "", json_get(settings, "rope_theta") ? "." : "",
                       (double)theta);
    r->inv_freq = mem_alloc_array((size_t)p->dims / 2, sizeof *r->inv_freq);
    if (!r->inv_freq)
        return err_nomem(e, (size_t)p->dims / 2 * sizeof *r->inv_freq);
    plain(r->inv_freq, p->dims, theta);
    if (settings) {
        const char *type = type_of(settings, e);
        st = type ? init_typed(r, p, theta, type, settings, where, e) : TLM_EFORMAT;
    }
    if (e && st != TLM_OK && st != TLM_ENOMEM && strncmp(e->message, where, strlen(where)))
        err_prefix(e, "%s", where);
    if (st != TLM_OK)
        rope_deinit(r);
    return st;
}

void rope_deinit(struct rope *r)
{
    mem_free(r->inv_freq);
    mem_free(r->long_freq);
    r->inv_freq = r->long_freq = NULL;
}

void rope_divide(struct rope *r, const float *factors, int64_t n)
{
    for (int64_t i = 0; i < n && i < r->dims / 2; i++)
        r->inv_freq[i] /= factors[i];
}

/* Base of a call that reaches position `end`, exclusive. */
static float dynamic_base(const struct rope *r, int64_t end)
{
    float n = (float)(end > r->original_max ? end : r->original_max);
    float grow = r->scale * n / (float)r->original_max - (r->scale - 1);
    return r->base * powf(grow, (float)r->dims / (float)(r->dims - 2));
}

void rope_table(const struct rope *r, int64_t pos, int64_t n, float *cos_out, float *sin_out)
{
    int64_t half = r->dims / 2;
    bool is_long = r->long_freq && pos + n > r->original_max;
    const float *freq = is_long ? r->long_freq : r->inv_freq;
    float factor = is_long ? r->long_factor : r->factor;
    float base = r->dynamic ? dynamic_base(r, pos + n) : 0;
    for (int64_t i = 0; i < half; i++) {
        float f = r->dynamic ? 1.0f / powf(base, (float)(2 * i) / (float)r->dims) : freq[i];
        for (int64_t t = 0; t < n; t++) {
            float angle = (float)(pos + t) * f;
            cos_out[t * half + i] = cosf(angle) * factor;
            sin_out[t * half + i] = sinf(angle) * factor;
        }
    }
}
