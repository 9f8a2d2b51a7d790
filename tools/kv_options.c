/* Options of the key-value cache: mlx-lm's and mlx_turboquant's names and ours
 * are one choice of format. */
#include <stdio.h>
#include <string.h>

#include "run.h"

static int from_bits(const struct cli_value *run, const struct run_cache *cache, char format[RUN_KV_FORMAT_MAX])
{
    int bits = (int)cache->bits->integer, group = (int)cache->group_size->integer;
    int qjl = run[RUN_QJL].truth;
    if (strchr(qjl ? "2348" : "234568", '0' + bits) == NULL) {
        out_error("--kv-bits %d: expected %s", bits, qjl ? "2, 3, 4 or 8 with --qjl" : "2, 3, 4, 5, 6 or 8");
        return 2;
    }
    if (group != 64 && (qjl || (group != 32 && group != 128))) {
        out_error("--kv-group-size %d: expected %s", group, qjl ? "64 with --qjl" : "32, 64 or 128");
        return 2;
    }
    if (qjl)
        snprintf(format, RUN_KV_FORMAT_MAX, "rot%d+qjl", bits);
    else
        snprintf(format, RUN_KV_FORMAT_MAX, "affine%dg%d", bits, group);
    return 0;
}

int run_kv_options(const struct cli_value *run, const struct run_cache *cache, struct tlm_model_options *o,
                   char format[RUN_KV_FORMAT_MAX])
{
    int has_bits = cache->bits->given, has_format = run[RUN_KV_FORMAT].given;
    if (has_bits && has_format) {
        out_error("--kv-bits and --kv-format exclude each other");
        return 2;
    }
    if (!has_bits && (run[RUN_QJL].given || (cache->group_size->given && cache->file == NULL))) {
        out_error("%s needs --kv-bits", run[RUN_QJL].given ? "--qjl" : "--kv-group-size");
        return 2;
    }
    o->kv_format = run[RUN_KV_FORMAT].text;
    if (has_bits) {
        int status = from_bits(run, cache, format);
        if (status != 0)
            return status;
        o->kv_format = format;
    }
    o->kv_sink = run[RUN_KV_SINK].integer == 0 ? -1 : run[RUN_KV_SINK].integer;
    if (cache->max_size->given)
        o->max_kv_size = cache->max_size->integer;
    if (has_bits || cache->start->given)
        o->quantized_kv_start = cache->start->integer;
    return cache->file != NULL ? run_kv_of_file(run, cache, o) : 0;
}

static int mismatch(const char *option)
{
    out_error("%s does not match the kv cache loaded from --prompt-cache-file.", option);
    return 2;
}

int run_kv_of_file(const struct cli_value *run, const struct run_cache *cache, struct tlm_model_options *o)
{
    const struct tlm_prompt_cache_info *f = cache->file;
    int ours = f->tokens != NULL, chosen = cache->bits->given || run[RUN_KV_FORMAT].given;
    if (cache->bits->given && (f->kv_bits != 0 || ours) && (run[RUN_QJL].given || cache->bits->integer != f->kv_bits))
        return mismatch("--kv-bits");
    if (cache->group_size->given && (f->kv_bits != 0 || ours) && cache->group_size->integer != f->kv_group_size)
        return mismatch("--kv-group-size");
    if (ours && run[RUN_KV_SINK].given && run[RUN_KV_SINK].integer != f->kv_sink)
        return mismatch("--kv-sink");
    if (ours && cache->start->given && cache->start->integer != f->quantized_kv_start)
        return mismatch("--quantized-kv-start");
    if (f->max_kv_size >= 0 && cache->max_size->given && cache->max_size->integer != f->max_kv_size &&
        (ours || f->max_kv_size > 0))
        return mismatch("--max-kv-size");
    /* The group size of --kv-bits is a default, which yields to the file's. */
    if ((!chosen || (cache->bits->given && f->kv_bits != 0)) && f->kv_format != NULL)
        o->kv_format = f->kv_format;
    if (f->kv_sink >= 0)
        o->kv_sink = f->kv_sink == 0 ? -1 : f->kv_sink;
    if (f->quantized_kv_start >= 0 && !cache->start->given)
        o->quantized_kv_start = f->quantized_kv_start;
    if (f->max_kv_size > 0) {
        o->max_kv_size = f->max_kv_size;
        o->max_kv_keep = f->max_kv_keep == 0 ? -1 : f->max_kv_keep;
    }
    return 0;
}

int64_t run_kv_start(const struct run_cache *cache)
{
    if (cache->bits->given || cache->start->given)
        return cache->start->integer;
    return cache->file != NULL && cache->file->quantized_kv_start > 0 ? cache->file->quantized_kv_start : 0;
}

void run_kv_report(const struct cli_value *run, const struct run_cache *cache, const struct tlm_model *m)
{
    static const char *const exact[] = {"f32", "f16", "bf16"};
    const char *format = run[RUN_KV_FORMAT].text;
    int chosen = cache->bits->given || run[RUN_KV_FORMAT].given, inert = !chosen && cache->file == NULL;
    struct tlm_model_info info;
    for (size_t i = 0; !cache->bits->given && format != NULL && i < sizeof exact / sizeof exact[0]; i++)
        inert |= strcmp(format, exact[i]) == 0;
    if (inert && run[RUN_KV_SINK].given)
        out_warning("--kv-sink has no effect on a cache that is not quantised");
    if (inert && cache->start->given)
        out_warning("--quantized-kv-start has no effect on a cache that is not quantised");
    if (!chosen)
        return;
    tlm_model_info_get(m, &info);
    int64_t start = inert ? 0 : run_kv_start(cache);
    fprintf(stderr, "[INFO] Key-value cache: %s, %.2f bits per element", info.kv_format, info.kv_bits);
    if (start > 0)
        fprintf(stderr, ", once there are %lld tokens", (long long)start);
    fputc('\n', stderr);
}
