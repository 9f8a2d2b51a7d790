/* A chat template as a model brings it: bytes as tokenizer_config.json, or as a
 * GGUF file when they begin so. Templates without statements are also rendered;
 * fuzz_jinja renders the others, within limits that suit a fuzzer. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "fuzz.h"
#include "io/gguf.h"
#include "text/chat.h"

static void use(const struct tlm_chat_template *t)
{
    static const struct tlm_chat_request requests[] = {
        {.messages = "[{\"role\":\"user\",\"content\":\"hi\"}]", .add_generation_prompt = 1, .now = 0},
        {.messages = "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"},"
                     "{\"role\":\"assistant\",\"content\":\"a\"}]",
         .tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]",
         .kwargs = "{\"enable_thinking\":false}",
         .continue_final_message = 1,
         .now = 0}};
    if (!tlm_chat_template_source(t))
        abort();
    if (strstr(tlm_chat_template_source(t), "{%"))
        return;
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        char *text;
        size_t len;
        if (tlm_chat_template_render(t, &requests[i], &text, &len, NULL) == TLM_OK) {
            if (strlen(text) > len)
                abort();
            mem_free(text);
        }
    }
}

/* A directory of our own whose only file is the input. */
static const char *directory(void)
{
    static char path[] = "/tmp/turbolm-fuzz-XXXXXX";
    static int made;
    if (!made)
        made = mkdtemp(path) != NULL;
    return path;
}

static void clean_up(void)
{
    char file[64];
    snprintf(file, sizeof file, "%s/tokenizer_config.json", directory());
    unlink(file);
    rmdir(directory());
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int registered;
    char path[64];
    struct tlm_chat_template *t = NULL;
    bool gguf = size >= 4 && !memcmp(data, "GGUF", 4);
    int fd;
    if (!registered)
        registered = atexit(clean_up) == 0;
    if (gguf) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    } else {
        snprintf(path, sizeof path, "%s/tokenizer_config.json", directory());
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    }
    if (fd >= 0 && write(fd, data, size) == (ssize_t)size &&
        tlm_chat_template_open(gguf ? path : directory(), &t, NULL) == TLM_OK && t)
        use(t);
    tlm_chat_template_free(t);
    close(fd);
    return 0;
}
