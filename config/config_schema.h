/* config_schema.h - every key of a cluster file: its type, its bounds, its default, its option.
 *
 * The one table behind cluster files, the environment, `onepath config` and its documentation.
 * Constant data; any thread. */
#ifndef CONFIG_SCHEMA_H
#define CONFIG_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    CONFIG_TYPE_FLAG,     /* true or false */
    CONFIG_TYPE_NUMBER,   /* a whole number within [min, max] */
    CONFIG_TYPE_SIZE,     /* bytes within [min, max]: 512M, 4G, 1073741824 */
    CONFIG_TYPE_TEXT,     /* one line, not empty */
    CONFIG_TYPE_CHOICE,   /* one word of `choices` */
    CONFIG_TYPE_NUMBERS,  /* a list of ascending numbers, each within [min, max] */
    CONFIG_TYPE_ENDPOINT, /* ipc:///PATH or tcp://HOST:PORT */
} config_type_t;

typedef enum {
    CONFIG_PLACE_FILE,   /* at the top of the file, and neither in the environment nor an option */
    CONFIG_PLACE_TOP,    /* at the top of the file */
    CONFIG_PLACE_NODE,   /* in an entry of `nodes` */
    CONFIG_PLACE_SHARED, /* at the top, for all nodes; an entry of `nodes` has the last word */
} config_place_t;

typedef struct {
    const char *name; /* "cache.block_size": at most one dot */
    config_type_t type;
    config_place_t place;
    uint64_t min, max;   /* NUMBER, NUMBERS, SIZE */
    const char *initial; /* the default as it would be written; NULL: `unset` says what then */
    const char *unset;   /* what holds without a value and without a default: "the model's" */
    const char *choices; /* CHOICE: "fused prefill decode" */
    const char *option;  /* of `onepath serve` without dashes, "block-size"; NULL: it has none */
    bool inverted;       /* the option (no-prefix-cache) says the opposite */
    const char *actors;  /* whom it concerns: "scheduler executor" */
    const char *help;    /* one line, without its default */
} config_key_t;

enum { CONFIG_VARIABLE_SIZE_BYTES = 96, CONFIG_NAME_LEN_MAX = 63 };

extern const config_key_t config_keys[];
extern const uint32_t config_key_count;

/* The key of that name, whose text need not end with NUL; NULL if there is none. */
const config_key_t *config_schema_find(const char *name, size_t name_len);

/* The key that this option of `onepath serve` sets; NULL if there is none. */
const config_key_t *config_schema_find_option(const char *option);

/* True if keys begin with this word and a dot. */
bool config_schema_is_section(const char *name, size_t name_len);

/* True if environment and command line may set the key, for all nodes. */
bool config_schema_is_settable(const config_key_t *key);

/* The environment variable of a key: that of its option (ONEPATH_MAX_NUM_SEQS), else
 * ONEPATH_SECTION__KEY. */
void config_schema_variable(const config_key_t *key, char out[CONFIG_VARIABLE_SIZE_BYTES]);

/* What an unknown word was perhaps meant to be, a key or a section, in `out`; false if nothing is
 * near.  `prefix` is "" or "cache.": where the word stands. */
bool config_schema_nearest(const char *prefix, const char *word,
                           char out[CONFIG_VARIABLE_SIZE_BYTES]);

/* Edit distance of two words, two swapped letters being one, for "did you mean"; 99 if one of them
 * has 63 bytes or more. */
unsigned config_distance(const char *a, size_t a_len, const char *b, size_t b_len);

#endif
