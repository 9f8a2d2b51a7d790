/* Lines of a CSV file. */
#include "csv.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A regular file with something in it must be one of these tables. */
static int check_old(const struct csv *c, FILE *f)
{
    size_t n = strlen(c->heading), i = 0;
    int ch = 0;
    while (i < n && (ch = getc(f)) == c->heading[i])
        i++;
    if (i < n && ferror(f))
        out_error("%s: cannot read: %s", c->path, strerror(errno));
    else if (i < n)
        out_error("%s: its first line is not the heading of this table", c->path);
    else if (fseek(f, -1, SEEK_END) != 0 || getc(f) != '\n')
        out_error("%s: its last line has no end", c->path);
    else
        return 0;
    return 1;
}

static int open_file(struct csv *c)
{
    struct stat st;
    if (stat(c->path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
        FILE *old = fopen(c->path, "rb");
        int bad = old != NULL && check_old(c, old);
        if (old == NULL)
            out_error("%s: cannot read: %s", c->path, strerror(errno));
        else
            fclose(old);
        if (old == NULL || bad)
            return 1;
        c->begun = 1;
    }
    c->file = fopen(c->path, "ab");
    if (c->file != NULL)
        return 0;
    out_error("%s: cannot write: %s", c->path, strerror(errno));
    return 1;
}

/* Whether the folder takes a new file of that name. */
static int check_folder(const struct csv *c)
{
    size_t n = strlen(c->path);
    char *folder = tool_alloc(n + 2, 1);
    memcpy(folder, c->path, n);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        memcpy(folder, ".", 2);
    else
        slash[slash == folder] = '\0';
    int bad = n == 0 || access(folder, W_OK | X_OK) != 0;
    if (bad)
        out_error("%s: cannot write: %s", c->path, strerror(n == 0 ? ENOENT : errno));
    tool_free(folder);
    return bad;
}

int csv_open(struct csv *c, const char *path, const char *heading)
{
    struct stat st;
    *c = (struct csv){.path = path, .heading = heading, .to_file = strcmp(path, "-") != 0};
    if (!c->to_file)
        return 0;
    if (stat(path, &st) == 0)
        return open_file(c);
    if (errno == ENOENT)
        return check_folder(c);
    out_error("%s: cannot write: %s", path, strerror(errno));
    return 1;
}

static void fail(struct csv *c)
{
    if (!c->bad)
        out_error("%s: cannot write: %s", c->path, strerror(errno != 0 ? errno : EIO));
    c->bad = 1;
}

static void put(struct csv *c, const char *text, size_t n)
{
    errno = 0;
    if (!c->to_file)
        out_write(text, n);
    else if (!c->bad && fwrite(text, 1, n, c->file) != n)
        fail(c);
}

static void start(struct csv *c)
{
    if (c->to_file && c->file == NULL && !c->bad)
        c->bad = open_file(c);
    if (!c->begun)
        put(c, c->heading, strlen(c->heading));
    c->begun = 1;
}

static void end_row(struct csv *c)
{
    errno = 0;
    if (!c->to_file)
        out_flush();
    else if (!c->bad && fflush(c->file) != 0)
        fail(c);
}

void csv_text(struct csv *c, const char *text)
{
    start(c);
    if (strpbrk(text, "\",\r\n") == NULL) {
        put(c, text, strlen(text));
        return;
    }
    put(c, "\"", 1);
    for (size_t n; *text != '\0'; text += n) {
        n = strcspn(text, "\"");
        put(c, text, n);
        if (text[n] == '"') {
            put(c, "\"\"", 2);
            n++;
        }
    }
    put(c, "\"", 1);
}

void csv_print(struct csv *c, const char *fmt, ...)
{
    char text[500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    start(c);
    size_t n = strlen(text);
    put(c, text, n);
    if (n > 0 && text[n - 1] == '\n')
        end_row(c);
}

int csv_failed(const struct csv *c)
{
    return c->bad;
}

int csv_close(struct csv *c, int status)
{
    errno = 0;
    if (c->file != NULL && fclose(c->file) != 0)
        fail(c);
    c->file = NULL;
    return status == 0 && c->bad ? 1 : status;
}
