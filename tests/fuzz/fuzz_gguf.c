/* A GGUF file from top to bottom: structure, config, roles, tokenizer, chat template. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "file_chat_template.h"
#include "file_model.h"
#include "file_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
use_tokenizer(const file_model_t *model)
{
    static int32_t ids[256];
    char error[FILE_ERROR_SIZE_BYTES];
    file_tokenizer_t *tokenizer = NULL;
    file_tokenizer_scratch_t *scratch = NULL;
    if (file_tokenizer_open(model, error, sizeof error, &tokenizer) != STATUS_OK) {
        return;
    }
    if (file_tokenizer_scratch_new(256, &scratch) == STATUS_OK) {
        size_t count = 0;
        file_encode_t call = {"abc  12<|im_end|>\n x\xc3\xa9", 22, true, true, ids, 256};
        (void)!file_tokenizer_encode(tokenizer, scratch, &call, &count);
    }
    file_tokenizer_scratch_destroy(&scratch);
    file_tokenizer_close(&tokenizer);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    char error[FILE_ERROR_SIZE_BYTES];
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    file_model_t *model = NULL;
    if (file_model_open(path, error, sizeof error, &model) == STATUS_OK) {
        file_chat_template_t *template = NULL;
        file_model_prefetch(model, NULL, NULL);
        use_tokenizer(model);
        (void)!file_chat_template_open(model, error, sizeof error, &template);
        file_chat_template_close(&template);
    } else if (error[0] == '\0') {
        abort(); /* every refusal says why */
    }
    file_model_close(&model);
    (void)close(fd);
    return 0;
}
