/* The conversation of turbolm chat, and its file: a JSON array of objects with
 * role, content and, for answers, reasoning_content. */
#define _XOPEN_SOURCE 700
#include "chat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

enum { FILE_MAX = 1 << 26 };

static const char *const role_names[] = {"system", "user", "assistant"};

static char *copy_text(const char *text)
{
    size_t n = strlen(text);
    char *out = tool_alloc(n + 1, 1);
    memcpy(out, text, n);
    return out;
}

void messages_add(struct chat_messages *c, enum chat_role role, char *content, char *reasoning)
{
    if (c->n == c->room) {
        c->room = c->room > 0 ? 2 * c->room : 16;
        c->list = tool_grow(c->list, c->room, sizeof *c->list);
    }
    c->list[c->n++] = (struct chat_message){role, content, reasoning};
}

void messages_drop_last(struct chat_messages *c)
{
    struct chat_message *m = &c->list[--c->n];
    tool_free(m->content);
    tool_free(m->reasoning);
}

void messages_clear(struct chat_messages *c)
{
    size_t keep = messages_system(c) != NULL;
    while (c->n > keep)
        messages_drop_last(c);
}

void messages_free(struct chat_messages *c)
{
    while (c->n > 0)
        messages_drop_last(c);
    tool_free(c->list);
    *c = (struct chat_messages){0};
}

const char *messages_system(const struct chat_messages *c)
{
    return c->n > 0 && c->list[0].role == CHAT_SYSTEM ? c->list[0].content : NULL;
}

void messages_set_system(struct chat_messages *c, const char *text)
{
    if (messages_system(c) != NULL) {
        tool_free(c->list[0].content);
        tool_free(c->list[0].reasoning);
        memmove(c->list, c->list + 1, --c->n * sizeof *c->list);
    }
    if (text == NULL)
        return;
    messages_add(c, CHAT_SYSTEM, copy_text(text), NULL);
    struct chat_message m = c->list[c->n - 1];
    memmove(c->list + 1, c->list, (c->n - 1) * sizeof *c->list);
    c->list[0] = m;
}

int messages_end_with(const struct chat_messages *c, enum chat_role role)
{
    return c->n > 0 && c->list[c->n - 1].role == role;
}

char *messages_text(const struct chat_messages *c, int indent)
{
    cJSON *array = cJSON_CreateArray();
    int good = array != NULL;
    for (size_t i = 0; good && i < c->n; i++) {
        const struct chat_message *m = &c->list[i];
        cJSON *object = cJSON_CreateObject();
        good = cJSON_AddItemToArray(array, object) && cJSON_AddStringToObject(object, "role", role_names[m->role]) &&
               cJSON_AddStringToObject(object, "content", m->content) &&
               (m->reasoning == NULL || cJSON_AddStringToObject(object, "reasoning_content", m->reasoning));
    }
    char *text = !good ? NULL : indent ? cJSON_Print(array) : cJSON_PrintUnformatted(array);
    cJSON_Delete(array);
    if (text == NULL) {
        out_error("out of memory");
        exit(1);
    }
    return text;
}

/* Writing: a new file beside it, then its name, so that a failure leaves what was there. */

static int write_file(const char *path, const char *text, mode_t mode)
{
    FILE *f = fopen(path, "wx");
    if (f == NULL)
        return 0;
    size_t n = strlen(text);
    int good = (mode == 0 || fchmod(fileno(f), mode) == 0) && fwrite(text, 1, n, f) == n && fputc('\n', f) != EOF &&
               fflush(f) == 0 && fsync(fileno(f)) == 0;
    int saved = errno;
    if (fclose(f) != 0 && good) {
        good = 0;
        saved = errno;
    }
    if (!good)
        unlink(path);
    errno = saved;
    return good;
}

/* Where path leads, so that a link stays one; path itself where nothing is there. NULL: errno says why. */
static char *save_target(const char *path)
{
    struct stat st;
    char *real = realpath(path, NULL);
    if (real != NULL || errno != ENOENT)
        return real;
    if (lstat(path, &st) == 0) { /* a link whose target is not there */
        errno = ENOENT;
        return NULL;
    }
    return copy_text(path);
}

int messages_save(const struct chat_messages *c, const char *path)
{
    struct stat st;
    int exists = stat(path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode)) {
        out_error("%s: not a regular file", path);
        return 0;
    }
    char *target = save_target(path);
    if (target == NULL) {
        out_error("%s: cannot save: %s", path, strerror(errno));
        return 0;
    }
    const char *temporary = begin_unfinished(target);
    char *text = messages_text(c, 1);
    int good = write_file(temporary, text, exists ? st.st_mode & 0777 : 0);
    if (good && rename(temporary, target) != 0) {
        int saved = errno;
        unlink(temporary);
        errno = saved;
        good = 0;
    }
    if (!good)
        out_error("%s: cannot save: %s", path, strerror(errno));
    cJSON_free(text);
    end_unfinished();
    tool_free(target);
    return good;
}

/* Reading. */

/* The file with a NUL behind it, or NULL after a message. */
static char *read_file(const char *path, size_t *len)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nothing writes to must not stop it */
    int good = fd >= 0 && fstat(fd, &st) == 0;
    if (!good)
        out_error("%s: %s", path, strerror(errno));
    if (good && (!S_ISREG(st.st_mode) || st.st_size > FILE_MAX)) {
        out_error("%s: not a regular file of at most %d bytes", path, FILE_MAX);
        good = 0;
    }
    FILE *f = good ? fdopen(fd, "rb") : NULL;
    if (f == NULL) {
        if (good)
            out_error("%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    size_t n = (size_t)st.st_size;
    char *text = tool_alloc(n + 1, 1);
    *len = fread(text, 1, n, f);
    int failed = ferror(f);
    fclose(f);
    if (!failed)
        return text;
    out_error("%s: cannot read: %s", path, strerror(errno));
    tool_free(text);
    return NULL;
}

/* cJSON cuts strings at an escaped NUL. */
static int has_escaped_nul(const char *text)
{
    for (const char *p = strchr(text, '\\'); p != NULL; p = strchr(p, '\\')) {
        if (strncmp(p, "\\u0000", 6) == 0)
            return 1;
        p += p[1] != '\0' ? 2 : 1;
    }
    return 0;
}

/* NULL when the object is a message of this conversation, else what is wrong with it. */
static const char *read_message(const cJSON *object, size_t i, struct chat_message *m)
{
    const char *texts[3] = {NULL, NULL, NULL};
    static const char *const keys[3] = {"role", "content", "reasoning_content"};
    if (!cJSON_IsObject(object))
        return "is not an object";
    for (const cJSON *item = object->child; item != NULL; item = item->next) {
        size_t k = 0;
        while (k < 3 && strcmp(item->string, keys[k]) != 0)
            k++;
        if (k == 3)
            return "has a key other than role, content and reasoning_content";
        if (texts[k] != NULL)
            return "has a key twice";
        if (!cJSON_IsString(item))
            return "has a value that is not a string";
        texts[k] = item->valuestring;
    }
    if (texts[0] == NULL || texts[1] == NULL)
        return "has no role or no content";
    size_t role = 0;
    while (role < 3 && strcmp(texts[0], role_names[role]) != 0)
        role++;
    if (role == 3)
        return "has a role other than system, user and assistant";
    if (role == CHAT_SYSTEM && i > 0)
        return "has the role system, which only the first may have";
    if (role != CHAT_ASSISTANT && texts[2] != NULL)
        return "has reasoning_content and is not the assistant's";
    *m = (struct chat_message){(enum chat_role)role, copy_text(texts[1]), texts[2] ? copy_text(texts[2]) : NULL};
    return NULL;
}

static int read_messages(const cJSON *array, const char *path, struct chat_messages *out)
{
    size_t i = 0;
    if (!cJSON_IsArray(array)) {
        out_error("%s: not a JSON array of messages", path);
        return 0;
    }
    for (const cJSON *item = array->child; item != NULL; item = item->next, i++) {
        struct chat_message m;
        const char *wrong = read_message(item, i, &m);
        if (wrong != NULL) {
            out_error("%s: message %zu %s", path, i + 1, wrong);
            return 0;
        }
        messages_add(out, m.role, m.content, m.reasoning);
    }
    return 1;
}

int messages_load(struct chat_messages *c, const char *path)
{
    struct chat_messages loaded = {0};
    size_t len = 0;
    char *text = read_file(path, &len);
    if (text == NULL)
        return 0;
    int good = 0;
    size_t valid = tool_utf8_valid(text, len);
    if (strlen(text) != len || has_escaped_nul(text)) {
        out_error("%s: has a NUL byte", path);
    } else if (valid != len) {
        out_error("%s: is not valid UTF-8 at byte %zu", path, valid);
    } else {
        cJSON *array = cJSON_ParseWithLengthOpts(text, len + 1, NULL, 1);
        good = read_messages(array, path, &loaded);
        cJSON_Delete(array);
    }
    tool_free(text);
    if (good) {
        messages_free(c);
        *c = loaded;
    } else {
        messages_free(&loaded);
    }
    return good;
}
