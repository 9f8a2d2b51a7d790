/* Names: of models on a hub, of revisions, of files in a repository. All come
 * from users and servers and end up in paths, so the rules are strict. */
#ifndef IO_HUB_ID_H
#define IO_HUB_ID_H

#include <stdbool.h>

enum { HUB_REPO_MAX = 96, HUB_REVISION_MAX = 200, HUB_PICK_MAX = 512, HUB_NAME_MAX = 1024 };

struct hub_id {
    char repo[HUB_REPO_MAX + 1];         /* "org/name" */
    char revision[HUB_REVISION_MAX + 1]; /* "main" when none is given */
    char pick[HUB_PICK_MAX + 1];         /* after the colon; "" when none is given */
};

/* "org/name[@revision][:pick]"; false for everything else. */
bool hub_id_parse(const char *text, struct hub_id *out);
/* 40 lower-case hexadecimal digits. */
bool hub_is_commit(const char *s);
/* n lower-case hexadecimal digits and nothing else. */
bool hub_is_hex(const char *s, int n);
/* A relative path that stays below where it is put, without control characters. */
bool hub_name_is_safe(const char *name);

#endif
