/* Lines of a CSV file. */
#include "csv.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

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

int csv_open(struct csv *c, const char *path, const char *heading)
{
    struct stat st;
    *c = (struct csv){.path = path, .heading = heading, .fresh = 1};
    if (strcmp(path, "-") == 0)
        return 0;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
        FILE *old = fopen(path, "rb");
        int bad = old != NULL && check_old(c, old);
        if (old == NULL)
            out_error("%s: cannot read: %s", path, strerror(errno));
        else
            fclose(old);
        if (old == NULL || bad)
            return 1;
        c->fresh = 0;
    }
    c->file = fopen(path, "ab");
    if (c->file != NULL)
        return 0;
    out_error("%s: cannot write: %s", path, strerror(errno));
    return 1;
}

static void put(struct csv *c, const char *text, size_t n)
{
    if (c->file == NULL)
        out_write(text, n);
    else if (!c->bad && fwrite(text, 1, n, c->file) != n)
        c->bad = errno != 0 ? errno : EIO;
}

static void start(struct csv *c)
{
    if (c->fresh)
        put(c, c->heading, strlen(c->heading));
    c->fresh = 0;
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
    put(c, text, strlen(text));
}

int csv_close(struct csv *c, int status)
{
    if (c->file == NULL)
        return status;
    errno = 0;
    if (fclose(c->file) != 0 && !c->bad)
        c->bad = errno != 0 ? errno : EIO;
    c->file = NULL;
    if (!c->bad)
        return status;
    out_error("%s: cannot write: %s", c->path, strerror(c->bad));
    return status != 0 ? status : 1;
}
