/* Tokens to text as they come: complete characters only. */
#include "file_support.h"
#include "file_tokenizer.h"
#include "proto_require.h"

static const char REPLACEMENT[3] = {'\xef', '\xbf', '\xbd'}; /* U+FFFD */

void
file_detokenizer_init(file_detokenizer_t *self, const file_tokenizer_t *tokenizer,
                      bool skip_special)
{
    require(tokenizer != NULL);
    *self = (file_detokenizer_t){.tokenizer = tokenizer, .skip_special = skip_special};
}

/* How many of these bytes begin one character that more bytes could still complete; 0 if none can:
 * then the first `*broken` bytes are replaced by one U+FFFD (the longest part of a character, as
 * decoders agree to do). */
static size_t
unfinished(const uint8_t *bytes, size_t size_bytes, size_t *broken)
{
    uint8_t lead = bytes[0];
    *broken = 1;
    if (lead < 0xc2 || lead > 0xf4) {
        return 0;
    }
    size_t wanted = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    size_t at = 1;
    while (at < wanted && at < size_bytes && bytes[at] >= least && bytes[at] <= most) {
        least = 0x80;
        most = 0xbf;
        at++;
    }
    *broken = at;
    return at == size_bytes && at < wanted ? at : 0;
}

proto_status_t
file_detokenizer_push(file_detokenizer_t *self, int32_t id, char *out, size_t out_size_bytes,
                      size_t *written_bytes)
{
    file_bytes_t token;
    *written_bytes = 0;
    proto_status_t status = file_tokenizer_token_bytes(self->tokenizer, id, &token);
    if (status != STATUS_OK) {
        return status;
    }
    if (self->skip_special && file_tokenizer_is_special(self->tokenizer, id)) {
        return STATUS_OK;
    }
    if (out_size_bytes < FILE_DETOKENIZER_ROOM(token.size_bytes)) {
        return STATUS_ERR_TOO_LARGE;
    }
    /* Lay held and new bytes at the end of the buffer; what is written from its start never passes
     * what is still to be read, for at most three bytes come out of each that goes in. */
    size_t size_bytes = self->held_count + token.size_bytes;
    uint8_t *from = (uint8_t *)out + (out_size_bytes - size_bytes);
    memcpy(from, self->held, self->held_count);
    memcpy(from + self->held_count, token.bytes, token.size_bytes);
    self->held_count = 0;
    size_t written = 0;
    for (size_t at = 0; at < size_bytes;) {
        size_t start = at;
        size_t broken = 0;
        if (file_utf8_next(from, size_bytes, &at) >= 0) {
            memmove(out + written, from + start, at - start);
            written += at - start;
            continue;
        }
        size_t held = unfinished(from + start, size_bytes - start, &broken);
        if (held > 0) {
            memcpy(self->held, from + start, held);
            self->held_count = (uint8_t)held;
            break;
        }
        memcpy(out + written, REPLACEMENT, sizeof REPLACEMENT);
        written += sizeof REPLACEMENT;
        at = start + broken;
    }
    *written_bytes = written;
    return STATUS_OK;
}

size_t
file_detokenizer_flush(file_detokenizer_t *self, char *out)
{
    if (self->held_count == 0) {
        return 0;
    }
    self->held_count = 0;
    memcpy(out, REPLACEMENT, sizeof REPLACEMENT);
    return sizeof REPLACEMENT;
}
