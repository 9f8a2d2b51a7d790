/* Runs one fuzz target over stored inputs without a fuzzing engine, so that every
 * input that once mattered is an ordinary test: replay_<name> PATH... where a path
 * is a file or a directory of files. Prints one line per file. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "fuzz.h"

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    int status = 1;
    uint8_t *data = NULL;
    struct stat st;
    if (fstat(fileno(f), &st) != 0) {
        perror(path);
        goto out;
    }
    /* Exactly as large as the input, so that a sanitizer sees the first byte read beyond it. */
    size_t size = (size_t)st.st_size;
    data = mem_alloc(size);
    if (!data || fread(data, 1, size, f) != size) {
        fprintf(stderr, "%s: cannot read\n", path);
        goto out;
    }
    LLVMFuzzerTestOneInput(data, size);
    printf("replayed %s\n", path);
    status = 0;
out:
    mem_free(data);
    fclose(f);
    return status;
}

static int replay_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        perror(path);
        return 1;
    }
    if (!S_ISDIR(st.st_mode))
        return replay_file(path);
    DIR *d = opendir(path);
    if (!d) {
        perror(path);
        return 1;
    }
    int status = 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        char name[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        status |= replay_file(name);
    }
    closedir(d);
    return status;
}

int main(int argc, char **argv)
{
    int status = 0;
    setvbuf(stdout, NULL, _IOLBF, 0); /* the last line before a crash names the file */
    for (int i = 1; i < argc; i++)
        status |= replay_path(argv[i]);
    return status;
}
