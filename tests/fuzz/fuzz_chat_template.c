/* A template file, and a Jinja text to recognise, then messages through the template. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "file_chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
use(const file_chat_template_t *template, const uint8_t *data, size_t size)
{
    static char out[2048];
    char error[FILE_ERROR_SIZE_BYTES];
    size_t half = size / 2;
    const file_chat_message_t messages[3] = {
        {"system", 6, " s ", 3},
        {"user", 4, (const char *)data, half},
        {"assistant", 9, (const char *)data + half, size - half},
    };
    for (size_t first = 0; first < 3; first++) {
        size_t written = 0;
        file_chat_render_t call = {messages + first, 3 - first, true,      "<s>",
                                   "</s>",           out,       sizeof out};
        if (file_chat_template_render(template, &call, error, sizeof error, &written) ==
                STATUS_OK &&
            written > sizeof out) {
            abort();
        }
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    char error[FILE_ERROR_SIZE_BYTES];
    file_chat_template_t *template = NULL;
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (file_chat_template_open_named(path, error, sizeof error, &template) == STATUS_OK) {
        use(template, data, size);
    }
    file_chat_template_close(&template);
    if (file_chat_template_open_jinja((const char *)data, size, error, sizeof error, &template) ==
        STATUS_OK) {
        use(template, data, size);
    }
    file_chat_template_close(&template);
    /* Qwen3 splits contents at its thoughts. */
    if (file_chat_template_open_named("qwen3", error, sizeof error, &template) != STATUS_OK) {
        abort();
    }
    use(template, data, size);
    file_chat_template_close(&template);
    (void)close(fd);
    return 0;
}
