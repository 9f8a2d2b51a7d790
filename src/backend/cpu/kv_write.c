/* Writing keys and values into exact blocks, and sealing full ones: encoding
 * them into the cache's format. */
#include <string.h>

#include "backend/cpu/attention.h"
#include "base/pool.h"

enum {
    MIN_WORK = 32 * 1024, /* elements worth another thread */
    WRITE_DIMS = 64       /* key dimensions transposed at a time */
};

/* A task is one span's rows of one block. */
struct kv_write {
    struct cpu_backend *b;
    const struct attn_args *a;
    const struct attn_span *span;
    const float *k, *v;
};

static void transpose_u16(uint16_t *to, const uint16_t *from, int tokens, int dims)
{
    for (int d = 0; d < dims; d++)
        for (int t = 0; t < tokens; t++)
            to[d * KV_BLOCK + t] = from[t * WRITE_DIMS + d];
}

static void transpose_u32(uint32_t *to, const uint32_t *from, int tokens, int dims)
{
    for (int d = 0; d < dims; d++)
        for (int t = 0; t < tokens; t++)
            to[d * KV_BLOCK + t] = from[t * WRITE_DIMS + d];
}

/* Rows k (stride floats apart) of one head become tokens t0 up of its keys. */
static void write_keys(const struct kv_write *x, char *keys, const float *k, int64_t stride, int t0, int tokens)
{
    const struct kv_shape *s = &x->a->shape;
    uint32_t buffer[KV_BLOCK * WRITE_DIMS];
    size_t elem = kv_elem_bytes(s->type);
    for (int d = 0; d < s->head_dim; d += WRITE_DIMS) {
        int dims = (int)min64(WRITE_DIMS, s->head_dim - d);
        for (int t = 0; t < tokens; t++)
            x->b->vector.store[s->type]((char *)buffer + (size_t)t * WRITE_DIMS * elem, k + t * stride + d, dims);
        void *to = keys + ((size_t)d * KV_BLOCK + (size_t)t0) * elem;
        if (elem == 2)
            transpose_u16(to, (const uint16_t *)(const void *)buffer, tokens, dims);
        else
            transpose_u32(to, buffer, tokens, dims);
    }
}

static void write_block(void *arg, int task, int worker)
{
    (void)worker;
    const struct kv_write *x = arg;
    const struct kv_shape *s = &x->a->shape;
    const struct attn_span *span = x->span;
    const struct attn_block *own = &span->own[task];
    int64_t from = max64(span->pos, own->start), to = min64(span->pos + span->rows, own->start + KV_BLOCK);
    int t0 = (int)(from - own->start), tokens = (int)(to - from);
    if (tokens <= 0) /* a block that is only sealed */
        return;
    int64_t row = span->row + from - span->pos;
    int64_t k_stride = (int64_t)s->n_heads * s->head_dim, v_stride = (int64_t)s->n_heads * s->v_dim;
    size_t elem = kv_elem_bytes(s->type);
    char *keys = own->data, *values = keys + kv_keys_bytes(s);
    for (int h = 0; h < s->n_heads; h++) {
        write_keys(x, keys + (size_t)h * (size_t)s->head_dim * KV_BLOCK * elem,
                   x->k + row * k_stride + (int64_t)h * s->head_dim, k_stride, t0, tokens);
        for (int t = 0; t < tokens; t++)
            x->b->vector.store[s->type](values + ((size_t)h * KV_BLOCK + (size_t)(t0 + t)) * (size_t)s->v_dim * elem,
                                        x->v + (row + t) * v_stride + (int64_t)h * s->v_dim, s->v_dim);
    }
}

void cpu_kv_write(struct backend *base, const struct attn_args *a, const struct tensor *k, const struct tensor *v)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    for (int i = 0; i < a->n_spans; i++) {
        const struct attn_span *s = &a->spans[i];
        struct kv_write x = {b, a, s, tensor_f32(k), tensor_f32(v)};
        if (s->rows * a->shape.n_heads * (a->shape.head_dim + a->shape.v_dim) > MIN_WORK)
            pool_run(b->base.pool, s->n_own, write_block, &x);
        else
            for (int t = 0; t < s->n_own; t++)
                write_block(&x, t, 0);
    }
}

/* --- sealing -------------------------------------------------------------- */

/* A task is one head's keys or values of one own block. */
struct kv_seal {
    struct cpu_backend *b;
    const struct attn_args *a;
    const struct attn_span *span;
    float *work;
    size_t work_floats; /* of a worker */
};

static void load_keys(const struct kv_seal *x, const char *keys, float *to)
{
    const struct kv_shape *s = &x->a->shape;
    float row[KV_BLOCK];
    for (int d = 0; d < s->head_dim; d++) {
        x->b->vector.load[s->type](row, keys + (size_t)d * KV_BLOCK * kv_elem_bytes(s->type), KV_BLOCK);
        for (int t = 0; t < KV_BLOCK; t++)
            to[t * s->head_dim + d] = row[t];
    }
}

static void seal_head(void *arg, int task, int worker)
{
    const struct kv_seal *x = arg;
    const struct attn_args *a = x->a;
    const struct kv_shape *s = &a->shape;
    int head = task % s->n_heads, part = task / s->n_heads % 2, i = task / s->n_heads / 2;
    const struct attn_block *own = &x->span->own[i], *to = &x->span->blocks[x->span->own_first + i];
    if (!to->encoded)
        return;
    const struct kv_codec *c = part ? a->value : a->key;
    float *tokens = x->work + (size_t)worker * x->work_floats, *work = tokens + KV_BLOCK * c->dim;
    size_t elem = kv_elem_bytes(s->type), from = (size_t)head * (size_t)c->dim * KV_BLOCK * elem;
    const char *data = own->data;
    char *out = to->data;
    struct kv_turn turn;
    if (part) {
        x->b->vector.load[s->type](tokens, data + kv_keys_bytes(s) + from, (int64_t)KV_BLOCK * c->dim);
        out += (size_t)s->n_heads * a->key->bytes;
    } else {
        load_keys(x, data + from, tokens);
    }
    if (a->turn && c->f.pre) {
        turn = *a->turn;
        turn.start_cos = to->turn;
        turn.start_sin = to->turn + turn.dims / 2;
    }
    kv_codec_encode(c, tokens, a->turn && c->f.pre ? &turn : NULL, out + (size_t)head * c->bytes, work);
}

void cpu_kv_seal(struct backend *base, const struct attn_args *a)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    struct kv_seal x = {.b = b, .a = a, .work_floats = b->codec_floats};
    x.work = cpu_scratch(b, cpu_attend_scratch(b));
    for (int i = 0; i < a->n_spans; i++) {
        x.span = &a->spans[i];
        bool any = false;
        for (int k = 0; k < x.span->n_own; k++)
            any = any || x.span->blocks[x.span->own_first + k].encoded;
        if (any)
            pool_run(b->base.pool, x.span->n_own * 2 * a->shape.n_heads, seal_head, &x);
    }
}

enum tlm_status cpu_kv_prepare(struct backend *base, const struct kv_codec *key, const struct kv_codec *value,
                               struct tlm_error *e)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    size_t k = cpu_codec_floats(key), v = cpu_codec_floats(value), most = k > v ? k : v;
    if (most > b->codec_floats)
        b->codec_floats = most;
    size_t bytes = cpu_attend_scratch(b);
    return cpu_scratch(b, bytes) ? TLM_OK : err_nomem(e, bytes);
}
