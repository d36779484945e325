#include "file_vocab.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>

#include "proto_require.h"

/* Byte-level spelling: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100
 * in order.  The 68 are 0..32, 127..160 and 173. */
static int
spelled_byte(int32_t code)
{
    if ((code >= 33 && code <= 126) || (code >= 161 && code <= 255 && code != 173)) {
        return code;
    }
    if (code >= 0x100 && code < 0x100 + 33) {
        return code - 0x100;
    }
    if (code >= 0x100 + 33 && code < 0x100 + 67) {
        return code - 0x100 - 33 + 127;
    }
    return code == 0x100 + 67 ? 173 : -1;
}

bool
file_vocab_decode_spelling(file_view_t text, uint8_t *out, size_t out_size_bytes,
                           uint32_t *size_bytes)
{
    uint32_t written = 0;
    for (size_t at = 0; at < text.size_bytes;) {
        int byte = spelled_byte(file_utf8_next(text.bytes, text.size_bytes, &at));
        if (byte < 0 || written == out_size_bytes) {
            return false;
        }
        out[written++] = (uint8_t)byte;
    }
    *size_bytes = written;
    return true;
}

static proto_status_t
index_init(file_vocab_index_t *self, uint64_t count)
{
    uint64_t slot_count = 64;
    while (slot_count < 2 * count) {
        slot_count *= 2;
    }
    self->slots = calloc(slot_count, sizeof *self->slots);
    self->mask = (uint32_t)(slot_count - 1);
    return self->slots != NULL ? STATUS_OK : STATUS_ERR_NO_MEMORY;
}

/* The slot of this text, or the free one where it belongs. */
static uint32_t *
find_slot(const file_vocab_t *self, const file_vocab_index_t *index, const void *bytes,
          uint32_t size_bytes)
{
    uint8_t hash_bytes[8];
    uint64_t hash;
    (void)crypto_shorthash(hash_bytes, bytes, size_bytes, self->hash_key);
    memcpy(&hash, hash_bytes, sizeof hash);
    for (uint32_t at = (uint32_t)hash & index->mask;; at = (at + 1) & index->mask) {
        uint32_t slot = index->slots[at];
        if (slot == 0) {
            return &index->slots[at];
        }
        const file_token_t *token = &self->tokens[slot - 1];
        if (token->size_bytes == size_bytes &&
            memcmp(self->arena + token->offset, bytes, size_bytes) == 0) {
            return &index->slots[at];
        }
    }
}

proto_status_t
file_vocab_init(file_vocab_t *self, uint64_t count_max, file_error_t error)
{
    *self = (file_vocab_t){0};
    if (count_max == 0 || count_max > FILE_VOCAB_SIZE_MAX) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tokenizer: %" PRIu64 " tokens; 1 to %d are allowed", count_max,
                              FILE_VOCAB_SIZE_MAX);
    }
    randombytes_buf(self->hash_key, sizeof self->hash_key);
    for (uint32_t byte = 0; byte < 256; byte++) {
        self->byte_ids[byte] = FILE_ID_NONE;
    }
    self->count_max = (uint32_t)count_max;
    self->tokens = calloc(count_max, sizeof *self->tokens);
    self->arena_size_bytes = 16 * count_max + FILE_TOKEN_SIZE_BYTES_MAX;
    self->arena = malloc(self->arena_size_bytes);
    if (self->tokens == NULL || self->arena == NULL ||
        index_init(&self->normal, count_max) != STATUS_OK ||
        index_init(&self->added, count_max) != STATUS_OK) {
        file_vocab_fini(self);
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the vocabulary");
    }
    return STATUS_OK;
}

void
file_vocab_fini(file_vocab_t *self)
{
    free(self->tokens);
    free(self->arena);
    free(self->normal.slots);
    free(self->added.slots);
    *self = (file_vocab_t){0};
}

/* Room for one more token of any length; at most count_max of them, so the sum is bounded. */
static proto_status_t
grow_arena(file_vocab_t *self)
{
    if (self->arena_size_bytes - self->arena_used_bytes >= FILE_TOKEN_SIZE_BYTES_MAX) {
        return STATUS_OK;
    }
    uint64_t size_bytes = 2 * self->arena_size_bytes;
    uint8_t *arena = realloc(self->arena, size_bytes);
    if (arena == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->arena = arena;
    self->arena_size_bytes = size_bytes;
    return STATUS_OK;
}

/* With a space for each U+2581, which stands for one in these files. */
static uint32_t
copy_plain(file_view_t text, uint8_t *out)
{
    uint32_t written = 0;
    for (size_t at = 0; at < text.size_bytes;) {
        if (text.size_bytes - at >= 3 && memcmp(text.bytes + at, "\xe2\x96\x81", 3) == 0) {
            out[written++] = ' ';
            at += 3;
        } else {
            out[written++] = text.bytes[at++];
        }
    }
    return written;
}

/* Copies the text to the end of the arena (not yet kept) and settles the kind. */
static proto_status_t
place_text(file_vocab_t *self, file_view_t text, file_token_kind_t *kind, uint32_t *size_bytes,
           file_error_t error)
{
    if (text.size_bytes == 0 || text.size_bytes > FILE_TOKEN_SIZE_BYTES_MAX ||
        !file_utf8_valid(text.bytes, text.size_bytes)) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tokenizer: the token '%s' is empty, over %d bytes or not UTF-8",
                              file_printable(text.bytes, text.size_bytes).text,
                              FILE_TOKEN_SIZE_BYTES_MAX);
    }
    if (grow_arena(self) != STATUS_OK) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the vocabulary");
    }
    uint8_t *out = self->arena + self->arena_used_bytes;
    if (self->is_plain) {
        *size_bytes = copy_plain(text, out);
        return STATUS_OK;
    }
    if (*kind == FILE_TOKEN_NORMAL &&
        file_vocab_decode_spelling(text, out, FILE_TOKEN_SIZE_BYTES_MAX, size_bytes)) {
        return STATUS_OK;
    }
    *kind = *kind == FILE_TOKEN_NORMAL ? FILE_TOKEN_OPAQUE : *kind;
    memcpy(out, text.bytes, text.size_bytes);
    *size_bytes = (uint32_t)text.size_bytes;
    return STATUS_OK;
}

proto_status_t
file_vocab_set(file_vocab_t *self, uint64_t id, file_token_kind_t kind, file_view_t text,
               file_error_t error)
{
    if (id >= self->count_max) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tokenizer: token '%s' has id %" PRIu64 ", over the %" PRIu32
                              " that fit",
                              file_printable(text.bytes, text.size_bytes).text, id,
                              self->count_max);
    }
    file_token_t *token = &self->tokens[id];
    uint32_t size_bytes = 0;
    if (token->kind != FILE_TOKEN_NONE) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tokenizer: token id %" PRIu64 " stands twice", id);
    }
    proto_status_t status = place_text(self, text, &kind, &size_bytes, error);
    if (status != STATUS_OK) {
        return status;
    }
    const uint8_t *bytes = self->arena + self->arena_used_bytes;
    if (kind != FILE_TOKEN_OPAQUE) {
        const file_vocab_index_t *index = kind == FILE_TOKEN_NORMAL ? &self->normal : &self->added;
        uint32_t *slot = find_slot(self, index, bytes, size_bytes);
        if (*slot != 0) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "tokenizer: the token '%s' stands twice (ids %" PRIu32
                                  " and %" PRIu64 ")",
                                  file_printable(text.bytes, text.size_bytes).text, *slot - 1, id);
        }
        *slot = (uint32_t)id + 1;
    }
    *token = (file_token_t){self->arena_used_bytes, size_bytes, (uint8_t)kind};
    self->arena_used_bytes += size_bytes;
    self->count = id >= self->count ? (uint32_t)id + 1 : self->count;
    if (size_bytes > self->token_size_bytes_max) {
        self->token_size_bytes_max = size_bytes;
    }
    return STATUS_OK;
}

proto_status_t
file_vocab_set_byte(file_vocab_t *self, uint64_t id, uint8_t byte, file_error_t error)
{
    if (id >= self->count_max || self->tokens[id].kind != FILE_TOKEN_NONE ||
        self->byte_ids[byte] != FILE_ID_NONE) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tokenizer: the token of byte 0x%02x or its id %" PRIu64
                              " stands twice or is out of range",
                              byte, id);
    }
    if (grow_arena(self) != STATUS_OK) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the vocabulary");
    }
    self->arena[self->arena_used_bytes] = byte;
    self->tokens[id] = (file_token_t){self->arena_used_bytes, 1, FILE_TOKEN_OPAQUE};
    self->arena_used_bytes++;
    self->count = id >= self->count ? (uint32_t)id + 1 : self->count;
    self->byte_ids[byte] = (int32_t)id;
    return STATUS_OK;
}

void
file_vocab_finish(file_vocab_t *self)
{
    if (self->is_plain) {
        return;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint8_t text = (uint8_t)byte;
        self->byte_ids[byte] = file_vocab_find_normal(self, &text, 1);
    }
}

int32_t
file_vocab_find_normal(const file_vocab_t *self, const void *bytes, uint32_t size_bytes)
{
    return (int32_t)*find_slot(self, &self->normal, bytes, size_bytes) - 1;
}

int32_t
file_vocab_find_added(const file_vocab_t *self, const void *bytes, uint32_t size_bytes)
{
    return (int32_t)*find_slot(self, &self->added, bytes, size_bytes) - 1;
}
