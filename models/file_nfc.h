/* file_nfc.h - Unicode normalisation form C, which some tokenizers apply to every text.
 * Internal to models/.  The tables are constant and generated (tools/make_nfc_table.py). */
#ifndef FILE_NFC_H
#define FILE_NFC_H

#include "file_support.h"

typedef struct {
    uint32_t first;
    uint32_t last;
    uint32_t value;
} file_nfc_range_t;

typedef struct {
    uint32_t code;
    uint16_t offset; /* into FILE_NFC_TEXTS */
    uint16_t count;
} file_nfc_place_t;

typedef struct {
    uint32_t first;
    uint32_t second;
    uint32_t composed;
} file_nfc_pair_t;

extern const file_nfc_range_t FILE_NFC_CLASSES[];  /* canonical combining classes over 0 */
extern const file_nfc_range_t FILE_NFC_CHANGING[]; /* characters that a text in form C may lack */
extern const file_nfc_place_t FILE_NFC_PLACES[];   /* full canonical decompositions */
extern const uint32_t FILE_NFC_TEXTS[];
extern const file_nfc_pair_t FILE_NFC_PAIRS[];
extern const uint32_t FILE_NFC_CLASSES_COUNT;
extern const uint32_t FILE_NFC_CHANGING_COUNT;
extern const uint32_t FILE_NFC_PLACES_COUNT;
extern const uint32_t FILE_NFC_PAIRS_COUNT;

enum { FILE_NFC_CODES_PER_BYTE = 2 }; /* no character decomposes into more */

/* True if the text (valid UTF-8) is certainly in form C already. */
bool file_nfc_is_normal(const uint8_t *text, size_t size_bytes);

typedef struct {
    const uint8_t *text; /* valid UTF-8 */
    size_t size_bytes;
    uint32_t *codes;  /* working memory: [FILE_NFC_CODES_PER_BYTE * size_bytes] */
    uint32_t *sorted; /* working memory: as many */
    uint8_t *out;
    size_t out_size_bytes;
} file_nfc_t;

/* Writes the text in form C.  STATUS_ERR_TOO_LARGE if it does not fit.  Time is linear. */
MUST_CHECK proto_status_t file_nfc_normalise(const file_nfc_t *call, size_t *written_bytes);

#endif
