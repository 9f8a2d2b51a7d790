/* Messages of turbolm chat from lines.
 *
 * A line that ends in an odd number of backslashes goes on in the next one. A
 * line that begins with three double quotes opens a block that a line ending
 * in three closes; what is in it is sent as it is. A backslash at the start of
 * a message is dropped, and what follows it is no command. */
#include "chat.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

static const char quotes[] = "\"\"\"";

static struct {
    int editing; /* lines come from an editor */
    int terminal;
    int wake[2];
    char buffer[65536]; /* read from standard input and not used yet */
    size_t at, n;
    int ended;
} in;

/* Waiting ------------------------------------------------------------------- */

void input_wake(void)
{
    int saved = errno;
    if (write(in.wake[1], "", 1) < 0)
        errno = saved; /* full: it wakes already */
    errno = saved;
}

int input_wait(void)
{
    struct pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {in.wake[0], POLLIN, 0}};
    char drain[64];
    while (poll(fds, 2, -1) < 0 && errno == EINTR)
        continue;
    while (read(in.wake[0], drain, sizeof drain) > 0)
        continue;
    return fds[0].revents != 0;
}

int input_is_terminal(void)
{
    return in.terminal;
}

void input_open(void)
{
    in.terminal = isatty(STDIN_FILENO);
    in.editing = in.terminal && screen_has_escapes();
    if (pipe(in.wake) != 0) {
        out_warning("no pipe for signals: %s", strerror(errno));
        in.wake[0] = in.wake[1] = -1;
    }
    for (int i = 0; i < 2; i++) {
        fcntl(in.wake[i], F_SETFL, O_NONBLOCK);
        fcntl(in.wake[i], F_SETFD, FD_CLOEXEC);
    }
    if (in.editing)
        edit_open();
    if (screen_is_terminal())
        catch_endings();
    set_signal_hooks(input_wake, in.editing ? edit_restore : screen_restore);
}

void input_close(void)
{
    if (in.editing)
        edit_close();
}

/* Lines --------------------------------------------------------------------- */

void line_add(struct chat_line *line, const char *bytes, size_t n)
{
    if (n > (size_t)INPUT_MAX + 1 - line->n)
        n = (size_t)INPUT_MAX + 1 - line->n; /* one too many says that it was too long */
    if (line->n + n + 1 > line->room) {
        line->room = 2 * (line->n + n + 1);
        line->data = tool_grow(line->data, line->room, 1);
    }
    if (n > 0)
        memcpy(line->data + line->n, bytes, n);
    line->n += n;
    line->data[line->n] = '\0';
}

/* More of standard input into the buffer, which is used up. */
static enum chat_input fill(void)
{
    ssize_t n = -1;
    while (n < 0) {
        int ready = input_wait();
        if (interrupted())
            return INPUT_INTERRUPT;
        if (!ready)
            continue;
        n = read(STDIN_FILENO, in.buffer, sizeof in.buffer);
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            out_error("cannot read standard input: %s", strerror(errno));
            return INPUT_FAILED;
        }
    }
    in.at = 0;
    in.n = (size_t)n;
    in.ended = n == 0 && !in.terminal;
    return n > 0 ? INPUT_TEXT : INPUT_END;
}

/* Lines from a pipe or file may end as on Windows. */
static void drop_return(struct chat_line *line, size_t start)
{
    if (!in.terminal && line->n > start && line->data[line->n - 1] == '\r')
        line->data[--line->n] = '\0';
}

static enum chat_input plain_line(struct chat_line *line, int first)
{
    size_t start = line->n;
    if (in.terminal && screen_is_terminal()) {
        out_print(first ? "\xE2\x80\xBA " : "\xC2\xB7 ");
        out_flush();
    }
    for (;;) {
        if (in.at == in.n) {
            enum chat_input got = in.ended ? INPUT_END : fill();
            if (got == INPUT_INTERRUPT || got == INPUT_FAILED)
                return got;
            if (got == INPUT_END) {
                int any = line->n > start;
                drop_return(line, start);
                return any ? INPUT_TEXT : INPUT_END;
            }
        }
        const char *p = in.buffer + in.at, *end = memchr(p, '\n', in.n - in.at);
        size_t n = end != NULL ? (size_t)(end - p) : in.n - in.at;
        line_add(line, p, n);
        in.at += n + (end != NULL);
        if (end != NULL) {
            drop_return(line, start);
            return INPUT_TEXT;
        }
    }
}

static enum chat_input next_line(struct chat_line *line, int first)
{
    line_add(line, "", 0);
    return in.editing ? edit_line(line, first) : plain_line(line, first);
}

/* Messages ------------------------------------------------------------------ */

/* Takes the quotes off that end the line. */
static int closes(struct chat_line *line)
{
    if (line->n < 3 || memcmp(line->data + line->n - 3, quotes, 3) != 0)
        return 0;
    line->n -= 3;
    line->data[line->n] = '\0';
    return 1;
}

/* The block whose first line is in m, its three quotes included. Quotes that
 * stand alone make no line, and the end of input closes it too. */
static enum chat_input read_block(struct chat_line *m)
{
    memmove(m->data, m->data + 3, m->n - 3 + 1);
    m->n -= 3;
    int closed = closes(m), any = m->n > 0;
    enum chat_input got = INPUT_TEXT;
    while (!closed && got == INPUT_TEXT) {
        struct chat_line line = {0};
        got = next_line(&line, 0);
        closed = got == INPUT_TEXT && closes(&line);
        if (got == INPUT_TEXT && (!closed || line.n > 0)) {
            line_add(m, "\n", any);
            line_add(m, line.data, line.n);
            any = 1;
        }
        m->invalid |= line.invalid;
        tool_free(line.data);
    }
    return got == INPUT_END ? INPUT_TEXT : got;
}

static int goes_on(const struct chat_line *m, size_t from)
{
    size_t n = 0;
    while (m->n - n > from && m->data[m->n - n - 1] == '\\')
        n++;
    return n % 2 == 1;
}

static enum chat_input read_continued(struct chat_line *m)
{
    for (size_t from = 0; goes_on(m, from);) {
        m->data[m->n - 1] = '\n';
        from = m->n;
        enum chat_input got = next_line(m, 0);
        if (got == INPUT_INTERRUPT || got == INPUT_FAILED || got == INPUT_BAD)
            return got;
        if (got == INPUT_END) {
            m->data[--m->n] = '\0';
            break;
        }
    }
    return INPUT_TEXT;
}

static int is_good(const struct chat_line *m)
{
    if (m->n > INPUT_MAX)
        out_error("the message is longer than %d bytes", INPUT_MAX);
    else if (memchr(m->data, '\0', m->n) != NULL)
        out_error("the message has a NUL byte");
    else if (m->invalid)
        out_error("the message is not valid UTF-8");
    else
        return run_check_utf8("the message", m->data) == 0;
    return 0;
}

enum chat_input input_read(struct chat_text *out)
{
    struct chat_line m = {0};
    enum chat_input got = next_line(&m, 1);
    *out = (struct chat_text){NULL, 0, 0};
    if (got == INPUT_TEXT && m.n >= 3 && memcmp(m.data, quotes, 3) == 0) {
        out->verbatim = 1;
        got = read_block(&m);
    } else if (got == INPUT_TEXT) {
        got = read_continued(&m);
        out->verbatim = m.data[0] == '\\';
        if (out->verbatim)
            memmove(m.data, m.data + 1, m.n--);
    }
    if (in.editing)
        screen_rule();
    if (got == INPUT_TEXT && !is_good(&m))
        got = INPUT_BAD;
    if (got != INPUT_TEXT) {
        tool_free(m.data);
        return got;
    }
    out->text = m.data;
    out->len = m.n;
    return INPUT_TEXT;
}
