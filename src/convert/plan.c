/* The plan of a conversion to an MLX directory. */
#include "convert/plan.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "models/view_turbo.h"
#include "quant/hadamard.h"
#include "quant/turbo.h"

static const struct {
    const char *name;
    enum dtype type;
} dtypes[] = {{"float16", DT_F16}, {"bfloat16", DT_BF16}, {"float32", DT_F32}};

const char *plan_dtype_name(enum dtype t)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (dtypes[i].type == t)
            return dtypes[i].name;
    return "unknown";
}

static enum dtype dtype_named(const char *name)
{
    for (size_t i = 0; name && i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (!strcmp(dtypes[i].name, name))
            return dtypes[i].type;
    return DT_NONE;
}

static const uint64_t SEED_MAX = UINT64_C(1) << 53; /* exact as a number of JSON */

/* Overrides ---------------------------------------------------------------- */

struct override {
    char *pattern;
    const char *text; /* as it was given */
    bool off, used;
    struct quant_params params;
};

static enum tlm_status parse_params(struct override *o, const char *spec, const struct quant_params *top,
                                    struct tlm_error *e)
{
    char *end, mode[16];
    const char *given = quant_mode_name(top->mode);
    long bits = strtol(spec, &end, 10), group = 0;
    bool ok = end > spec && bits > 0 && bits <= 64;
    if (ok && *end == ',') {
        const char *from = end + 1;
        group = strtol(from, &end, 10);
        ok = end > from && group > 0 && group < 1 << 20;
    }
    if (ok && *end == ',') {
        ok = snprintf(mode, sizeof mode, "%s", end + 1) < (int)sizeof mode;
        given = mode;
        end += 1 + strlen(mode);
    }
    if (!ok || *end)
        return err_set(e, TLM_EINVAL, "override '%s': expected PATTERN=BITS[,GROUP[,MODE]] or PATTERN=false", o->text);
    if (!group && !strcmp(given, quant_mode_name(top->mode)))
        group = top->group;
    if (quant_params_set(&o->params, given, (int)bits, (int)group, e) == TLM_OK) {
        o->params.seed = top->seed;
        return TLM_OK;
    }
    err_prefix(e, "override '%s'", o->text);
    return TLM_EINVAL;
}

static enum tlm_status parse_override(struct override *o, const char *text, const struct quant_params *top,
                                      struct tlm_error *e)
{
    const char *equals = strrchr(text, '=');
    o->text = text;
    if (!equals || equals == text)
        return err_set(e, TLM_EINVAL, "override '%s': expected PATTERN=BITS[,GROUP[,MODE]] or PATTERN=false", text);
    o->pattern = mem_strndup(text, (size_t)(equals - text));
    if (!o->pattern)
        return err_nomem(e, strlen(text));
    o->off = !strcmp(equals + 1, "false") || !strcmp(equals + 1, "skip");
    return o->off ? TLM_OK : parse_params(o, equals + 1, top, e);
}

/* The whole path or a part of it from one dot to another. */
static bool matches(const char *pattern, const char *path)
{
    char part[CKPT_NAME_MAX];
    for (const char *from = path; from; from = strchr(from, '.') ? strchr(from, '.') + 1 : NULL) {
        if (snprintf(part, sizeof part, "%s", from) >= (int)sizeof part)
            return false;
        for (char *dot = part; dot; dot = strrchr(part, '.')) {
            if (dot != part)
                *dot = 0;
            if (fnmatch(pattern, part, 0) == 0)
                return true;
            if (!strchr(part, '.'))
                break;
        }
    }
    return false;
}

/* Rows --------------------------------------------------------------------- */

/* Of an MLX directory: scales of their own, a format that such a directory may
 * hold. Other quantisers name their method; what they store may look the same
 * and mean something else (rotated inputs, a factor on all scales). */
static bool mlx_params(const struct source *s, const struct quant_view *v, struct quant_params *p)
{
    static const char *const modes[] = {"affine", "mxfp4", "nvfp4", "mxfp8", "turbo"};
    enum { MODES = sizeof modes / sizeof modes[0] };
    size_t i = 0;
    if (s->model.ck->is_gguf || json_get(s->model.ck->quantization, "quant_method") || v->format->code == QUANT_DENSE ||
        !v->scales || v->scale_rows != 1 || v->factor != 0)
        return false;
    while (i < MODES && strncmp(v->format->name, modes[i], strlen(modes[i])) != 0)
        i++;
    if (i == MODES ||
        quant_params_set(p, modes[i], v->format->bits, v->format->group ? v->format->group : v->group, NULL) != TLM_OK)
        return false;
    p->seed = p->mode == QUANT_TURBO && v->input ? v->input->seed : 0;
    return p->mode == QUANT_TURBO ? v->scale_dtype == DT_BF16 : !v->input;
}

/* Which matrices get more bits. */
static bool more_bits(int64_t layer, int64_t layers)
{
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

static struct quant_params recipe_params(const char *recipe, const struct plan_row *r, int64_t layers, int group)
{
    int low = recipe[6] - '0', high = recipe[8] - '0'; /* mixed_2_6 */
    bool more = more_bits(r->w->layer < 0 ? 0 : r->w->layer, layers);
    bool wide = (more && (strstr(r->path, "v_proj") || strstr(r->path, "down_proj"))) || strstr(r->path, "lm_head");
    return (struct quant_params){QUANT_AFFINE, wide ? high : low, group, 0};
}

static enum dtype own_type(const struct quant_view *v)
{
    if (v->format == quant_dense(DT_F32))
        return DT_F32;
    if (v->format == quant_dense(DT_F16))
        return DT_F16;
    if (v->scales && v->format->has_offset && v->scale_dtype == DT_F32)
        return DT_F32;
    return v->format != quant_dense(DT_BF16) && v->scale_dtype == DT_F16 ? DT_F16 : DT_BF16;
}

struct planner {
    struct plan *p;
    struct convert_job *j;
    struct override *overrides;
    size_t n_overrides, n_matrices, n_quantized, n_kept, n_odd; /* n_quantized: of the source */
    int odd_group;
};

/* What mlx_turboquant leaves as it is. */
static bool turboquant_skips(const struct tlm_convert_options *o, const struct plan_row *r)
{
    for (size_t i = 0; i < o->n_skip; i++)
        if (strstr(r->path, o->skip[i]))
            return true;
    return r->w->row->kind == ROW_EMBED;
}

/* Its inputs are no multiple of the group. */
static void leave_plain(struct planner *c, struct plan_row *r)
{
    r->action = PLAN_PLAIN;
    r->listed = false;
    c->n_odd++;
    c->odd_group = r->params.group;
}

static void choose_encoding(struct planner *c, struct plan_row *r)
{
    const struct tlm_convert_options *o = c->j->o;
    r->params = c->p->top;
    r->action = PLAN_ENCODE;
    if (o->turboquant) {
        r->action = turboquant_skips(o, r) ? PLAN_PLAIN : PLAN_ENCODE;
        if (r->action == PLAN_ENCODE && r->w->view.cols % r->params.group != 0)
            leave_plain(c, r);
        return;
    }
    if (o->recipe) {
        r->params = recipe_params(o->recipe, r, model_base(&c->j->source->model)->cfg.layers, c->p->top.group);
        r->listed = true;
    }
    for (size_t i = 0; i < c->n_overrides; i++)
        if (matches(c->overrides[i].pattern, r->path)) {
            c->overrides[i].used = true;
            r->forbidden = c->overrides[i].off;
            r->listed = true;
            if (!r->forbidden)
                r->params = c->overrides[i].params;
        }
    while (r->params.mode == QUANT_TURBO && r->params.group > 32 && r->w->view.cols % r->params.group != 0)
        r->params.group /= 2;
    if (r->forbidden)
        r->action = PLAN_PLAIN;
    else if (r->w->view.cols % r->params.group != 0)
        leave_plain(c, r);
}

/* The rotation of a row's inputs. */
static enum tlm_status choose_input(const struct planner *c, struct plan_row *r, struct tlm_error *e)
{
    const struct checkpoint *ck = c->j->source->model.ck;
    const int64_t n = r->w->view.cols;
    if (r->action != PLAN_ENCODE)
        return TLM_OK;
    if (c->j->o->turboquant)
        return view_rotation(ck, n, hadamard_block(n), turbo_layer_seed(r->path, r->params.seed), false, &r->input, e);
    if (r->params.mode == QUANT_TURBO && turbo_block(n))
        return view_rotation(ck, n, turbo_block(n), r->params.seed, true, &r->input, e);
    return TLM_OK;
}

static void measure(struct plan_row *r)
{
    const struct quant_view *v = &r->w->view;
    uint64_t n = (uint64_t)v->rows * (uint64_t)v->cols;
    if (r->action == PLAN_PLAIN) {
        r->code_bytes = n * dtype_size(r->type);
        return;
    }
    r->code_bytes = n / 8 * (uint64_t)r->params.bits;
    r->scale_bytes = n / (uint64_t)r->params.group * dtype_size(quant_params_scale_type(&r->params, r->type));
}

static enum tlm_status plan_row(struct planner *c, struct plan_row *r, const struct source_weight *w,
                                struct tlm_error *e)
{
    const struct source *s = c->j->source;
    const char *prefix = s->model.arch->wrapper ? "language_model." : "";
    size_t n = strlen(prefix) + strlen(w->name) + 1;
    *r = (struct plan_row){.w = w, .type = c->p->type != DT_NONE ? c->p->type : own_type(&w->view)};
    r->path = mem_alloc(n);
    if (!r->path)
        return err_nomem(e, n);
    snprintf(r->path, n, "%s%s", prefix, w->name);
    if (!w->is_vector) {
        c->n_matrices++;
        c->n_quantized += w->view.format->code != QUANT_DENSE;
        r->is_mlx = mlx_params(s, &w->view, &r->params);
        if (!c->j->o->dequantize && r->is_mlx) {
            r->action = PLAN_KEEP;
            if (c->p->type == DT_NONE || r->params.mode != QUANT_AFFINE)
                r->type = w->view.scale_dtype;
            c->n_kept++;
        } else if (c->j->o->quantize) {
            choose_encoding(c, r);
        }
    }
    enum tlm_status st = choose_input(c, r, e);
    if (st != TLM_OK)
        return st;
    measure(r);
    c->p->quantized = c->p->quantized || r->action != PLAN_PLAIN;
    c->p->bytes += r->code_bytes + r->scale_bytes * (r->params.mode == QUANT_AFFINE ? 2u : 1u);
    c->p->parameters += (uint64_t)w->view.rows * (uint64_t)w->view.cols;
    return TLM_OK;
}

/* Places of a layer's parts in the original's files. */
static int rank(const struct source_weight *w)
{
    static const char *const parts[] = {".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj",
                                        ".self_attn.o_proj", ".self_attn.",       ".mlp.gate_proj",
                                        ".mlp.down_proj",    ".mlp.up_proj"};
    if (w->layer < 0)
        return w->row->kind == ROW_EMBED ? -2 : w->row->kind == ROW_NORM ? 0 : 1;
    for (int i = 0; i < 8; i++)
        if (strstr(w->name, parts[i]))
            return i;
    return 8;
}

static int output_order(const void *a, const void *b)
{
    const struct source_weight *x = *(const struct source_weight *const *)a,
                               *y = *(const struct source_weight *const *)b;
    int rx = rank(x), ry = rank(y);
    /* The embedding, the layers, the norm, the head. */
    int px = x->layer >= 0 ? -1 : rx, py = y->layer >= 0 ? -1 : ry;
    if (px != py)
        return px < py ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (rx != ry)
        return rx < ry ? -1 : 1;
    return x < y ? -1 : x > y; /* the table's order */
}

static enum tlm_status plan_rows(struct planner *c, struct tlm_error *e)
{
    const struct source *s = c->j->source;
    const struct source_weight **order = mem_alloc_array(s->n_weights, sizeof *order);
    c->p->rows = mem_new_array(s->n_weights, sizeof *c->p->rows);
    if (!order || !c->p->rows) {
        mem_free(order);
        return err_nomem(e, s->n_weights * sizeof *c->p->rows);
    }
    for (size_t i = 0; i < s->n_weights; i++)
        order[i] = &s->weights[i];
    qsort(order, s->n_weights, sizeof *order, output_order);
    enum tlm_status st = TLM_OK;
    for (size_t i = 0; i < s->n_weights && st == TLM_OK; i++) {
        c->p->n++;
        st = plan_row(c, &c->p->rows[i], order[i], e);
    }
    mem_free(order);
    return st;
}

/* Settings ----------------------------------------------------------------- */

/* What plain matrices of a GGUF file are, bf16 where it has none: what models are trained in. */
static enum dtype gguf_type(const struct source *s)
{
    enum dtype found = DT_NONE;
    for (size_t i = 0; i < s->n_weights; i++)
        if (!s->weights[i].is_vector && s->weights[i].view.format->code == QUANT_DENSE) {
            enum dtype t = own_type(&s->weights[i].view);
            if (found != DT_NONE && found != t)
                return DT_BF16;
            found = t;
        } else if (!s->weights[i].is_vector) {
            return DT_BF16;
        }
    return found == DT_NONE ? DT_BF16 : found;
}

static enum tlm_status choose_type(struct plan *p, struct convert_job *j, struct tlm_error *e)
{
    static const char *const keys[] = {"torch_dtype", "dtype", "text_config.torch_dtype", "text_config.dtype"};
    const struct checkpoint *ck = j->source->model.ck;
    p->type = dtype_named(j->o->dtype);
    if (j->o->dtype && p->type == DT_NONE)
        return err_set(e, TLM_EINVAL, "dtype '%s': expected float16, bfloat16 or float32", j->o->dtype);
    for (size_t i = 0; i < 4 && p->type == DT_NONE; i++) {
        const cJSON *v = json_get(ck->config, keys[i]);
        if (cJSON_IsString(v))
            p->type = dtype_named(v->valuestring);
    }
    if (p->type == DT_NONE && ck->is_gguf)
        p->type = gguf_type(j->source);
    return p->type == DT_NONE ? TLM_OK : convert_note(j, e, "[INFO] Using dtype: %s", plan_dtype_name(p->type));
}

static enum tlm_status parse_overrides(struct planner *c, struct tlm_error *e)
{
    const struct tlm_convert_options *o = c->j->o;
    enum tlm_status s = TLM_OK;
    c->overrides = mem_new_array(o->n_overrides, sizeof *c->overrides);
    if (!c->overrides)
        return err_nomem(e, o->n_overrides * sizeof *c->overrides);
    for (size_t i = 0; i < o->n_overrides && s == TLM_OK; i++) {
        c->n_overrides++;
        s = parse_override(&c->overrides[i], o->overrides[i], &c->p->top, e);
    }
    return s;
}

/* The settings that stand at the top of config.json when a quantised model stays so. */
static void keep_top(struct plan *p, const struct checkpoint *ck)
{
    const struct plan_row *first = NULL;
    int64_t group = 0, bits = 0, seed = 0;
    const char *mode = "affine";
    json_int(ck->quantization, "seed", 0, INT64_MAX, &seed, NULL);
    json_int(ck->quantization, "group_size", 0, 1 << 20, &group, NULL);
    json_int(ck->quantization, "bits", 0, 32, &bits, NULL);
    json_str(ck->quantization, "mode", &mode, NULL);
    if (group && bits && quant_params_set(&p->top, mode, (int)bits, (int)group, NULL) == TLM_OK) {
        p->top.seed = p->top.mode == QUANT_TURBO ? (uint64_t)seed : 0;
        return;
    }
    for (size_t i = 0; i < p->n && !first; i++)
        if (p->rows[i].action == PLAN_KEEP)
            first = &p->rows[i];
    if (first)
        p->top = first->params;
}

static bool same_params(const struct quant_params *a, const struct quant_params *b)
{
    return a->mode == b->mode && a->bits == b->bits && a->group == b->group && a->seed == b->seed;
}

static enum tlm_status finish(struct planner *c, struct tlm_error *e)
{
    struct plan *p = c->p;
    for (size_t i = 0; i < c->n_overrides; i++)
        if (!c->overrides[i].used)
            return err_set(e, TLM_EINVAL, "override '%s' matches no module of %s that can be quantised",
                           c->overrides[i].text, c->j->model);
    if (c->n_kept)
        keep_top(p, c->j->source->model.ck);
    for (size_t i = 0; i < p->n; i++)
        if (p->rows[i].action != PLAN_PLAIN && !same_params(&p->rows[i].params, &p->top))
            p->rows[i].listed = true;
    if (c->n_kept && c->j->o->quantize)
        log_warn("%s: %zu of %zu matrices are quantised already and stay as they are (dequantise first to change them)",
                 c->j->model, c->n_kept, c->n_matrices);
    if (c->j->o->quantize && !p->quantized && !c->n_odd)
        log_warn("%s: none of the matrices is quantised", c->j->model);
    if (c->j->o->dequantize && !c->n_quantized)
        log_warn("%s: none of the matrices is quantised: there is nothing to dequantise", c->j->model);
    if (c->n_odd)
        log_warn("%s: %zu of %zu matrices are not quantised, because their inputs are no multiple of the group size %d",
                 c->j->model, c->n_odd, c->n_matrices, c->odd_group);
    return TLM_OK;
}

static enum tlm_status check_options(struct plan *p, const struct tlm_convert_options *o, struct tlm_error *e)
{
    static const char *const recipes[] = {"mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6"};
    const char *mode = o->mode ? o->mode : "affine";
    bool known = !o->recipe;
    for (size_t i = 0; i < 4 && !known; i++)
        known = !strcmp(o->recipe, recipes[i]);
    if (!known)
        return err_set(e, TLM_EINVAL, "Invalid quant recipe %s", o->recipe);
    if (o->recipe && strcmp(mode, "affine") != 0)
        return err_set(e, TLM_EINVAL, "Quant predicates only support 'affine' quantization.");
    if (!o->quantize && (o->recipe || o->n_overrides))
        return err_set(e, TLM_EINVAL, "%s without quantising", o->recipe ? "a recipe" : "overrides");
    if (o->seed > SEED_MAX)
        return err_set(e, TLM_EINVAL, "seed: %llu, expected at most %llu", (unsigned long long)o->seed,
                       (unsigned long long)SEED_MAX);
    if (o->turboquant && (!o->quantize || o->n_overrides || p->top.mode == QUANT_TURBO))
        return err_set(e, TLM_EINVAL, "turboquant: needs quantising in mode affine or lut, without overrides");
    enum tlm_status s = quant_params_set(&p->top, mode, o->bits, o->group_size, e);
    p->top.seed = o->turboquant || p->top.mode == QUANT_TURBO ? o->seed : 0;
    return s;
}

enum tlm_status plan_make(struct plan *p, struct convert_job *j, struct tlm_error *e)
{
    struct planner c = {.p = p, .j = j};
    *p = (struct plan){0};
    enum tlm_status s = check_options(p, j->o, e);
    if (s == TLM_OK)
        s = choose_type(p, j, e);
    if (s == TLM_OK)
        s = parse_overrides(&c, e);
    if (s == TLM_OK)
        s = plan_rows(&c, e);
    if (s == TLM_OK)
        s = finish(&c, e);
    for (size_t i = 0; i < c.n_overrides; i++)
        mem_free(c.overrides[i].pattern);
    mem_free(c.overrides);
    return s;
}

void plan_deinit(struct plan *p)
{
    for (size_t i = 0; i < p->n; i++)
        mem_free(p->rows[i].path);
    mem_free(p->rows);
    *p = (struct plan){0};
}
