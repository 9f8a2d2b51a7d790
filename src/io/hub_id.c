/* Names of models, revisions and files. */
#include "io/hub_id.h"

#include <string.h>

static const char alnum[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

static bool has_suffix(const char *s, size_t n, const char *suffix)
{
    size_t k = strlen(suffix);
    return n >= k && memcmp(s + n - k, suffix, k) == 0;
}

/* The hub's own rules for names of users and repositories. */
static bool repo_is_valid(const char *s)
{
    size_t n = strlen(s);
    const char *slash = strchr(s, '/');
    if (!slash || slash == s || !slash[1] || strchr(slash + 1, '/') || strstr(s, "--") || strstr(s, ".."))
        return false;
    if (has_suffix(s, n, ".git") || has_suffix(s, n, ".gguf"))
        return false;
    for (const char *p = s; *p; p++) {
        bool edge = p == s || p == slash + 1 || p + 1 == slash || !p[1];
        if (p != slash && !strchr(alnum, *p) && *p != '_' && (edge || (*p != '-' && *p != '.')))
            return false;
    }
    return true;
}

/* What git allows in the name of a ref, less what is odd in a path. */
static bool revision_is_valid(const char *s)
{
    for (const char *p = s; *p; p++) {
        bool first = p == s || p[-1] == '/';
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f || strchr("~^:?*[\\@{", *p))
            return false;
        if (first && (*p == '/' || *p == '.' || *p == '-'))
            return false;
        if (*p == '.' && p[1] == '.')
            return false;
    }
    size_t n = strlen(s);
    return n > 0 && s[n - 1] != '/' && s[n - 1] != '.' && !has_suffix(s, n, ".lock");
}

static bool copy_part(char *out, size_t max, const char *from, size_t n)
{
    if (n == 0 || n > max)
        return false;
    memcpy(out, from, n);
    out[n] = 0;
    return true;
}

bool hub_id_parse(const char *text, struct hub_id *out)
{
    *out = (struct hub_id){.revision = "main"};
    const char *colon = strchr(text, ':');
    const char *end = colon ? colon : text + strlen(text);
    const char *at = memchr(text, '@', (size_t)(end - text));
    const char *name_end = at ? at : end;
    if (!copy_part(out->repo, HUB_REPO_MAX, text, (size_t)(name_end - text)) || !repo_is_valid(out->repo))
        return false;
    if (at && (!copy_part(out->revision, HUB_REVISION_MAX, at + 1, (size_t)(end - at - 1)) ||
               !revision_is_valid(out->revision)))
        return false;
    return !colon || (copy_part(out->pick, HUB_PICK_MAX, colon + 1, strlen(colon + 1)) && hub_name_is_safe(out->pick));
}

bool hub_is_hex(const char *s, int n)
{
    return (int)strspn(s, "0123456789abcdef") == n && s[n] == 0;
}

bool hub_is_commit(const char *s)
{
    return hub_is_hex(s, 40);
}

bool hub_name_is_safe(const char *name)
{
    enum { DEPTH_MAX = 32, PART_MAX = 255 };
    int depth = 0;
    if (!*name || strlen(name) > HUB_NAME_MAX)
        return false;
    for (const char *p = name;;) {
        size_t n = strcspn(p, "/");
        if (n == 0 || n > PART_MAX || ++depth > DEPTH_MAX || (p[0] == '.' && (n == 1 || (n == 2 && p[1] == '.'))))
            return false;
        for (size_t i = 0; i < n; i++) {
            unsigned char c = (unsigned char)p[i];
            /* also the control characters that UTF-8 writes as two bytes */
            if (c < 0x20 || c == 0x7f || c == '\\' || (c == 0xc2 && (unsigned char)p[i + 1] < 0xa0))
                return false;
        }
        if (!p[n])
            return true;
        p += n + 1;
    }
}
