/* A tokenizer.json, then texts through the tokenizer and back. */
#include <stdlib.h>
#include <string.h>

#include "file_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
use(const file_tokenizer_t *tokenizer, const uint8_t *data, size_t size)
{
    static file_tokenizer_scratch_t *scratch;
    static int32_t ids[512];
    static char out[FILE_DETOKENIZER_ROOM(1024)];
    if (scratch == NULL && file_tokenizer_scratch_new(512, &scratch) != STATUS_OK) {
        abort();
    }
    size_t count = 0;
    file_encode_t call = {"It's 12  caf\xc3\xa9 <|im_start|>\n", 29, true, true, ids, 512};
    (void)!file_tokenizer_encode(tokenizer, scratch, &call, &count);
    size_t text_size = size < 400 ? size : 400;
    call = (file_encode_t){(const char *)data, text_size, true, false, ids, 512};
    if (file_tokenizer_encode(tokenizer, scratch, &call, &count) != STATUS_OK) {
        return;
    }
    file_detokenizer_t detokenizer;
    file_detokenizer_init(&detokenizer, tokenizer, false);
    for (size_t i = 0; i < count; i++) {
        size_t written = 0;
        if (file_detokenizer_push(&detokenizer, ids[i], out, sizeof out, &written) != STATUS_OK) {
            abort(); /* encode made an id that the vocabulary lacks */
        }
    }
    (void)file_detokenizer_flush(&detokenizer, out);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[FILE_ERROR_SIZE_BYTES];
    file_tokenizer_t *tokenizer = NULL;
    if (file_tokenizer_open_json_bytes(data, size, error, sizeof error, &tokenizer) == STATUS_OK) {
        use(tokenizer, data, size);
    } else if (error[0] == '\0') {
        abort(); /* every refusal says why */
    }
    file_tokenizer_close(&tokenizer);
    return 0;
}
