#include "file_nfc.h"

#include "proto_require.h"

enum {
    HANGUL_BASE = 0xac00,
    HANGUL_COUNT = 11172,
    LEAD_BASE = 0x1100,
    LEAD_COUNT = 19,
    VOWEL_BASE = 0x1161,
    VOWEL_COUNT = 21,
    TAIL_BASE = 0x11a7, /* one below the first tail */
    TAIL_COUNT = 28,
    FIRST_CHANGING = 0x300,
};

/* The range's value that holds `code`; 0 if none does. */
static uint32_t
find_range(const file_nfc_range_t *ranges, uint32_t count, uint32_t code)
{
    uint32_t low = 0;
    uint32_t high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (code > ranges[middle].last) {
            low = middle + 1;
        } else if (code < ranges[middle].first) {
            high = middle;
        } else {
            return ranges[middle].value;
        }
    }
    return 0;
}

static uint32_t
combining_class(uint32_t code)
{
    return code < FIRST_CHANGING ? 0 : find_range(FILE_NFC_CLASSES, FILE_NFC_CLASSES_COUNT, code);
}

bool
file_nfc_is_normal(const uint8_t *text, size_t size_bytes)
{
    for (size_t at = 0; at < size_bytes;) {
        if (text[at] < 0xcc) { /* below U+0300, whose first byte this is */
            at++;
            continue;
        }
        int32_t code = file_utf8_next(text, size_bytes, &at);
        require(code >= 0);
        if (find_range(FILE_NFC_CHANGING, FILE_NFC_CHANGING_COUNT, (uint32_t)code) != 0) {
            return false;
        }
    }
    return true;
}

static uint32_t
decompose_hangul(uint32_t code, uint32_t *out)
{
    uint32_t index = code - HANGUL_BASE;
    uint32_t tail = index % TAIL_COUNT;
    out[0] = LEAD_BASE + index / (VOWEL_COUNT * TAIL_COUNT);
    out[1] = VOWEL_BASE + index / TAIL_COUNT % VOWEL_COUNT;
    out[2] = TAIL_BASE + tail;
    return tail > 0 ? 3 : 2;
}

static uint32_t
decompose(uint32_t code, uint32_t *out)
{
    if (code >= HANGUL_BASE && code < HANGUL_BASE + HANGUL_COUNT) {
        return decompose_hangul(code, out);
    }
    uint32_t low = 0;
    uint32_t high = code < 0xc0 ? 0 : FILE_NFC_PLACES_COUNT;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const file_nfc_place_t *place = &FILE_NFC_PLACES[middle];
        if (place->code == code) {
            memcpy(out, FILE_NFC_TEXTS + place->offset, place->count * sizeof *out);
            return place->count;
        }
        if (place->code < code) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    out[0] = code;
    return 1;
}

/* The character that the two make; 0 if they stay apart. */
static uint32_t
compose(uint32_t first, uint32_t second)
{
    if (first >= LEAD_BASE && first < LEAD_BASE + LEAD_COUNT && second >= VOWEL_BASE &&
        second < VOWEL_BASE + VOWEL_COUNT) {
        uint32_t index = (first - LEAD_BASE) * VOWEL_COUNT + (second - VOWEL_BASE);
        return HANGUL_BASE + index * TAIL_COUNT;
    }
    if (first >= HANGUL_BASE && first < HANGUL_BASE + HANGUL_COUNT &&
        (first - HANGUL_BASE) % TAIL_COUNT == 0 && second > TAIL_BASE &&
        second < TAIL_BASE + TAIL_COUNT) {
        return first + (second - TAIL_BASE);
    }
    uint64_t wanted = (uint64_t)first << 32 | second;
    uint32_t low = 0;
    uint32_t high = second < FIRST_CHANGING ? 0 : FILE_NFC_PAIRS_COUNT;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const file_nfc_pair_t *pair = &FILE_NFC_PAIRS[middle];
        uint64_t here = (uint64_t)pair->first << 32 | pair->second;
        if (here == wanted) {
            return pair->composed;
        }
        if (here < wanted) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return 0;
}

/* Sorts a run of combining marks by class and keeps equal ones in order.  Counting keeps a run of a
 * million marks linear; the class is packed above the code point, which has 21 bits. */
static void
sort_marks(uint32_t *marks, uint32_t *sorted, size_t count)
{
    if (count < 2) {
        return;
    }
    if (count < 16) {
        for (size_t i = 1; i < count; i++) {
            uint32_t mark = marks[i];
            size_t at = i;
            for (; at > 0 && marks[at - 1] >> 24 > mark >> 24; at--) {
                marks[at] = marks[at - 1];
            }
            marks[at] = mark;
        }
        return;
    }
    size_t places[257] = {0};
    for (size_t i = 0; i < count; i++) {
        places[(marks[i] >> 24) + 1]++;
    }
    for (size_t i = 1; i < 257; i++) {
        places[i] += places[i - 1];
    }
    for (size_t i = 0; i < count; i++) {
        sorted[places[marks[i] >> 24]++] = marks[i];
    }
    memcpy(marks, sorted, count * sizeof *marks);
}

/* Decomposes all of it; each code carries its class in the top byte, marks in canonical order. */
static size_t
decompose_text(const file_nfc_t *call)
{
    size_t count = 0;
    size_t run = 0; /* where the current run of marks begins */
    for (size_t at = 0; at < call->size_bytes;) {
        int32_t code = file_utf8_next(call->text, call->size_bytes, &at);
        require(code >= 0);
        uint32_t parts[8];
        uint32_t part_count = decompose((uint32_t)code, parts);
        require(count + part_count <= FILE_NFC_CODES_PER_BYTE * call->size_bytes);
        for (uint32_t i = 0; i < part_count; i++) {
            uint32_t class = combining_class(parts[i]);
            if (class == 0) {
                sort_marks(call->codes + run, call->sorted, count - run);
                run = count + 1;
            }
            call->codes[count++] = class << 24 | parts[i];
        }
    }
    if (run < count) {
        sort_marks(call->codes + run, call->sorted, count - run);
    }
    return count;
}

/* Composes in place, as the standard's algorithm does: a mark joins the last starter unless a
 * character of the same or a higher class stands between them. */
static size_t
compose_text(uint32_t *codes, size_t count)
{
    size_t written = 0;
    size_t starter = SIZE_MAX;
    uint32_t last_class = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t code = codes[i] & 0xffffff;
        uint32_t class = codes[i] >> 24;
        bool is_next = starter != SIZE_MAX && starter + 1 == written;
        bool is_blocked = starter == SIZE_MAX || (!is_next && last_class >= class);
        uint32_t composed = is_blocked ? 0 : compose(codes[starter], code);
        if (composed != 0) {
            codes[starter] = composed;
            continue;
        }
        if (class == 0) {
            starter = written;
        }
        last_class = class;
        codes[written++] = code;
    }
    return written;
}

proto_status_t
file_nfc_normalise(const file_nfc_t *call, size_t *written_bytes)
{
    size_t count = compose_text(call->codes, decompose_text(call));
    size_t written = 0;
    for (size_t i = 0; i < count; i++) {
        char bytes[4];
        size_t size_bytes = file_utf8_put(call->codes[i], bytes);
        if (size_bytes > call->out_size_bytes - written) {
            return STATUS_ERR_TOO_LARGE;
        }
        memcpy(call->out + written, bytes, size_bytes);
        written += size_bytes;
    }
    *written_bytes = written;
    return STATUS_OK;
}
