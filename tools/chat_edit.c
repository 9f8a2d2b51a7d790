/* Lines of turbolm chat that are edited on the terminal, with libedit, and
 * their history, a file with one line for each.
 *
 * libedit's own signal handling is off: a signal may arrive on any thread, so
 * handlers only note it and wake the reader, which acts on it. */
#include "chat.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <histedit.h>

enum { HISTORY_LINES = 1000, HISTORY_BYTES = 1 << 20 };

static const char first_prompt[] = "\xE2\x80\xBA ", next_prompt[] = "\xC2\xB7 ";

static struct {
    EditLine *el;
    History *history;
    char *path; /* of the history; NULL: not kept */
    const char *prompt;
    int invalid;  /* bytes that are not UTF-8 were typed */
    int put_back; /* a byte, or -1 */
    char *newest; /* line of the history, or NULL */
} ed;

static struct termios saved_terminal;
static int has_saved_terminal;
static volatile sig_atomic_t raw, resized, stop_asked;

/* Signals ------------------------------------------------------------------- */

/* In the background the terminal is another's. */
static void restore_terminal(void)
{
    if (has_saved_terminal && tcgetpgrp(STDIN_FILENO) == getpgrp())
        tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_terminal);
}

void edit_restore(void)
{
    if (raw)
        restore_terminal();
    screen_restore();
}

static void on_resize(int number)
{
    (void)number;
    resized = 1;
    input_wake();
}

static void on_stop(int number)
{
    (void)number;
    stop_asked = 1;
    input_wake();
}

static void handle(int number, void (*handler)(int), struct sigaction *before)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, before);
}

/* Stopped by Ctrl-Z: the shell gets the terminal as it was. */
static void stop_self(void)
{
    stop_asked = 0;
    el_set(ed.el, EL_PREP_TERM, 0);
    raise(SIGSTOP);
    el_set(ed.el, EL_PREP_TERM, 1);
    el_resize(ed.el);
    el_set(ed.el, EL_REFRESH);
}

/* Reading ------------------------------------------------------------------- */

/* One byte: 1, or 0 at the end, -1 after an interrupt or failure. */
static int read_byte(unsigned char *b)
{
    if (ed.put_back >= 0) {
        *b = (unsigned char)ed.put_back;
        ed.put_back = -1;
        return 1;
    }
    for (;;) {
        int ready = input_wait();
        if (interrupted()) {
            errno = EINTR;
            return -1;
        }
        if (stop_asked)
            stop_self();
        if (resized) {
            resized = 0;
            el_resize(ed.el);
        }
        ssize_t n = ready ? read(STDIN_FILENO, b, 1) : -1;
        if (n >= 0 || (ready && errno != EINTR && errno != EAGAIN))
            return (int)n;
    }
}

/* A character for libedit; what is not UTF-8 becomes U+FFFD and is remembered. */
static int read_character(EditLine *el, wchar_t *out)
{
    unsigned char b[4];
    size_t n = 1;
    int got = read_byte(&b[0]);
    (void)el;
    if (got <= 0)
        return got;
    size_t need = b[0] < 0xC2 ? 1 : b[0] < 0xE0 ? 2 : b[0] < 0xF0 ? 3 : b[0] < 0xF5 ? 4 : 1;
    for (; n < need; n++) {
        got = read_byte(&b[n]);
        if (got < 0)
            return got;
        if (got == 0)
            break;
        if ((b[n] & 0xC0) != 0x80) {
            ed.put_back = b[n];
            break;
        }
    }
    if (n < need || tool_utf8_valid((const char *)b, n) != n) {
        ed.invalid = 1;
        *out = 0xFFFD;
        return 1;
    }
    unsigned long c = n == 1 ? b[0] : b[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (b[i] & 0x3Fu);
    *out = (wchar_t)c;
    return 1;
}

static char *prompt_text(EditLine *el)
{
    static char text[8];
    (void)el;
    snprintf(text, sizeof text, "%s", ed.prompt);
    return text;
}

/* The history -------------------------------------------------------------- */

/* "…/turbolm/chat_history" with its folders, or NULL when nothing says where. */
static char *history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int own = state != NULL && state[0] == '/';
    if (!own && (home == NULL || home[0] != '/'))
        return NULL;
    const char *base = own ? state : home, *rest = own ? "" : "/.local/state";
    size_t room = strlen(base) + 64;
    char *path = tool_alloc(room, 1);
    snprintf(path, room, "%s%s/turbolm/chat_history", base, rest);
    for (char *p = path + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(path, 0700); /* what fails here shows when the file is opened */
        *p = '/';
    }
    return path;
}

static void forget_path(const char *what)
{
    out_warning("%s: cannot %s the history: %s", ed.path, what, strerror(errno));
    tool_free(ed.path);
    ed.path = NULL;
}

static void enter(const char *text)
{
    HistEvent event;
    history(ed.history, &event, H_ENTER, text);
    tool_free(ed.newest);
    size_t n = strlen(text) + 1;
    ed.newest = tool_alloc(n, 1);
    memcpy(ed.newest, text, n);
}

/* The last lines of a file that became long, in a new file. */
static void shorten(const char *text)
{
    const char *temporary = begin_unfinished(ed.path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
    size_t n = strlen(text);
    if (fd >= 0) {
        int good = write(fd, text, n) == (ssize_t)n;
        if (close(fd) != 0 || !good || rename(temporary, ed.path) != 0)
            unlink(temporary);
    }
    end_unfinished();
}

/* Lines that an editor can show; others, from a damaged file, are left out. */
static void enter_lines(char *text)
{
    for (char *line = text, *end; *line != '\0'; line = end) {
        int good = 1;
        end = line + strcspn(line, "\n");
        if (*end != '\0')
            *end++ = '\0';
        for (const char *p = line; *p != '\0'; p++)
            good = good && ((unsigned char)*p >= 0x20 || *p == '\t') && *p != 0x7f;
        if (good && *line != '\0' && tool_utf8_valid(line, strlen(line)) == strlen(line))
            enter(line);
    }
}

static void load_history(void)
{
    struct stat st;
    FILE *f = fopen(ed.path, "r");
    if (f == NULL) {
        if (errno != ENOENT)
            forget_path("read");
        return;
    }
    if (fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode)) {
        errno = EINVAL;
        fclose(f);
        forget_path("read");
        return;
    }
    int is_long = st.st_size > HISTORY_BYTES;
    char *text = tool_alloc(HISTORY_BYTES + 1, 1);
    size_t n = is_long && fseek(f, -(long)HISTORY_BYTES / 2, SEEK_END) != 0 ? 0 : fread(text, 1, HISTORY_BYTES, f);
    fclose(f);
    for (size_t i = 0; i < n; i++)
        text[i] = text[i] == '\0' ? 0x01 : text[i];
    char *start = text + (is_long ? strcspn(text, "\n") : 0); /* a cut line */
    if (is_long && *start == '\n')
        shorten(++start);
    enter_lines(start);
    tool_free(text);
}

/* One write to the end of the file, so that several chats may keep one history. */
static void add_to_history(const char *text)
{
    size_t n = strlen(text);
    if (n == 0 || (ed.newest != NULL && strcmp(ed.newest, text) == 0))
        return;
    enter(text);
    if (ed.path == NULL)
        return;
    int fd = open(ed.path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    char *line = tool_alloc(n + 2, 1);
    memcpy(line, text, n);
    line[n] = '\n';
    int good = fd >= 0 && write(fd, line, n + 1) == (ssize_t)(n + 1);
    if (!good)
        forget_path("write");
    if (fd >= 0)
        close(fd);
    tool_free(line);
}

/* The editor --------------------------------------------------------------- */

void edit_open(void)
{
    HistEvent event;
    has_saved_terminal = tcgetattr(STDIN_FILENO, &saved_terminal) == 0;
    ed.el = el_init("turbolm", stdin, stdout, stderr);
    ed.history = history_init();
    if (ed.el == NULL || ed.history == NULL) {
        out_error("cannot edit lines: out of memory");
        exit(1);
    }
    ed.put_back = -1;
    history(ed.history, &event, H_SETSIZE, HISTORY_LINES);
    history(ed.history, &event, H_SETUNIQUE, 1);
    ed.path = history_path();
    if (ed.path != NULL)
        load_history();
    el_set(ed.el, EL_EDITOR, "emacs");
    el_set(ed.el, EL_PROMPT, prompt_text);
    el_set(ed.el, EL_HIST, history, ed.history);
    el_set(ed.el, EL_GETCFN, read_character);
    el_set(ed.el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(ed.el, NULL); /* the user's ~/.editrc */
}

void edit_close(void)
{
    el_end(ed.el);
    history_end(ed.history);
    tool_free(ed.path);
    tool_free(ed.newest);
}

/* A rule above the line, which the first line of a message has, and one below. */
static void draw_frame(int first)
{
    if (first)
        screen_rule();
    out_print("\n");
    screen_rule();
    out_print("\033[2A\r");
    out_flush();
}

enum chat_input edit_line(struct chat_line *line, int first)
{
    struct sigaction stop_before, resize_before;
    int n = 0;
    ed.prompt = first ? first_prompt : next_prompt;
    ed.invalid = 0;
    draw_frame(first);
    handle(SIGTSTP, on_stop, &stop_before);
    handle(SIGWINCH, on_resize, &resize_before);
    el_resize(ed.el);
    raw = 1;
    el_set(ed.el, EL_PREP_TERM, 1); /* before the prompt says that one may type */
    const char *text = el_gets(ed.el, &n);
    raw = 0;
    sigaction(SIGTSTP, &stop_before, NULL);
    sigaction(SIGWINCH, &resize_before, NULL);
    if (text == NULL || n <= 0) {
        out_print("\n\033[J");
        ed.put_back = -1;
        return interrupted() ? INPUT_INTERRUPT : INPUT_END;
    }
    out_print("\033[J"); /* the rule below */
    size_t len = strlen(text), used = len > 0 && text[len - 1] == '\n' ? len - 1 : len;
    line_add(line, text, used);
    line->invalid |= ed.invalid;
    if (!ed.invalid)
        add_to_history(line->data + line->n - used);
    return INPUT_TEXT;
}
