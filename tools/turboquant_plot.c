/* Plots by gnuplot, which runs as a process of its own: the script goes to its
 * standard input, the picture comes from its standard output. Names that may
 * hold anything never get into the script. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "out.h"
#include "turboquant.h"

extern char **environ;

static int find_gnuplot(void)
{
    const char *path = getenv("PATH");
    char name[4200];
    for (const char *p = path != NULL ? path : "/usr/bin:/bin"; *p != '\0'; p += *p == ':') {
        size_t n = strcspn(p, ":");
        if (n > 0 && n < 4096) {
            snprintf(name, sizeof name, "%.*s/gnuplot", (int)n, p);
            if (access(name, X_OK) == 0)
                return 0;
        }
        p += n;
    }
    out_error("--plot needs the program gnuplot, which is not installed (not in PATH); --csv has the same figures");
    return 1;
}

int plot_check(const char *path)
{
    if (find_gnuplot() != 0)
        return 1;
    struct stat st;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) {
        close(fd);
        unlink(path);
        return 0;
    }
    int there = errno == EEXIST && stat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode))
        errno = EISDIR;
    else if (there ? access(path, W_OK) == 0 : errno == ENOENT && lstat(path, &st) == 0)
        return 0; /* a pipe that was opened and closed would be at its end; a link without its target gets one */
    out_error("%s: cannot write: %s", path, strerror(errno));
    return 1;
}

/* Text between single quotes of the script: only characters that mean nothing there. */
static void put_text(FILE *f, const char *text)
{
    fputc('\'', f);
    for (; *text != '\0'; text++) {
        int plain = (unsigned char)*text >= 0x20 && *text != 0x7f && strchr("'\"`\\@$", *text) == NULL;
        fputc(plain ? *text : '?', f);
    }
    fputc('\'', f);
}

static void write_script(FILE *f, const char *title, const char *x_label, const char *y_label,
                         const struct plot_point *points, size_t n)
{
    fputs("set encoding utf8\n"
          "if (strstrt(GPVAL_TERMINALS, 'pngcairo') > 0) set terminal pngcairo size 960,640 noenhanced; "
          "else set terminal png size 960,640 noenhanced\n"
          "set key off\nset grid\nset logscale y\nset format y '%.0e'\n"
          "set offsets graph 0.05, graph 0.15, 0, 0\nset title ",
          f);
    put_text(f, title);
    fputs("\nset xlabel ", f);
    put_text(f, x_label);
    fputs("\nset ylabel ", f);
    put_text(f, y_label);
    fputs("\n$points << END\n", f);
    for (size_t i = 0; i < n; i++) {
        if (!(points[i].y > 0))
            continue;
        fprintf(f, "%.9g %.9g ", points[i].x, points[i].y);
        for (const char *p = points[i].name; *p != '\0'; p++) /* one word: format names have no spaces */
            fputc((unsigned char)*p > 0x20 && *p < 0x7f && *p != '"' && *p != '\'' ? *p : '?', f);
        fputc('\n', f);
    }
    fputs("END\nplot $points using 1:2 with points pointtype 7 pointsize 1.2, "
          "'' using 1:2:3 with labels left offset 0.8,0.4\n",
          f);
}

/* Runs gnuplot with the script as its input and fd as its output. */
static int run_gnuplot(FILE *script, int fd)
{
    char *argv[] = {(char[]){"gnuplot"}, (char[]){"-d"}, (char[]){"-"}, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = -1, failed = posix_spawn_file_actions_init(&actions);
    if (failed != 0) {
        out_error("gnuplot: %s", strerror(failed));
        return 1;
    }
    failed = posix_spawn_file_actions_adddup2(&actions, fileno(script), 0);
    if (failed == 0)
        failed = posix_spawn_file_actions_adddup2(&actions, fd, 1);
    if (failed == 0)
        failed = posix_spawnp(&pid, "gnuplot", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) {
        out_error("gnuplot cannot be started: %s", strerror(failed));
        return 1;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    out_error("gnuplot failed");
    return 1;
}

static int copy_file(FILE *from, const char *path)
{
    char part[65536];
    size_t n, total = 0;
    rewind(from);
    FILE *to = fopen(path, "wb");
    int bad = to == NULL;
    while (!bad && (n = fread(part, 1, sizeof part, from)) > 0) {
        bad = fwrite(part, 1, n, to) != n;
        total += n;
    }
    bad = bad || ferror(from);
    if (to != NULL && fclose(to) != 0)
        bad = 1;
    if (bad)
        out_error("%s: cannot write: %s", path, strerror(errno));
    else if (total == 0)
        out_error("%s: gnuplot made no picture", path);
    return bad || total == 0;
}

int plot_write(const char *path, const char *title, const char *x_label, const char *y_label,
               const struct plot_point *points, size_t n)
{
    size_t shown = 0;
    for (size_t i = 0; i < n; i++)
        shown += points[i].y > 0;
    if (shown == 0) {
        out_error("%s: nothing to plot: no format differs from the reference", path);
        return 1;
    }
    FILE *script = tmpfile(), *picture = tmpfile();
    int status = 1;
    if (script != NULL)
        write_script(script, title, x_label, y_label, points, n);
    /* fseek also moves the descriptor, which the child shares, to the beginning */
    if (script == NULL || picture == NULL || ferror(script) || fseek(script, 0, SEEK_SET) != 0)
        out_error("%s: no temporary file: %s", path, strerror(errno));
    else if (run_gnuplot(script, fileno(picture)) == 0)
        status = copy_file(picture, path);
    if (script != NULL)
        fclose(script);
    if (picture != NULL)
        fclose(picture);
    return status;
}
