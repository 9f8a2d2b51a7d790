/* tlm_convert: checks, opening, the choice of the target. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cpu.h"
#include "base/file.h"
#include "convert/convert_job.h"

enum tlm_status convert_report(struct convert_job *j, const char *name, uint64_t bytes, struct tlm_error *e)
{
    j->done += bytes;
    struct tlm_convert_progress p = {.name = name, .done_bytes = j->done, .total_bytes = j->total};
    if (j->o->progress && j->o->progress(j->o->user, &p) != 0)
        return err_set(e, TLM_ECANCELED, "%s: the conversion was ended", j->out);
    return TLM_OK;
}

enum tlm_status convert_note(struct convert_job *j, struct tlm_error *e, const char *format, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    struct tlm_convert_progress p = {.note = line};
    if (j->o->progress && j->o->progress(j->o->user, &p) != 0)
        return err_set(e, TLM_ECANCELED, "%s: the conversion was ended", j->out);
    return TLM_OK;
}

static enum tlm_status run(struct convert_job *j, struct tlm_error *e)
{
    enum tlm_status s = convert_note(j, e, "[INFO] Loading");
    if (s == TLM_OK)
        s = source_open(j->model, &j->source, e);
    if (s == TLM_OK)
        s = pool_new(j->o->threads ? j->o->threads : cpu_physical_cores(), &j->pool, e);
    if (s != TLM_OK)
        return s;
    return j->o->to_gguf ? convert_to_gguf(j, e) : convert_to_mlx(j, e);
}

enum tlm_status tlm_convert(const char *model, const char *out, const struct tlm_convert_options *o,
                            struct tlm_error *e)
{
    static const struct tlm_convert_options defaults;
    if (!model || !*model || !out || !*out)
        return err_set(e, TLM_EINVAL, "%s: no path given", !model || !*model ? "model" : "out");
    struct stat st;
    if (lstat(out, &st) != 0 && errno != ENOENT && errno != ENOTDIR)
        return err_set(e, TLM_EIO, "%s: cannot be written: %s", out, strerror(errno));
    if (file_exists(out))
        return err_set(e, TLM_EIO,
                       "Cannot save to the path %s as it already exists. Please delete the file/directory or specify "
                       "a new path to save to.",
                       out);
    struct convert_job j = {.model = model, .out = out, .o = o ? o : &defaults};
    if (j.o->threads < 0)
        return err_set(e, TLM_EINVAL, "threads: %d, expected 0 or more", j.o->threads);
    if (j.o->quantize && j.o->dequantize)
        return err_set(e, TLM_EINVAL, "Choose either quantize or dequantize, not both.");
    enum tlm_status s = run(&j, e);
    pool_free(j.pool);
    source_close(j.source);
    return s;
}
