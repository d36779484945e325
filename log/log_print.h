/* log_print.h - one record for people and for scripts.
 *
 * Owns the forms of `onepath log show`: a line of text, a line of JSON, or bytes in hexadecimal.
 * Whatever peers wrote is made harmless for terminals; PRIVATE content is left out unless it is
 * asked for.  One thread. */
#ifndef LOG_PRINT_H
#define LOG_PRINT_H

#include <stdio.h>

#include "log_message.h"
#include "log_set.h"

typedef enum {
    LOG_PRINT_TEXT,
    LOG_PRINT_JSON,
    LOG_PRINT_HEX,
} log_print_form_t;

typedef struct {
    log_print_form_t form;
    bool show_private;
    uint32_t column_len_max; /* entries of a column that are shown; 0 = 16 */
} log_print_options_t;

typedef struct log_printer log_printer_t;

MUST_CHECK proto_status_t log_printer_new(const log_print_options_t *options,
                                          log_printer_t **out_p);
void log_printer_destroy(log_printer_t **self_p);

/* Prints one record; `message` NULL if it holds none that decodes. */
void log_printer_print(log_printer_t *self, FILE *out, const log_set_item_t *item,
                       const log_message_t *message);

/* "2026-11-30T07:03:59.123456Z" of nanoseconds since 1970. */
void log_print_date(uint64_t realtime_ns, char out[40]);

#endif
