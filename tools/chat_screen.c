/* What turbolm chat puts on the screen.
 *
 * On a terminal: a panel, rules, dim lines, and the model's text with control
 * characters made visible. Into a file or pipe: the same words without escape
 * codes, and the model's text as it is. NO_COLOR turns colours off. */
#define _XOPEN_SOURCE 700
#include "chat.h"

#include <langinfo.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#define DIM "\033[2m"
#define BOLD "\033[1m"
#define NORMAL "\033[0m"
#define LINE "\xE2\x94\x80" /* ─ */

enum { SYSTEM_SHOWN = 60, LABEL = 13, NOTE_MAX = 1024 };

static int terminal, escapes, colours;

void screen_init(void)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    setlocale(LC_CTYPE, ""); /* the width of characters */
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    terminal = isatty(STDOUT_FILENO);
    escapes = terminal && term != NULL && *term != '\0' && strcmp(term, "dumb") != 0;
    colours = escapes && (no_color == NULL || *no_color == '\0');
}

int screen_is_terminal(void)
{
    return terminal;
}

int screen_has_escapes(void)
{
    return escapes;
}

int screen_has_colours(void)
{
    return colours;
}

size_t screen_width(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    const char *columns = getenv("COLUMNS");
    long n = columns != NULL ? strtol(columns, NULL, 10) : 0;
    return n > 0 && n < 10000 ? (size_t)n : 80;
}

void screen_restore(void)
{
    if (colours && write(STDOUT_FILENO, NORMAL, sizeof NORMAL - 1) < 0)
        colours = 0;
}

static void style(const char *code)
{
    if (colours)
        out_print("%s", code);
}

void screen_dim(int on)
{
    style(on ? DIM : NORMAL);
}

void screen_rule(void)
{
    size_t width = screen_width();
    style(DIM);
    for (size_t i = 0; i < (width > 11 ? width - 1 : 10); i++)
        out_print(LINE);
    style(NORMAL);
    out_print("\n");
}

/* The character at p of valid UTF-8; *len its bytes. */
static unsigned long character(const char *p, size_t *len)
{
    unsigned char b = (unsigned char)*p;
    *len = b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
    unsigned long c = *len == 1 ? b : b & (0x7Fu >> *len);
    for (size_t i = 1; i < *len; i++)
        c = c << 6 | ((unsigned char)p[i] & 0x3Fu);
    return c;
}

/* Those that move text about on the screen without being seen: directions and
 * line separators. */
static int is_hidden_control(unsigned long c)
{
    return (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

/* Shows what a terminal would obey. Text is UTF-8; a byte that is not becomes U+FFFD. */
static void put_visible(const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t run = tool_utf8_valid(text + i, n - i), len = 1;
        if (run == 0) {
            out_print("\xEF\xBF\xBD");
            i++;
        }
        for (size_t end = i + run; i < end; i += len) {
            unsigned long c = character(text + i, &len);
            if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F)
                out_print("^%c", (int)(c ^ 0x40));
            else if ((c >= 0x80 && c < 0xA0) || is_hidden_control(c))
                out_print("<U+%04lX>", c);
            else
                out_write(text + i, len);
        }
    }
}

void screen_text(const char *text, size_t n)
{
    if (terminal)
        put_visible(text, n);
    else
        out_write(text, n);
}

void screen_note(const char *fmt, ...)
{
    char line[NOTE_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    style(DIM);
    out_print("  ");
    put_visible(line, strlen(line));
    style(NORMAL);
    out_print("\n");
}

/* Columns of valid UTF-8. */
static size_t columns(const char *text)
{
    size_t n = 0, len;
    for (const char *p = text; *p != '\0'; p += len) {
        int width = wcwidth((wchar_t)character(p, &len));
        n += width > 0 ? (size_t)width : 0;
    }
    return n;
}

/* A copy on one line, without control characters, that has at most `most`
 * characters: longer text ends in "...". Free with tool_free. */
static char *one_line(const char *text, size_t most)
{
    size_t len, count = 0, cut = 0;
    char *clean = tool_clean_text(text, 1);
    for (char *p = clean; *p != '\0'; p += len, count++) {
        unsigned long c = character(p, &len);
        if ((c >= 0x80 && c < 0xA0) || is_hidden_control(c))
            memset(p, '?', len);
        if (count + 3 == most)
            cut = (size_t)(p - clean);
    }
    if (count > most)
        snprintf(clean + cut, 4, "...");
    return clean;
}

static void put_times(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out_print("%s", text);
}

/* "12,345" */
static void with_commas(int64_t value, char *out, size_t n)
{
    char digits[32];
    size_t k = 0;
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    for (size_t i = 0, len = strlen(digits); i < len && k + 2 < n; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            out[k++] = ',';
        out[k++] = digits[i];
    }
    out[k] = '\0';
}

static void put_row(const char *label, const char *value, size_t inner)
{
    size_t used = LABEL + columns(value);
    if (escapes)
        out_print("\xE2\x94\x82");
    out_print("  %-*s%s", LABEL, label, value);
    if (escapes)
        out_print("%*s\xE2\x94\x82", (int)(inner > used + 2 ? inner - used - 2 : 0), "");
    out_print("\n");
}

void screen_panel(const char *title, const char *model, int64_t max_tokens, const char *system)
{
    char tokens[48] = "no limit";
    size_t width = screen_width(), most = escapes && width > LABEL + 16 ? width - LABEL - 6 : SIZE_MAX;
    char *model_line = one_line(model, most), *system_line = system != NULL ? one_line(system, SYSTEM_SHOWN) : NULL;
    if (max_tokens >= 0)
        with_commas(max_tokens, tokens, sizeof tokens);
    size_t inner = columns(model_line);
    if (system_line != NULL && columns(system_line) > inner)
        inner = columns(system_line);
    if (columns(title) + 4 > inner + LABEL)
        inner = columns(title) + 4 - LABEL;
    inner += LABEL + 4;
    style(BOLD);
    if (escapes)
        out_print("\xE2\x95\xAD" LINE " %s ", title);
    else
        out_print("%s", title);
    if (escapes) {
        put_times(LINE, inner - 3 - columns(title));
        out_print("\xE2\x95\xAE");
    }
    style(NORMAL);
    out_print("\n");
    put_row("model", model_line, inner);
    put_row("max tokens", tokens, inner);
    if (system_line != NULL)
        put_row("system", system_line, inner);
    if (escapes) {
        out_print("\xE2\x95\xB0");
        put_times(LINE, inner);
        out_print("\xE2\x95\xAF\n");
    }
    out_print("  commands    q exit   r reset   h help\n\n");
    tool_free(model_line);
    tool_free(system_line);
}
