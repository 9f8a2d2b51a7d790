/* Running a conversion: the model is fetched, progress shown, signals end it. */
#include "convert_run.h"

#include <string.h>
#include <unistd.h>

#include "fetch_bar.h"
#include "out.h"
#include "run.h"

struct job {
    int terminal, quiet;
    struct meter meter;
};

static int report(void *user, const struct tlm_convert_progress *p)
{
    struct job *j = user;
    if (p->note != NULL && j->quiet)
        return 0;
    if (p->note != NULL) {
        meter_clear(&j->meter);
        out_print("%s\n", p->note);
        out_flush();
    } else if (j->terminal) {
        if (!j->meter.shown)
            meter_start(&j->meter, p->done_bytes);
        meter_show(&j->meter, "writing", p->done_bytes, p->total_bytes, p->name, p->done_bytes == p->total_bytes);
    }
    return interrupted() || terminated() || out_failed();
}

/* "org/name" of a name on a hub; NULL for what exists here. Free with tool_free. */
static char *hub_name(const char *model)
{
    if (access(model, F_OK) == 0)
        return NULL;
    size_t n = strcspn(model, "@:");
    char *name = tool_alloc(n + 1, 1);
    memcpy(name, model, n);
    return name;
}

int convert_run(struct convert_run *r)
{
    struct tlm_error e = {TLM_OK, ""};
    struct job j = {.terminal = isatty(2), .quiet = r->quiet};
    char *path;
    r->options->progress = report;
    r->options->user = &j;
    if (access(r->out, F_OK) == 0) /* before anything is fetched */
        return tlm_convert(".", r->out, r->options, &e) == TLM_OK ? 0 : out_tlm_error(&e);
    int status = run_resolve(r->model, &path);
    if (status != 0)
        return status;
    char *name = hub_name(r->model);
    r->options->base_model = name;
    catch_interrupt();
    catch_terminations();
    if (tlm_convert(path, r->out, r->options, &e) != TLM_OK) {
        meter_end(&j.meter);
        if (interrupted())
            status = EXIT_INTERRUPTED;
        else if (terminated() ||
                 e.status == TLM_ECANCELED) /* by the signal, or as the output fails, which is said at the end */
            status = 1;
        else
            status = out_tlm_error(&e);
    }
    meter_clear(&j.meter);
    release_interrupt();
    tool_free(name);
    tlm_hub_path_free(path);
    end_if_terminated();
    return status;
}
