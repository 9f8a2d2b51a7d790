/* Any bytes as a hub's listing and as the cache's copy of one: refused, or names
 * are safe, checksums are hexadecimal, and writing and reading gives the same. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "io/hub_id.h"
#include "io/hub_list.h"

static void check(const struct hub_listing *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct hub_file *f = &l->files[i];
        if (!hub_name_is_safe(f->name) || f->size < -1)
            abort();
        if (f->etag[0] && !hub_is_hex(f->etag, 40) && !hub_is_hex(f->etag, HUB_ETAG_MAX))
            abort();
    }
}

static void choose(struct hub_listing *l)
{
    static const char *const picks[] = {"", "Q4_K_M", "m.gguf", "m"};
    for (size_t i = 0; i < sizeof picks / sizeof picks[0]; i++) {
        struct tlm_error e = {TLM_OK, ""};
        const char *main;
        size_t wanted = 0;
        enum tlm_status s = hub_listing_choose(l, "o/n", picks[i], &main, &e);
        for (size_t k = 0; k < l->n; k++)
            wanted += l->files[k].wanted;
        if (s == TLM_OK && wanted == 0)
            abort();
    }
}

static void round_trip(const struct hub_listing *l)
{
    struct hub_listing again = {0};
    char *text = NULL;
    if (hub_listing_to_tree(l, &text, NULL) != TLM_OK)
        abort();
    if (text && hub_listing_from_tree(&again, text, strlen(text), "tree", NULL) == TLM_OK) {
        if (again.n != l->n)
            abort();
        for (size_t i = 0; i < l->n; i++)
            if (strcmp(l->files[i].name, again.files[i].name) != 0 ||
                strcmp(l->files[i].etag, again.files[i].etag) != 0)
                abort();
    } else if (text) {
        abort();
    }
    hub_listing_deinit(&again);
    mem_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hub_listing l = {0};
    if (hub_listing_from_api(&l, (const char *)data, size, "api", NULL) == TLM_OK) {
        check(&l);
        choose(&l);
        round_trip(&l);
    }
    hub_listing_deinit(&l);
    if (hub_listing_from_tree(&l, (const char *)data, size, "tree", NULL) == TLM_OK)
        check(&l);
    hub_listing_deinit(&l);
    return 0;
}
