/* cli_doctor.h - the parts of `onepath doctor`: reading what the system says of itself, and what
 * follows from it.  The functions of the first part are pure, over the text of files such as
 * /proc/meminfo; a text that is missing is NULL.  Main thread only. */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "file_model.h"
#include "proto_status.h"

/* ---- reading --------------------------------------------------------------------------------- */

enum { CLI_DOCTOR_VALUE_SIZE_BYTES = 384 };

/* The text behind "name<blanks>:" at the beginning of a line, without blanks around it.  False if
 * there is none. */
bool cli_doctor_field(const char *text, const char *name, char *out, size_t out_size_bytes);

/* "MemAvailable:  123 kB" in bytes; also fields without a unit.  False if there is none. */
bool cli_doctor_amount(const char *text, const char *name, uint64_t *out);

/* Lines of /proc/cpuinfo that begin a processor. */
uint32_t cli_doctor_processor_count(const char *cpuinfo);

/* Whether the flags of the first processor have this word. */
bool cli_doctor_has_flag(const char *cpuinfo, const char *flag);

/* Processors that a quota leaves: "200000 100000" (cpu.max) is 2.  False: no limit. */
bool cli_doctor_quota(const char *cpu_max, double *out);

/* A limit of memory in bytes.  False for "max", for what is no number, and for the number that
 * means no limit in the first version of control groups. */
bool cli_doctor_limit(const char *text, uint64_t *out);

/* The path of the process in /proc/self/cgroup: below the first version's controller of that
 * name, or with NULL the second version's.  False if there is none. */
bool cli_doctor_cgroup_path(const char *cgroup, const char *controller, char *out,
                            size_t out_size_bytes);

/* The choice in brackets: "always [madvise] never". */
bool cli_doctor_choice(const char *text, char *out, size_t out_size_bytes);

/* Bytes that the cache holds for one request of so many tokens, keys and values in 16 bits. */
uint64_t cli_doctor_cache_bytes(const file_config_t *config, uint64_t token_count);

/* "1.5 GiB". */
const char *cli_doctor_bytes(uint64_t size_bytes, char out[32]);

/* ---- judging --------------------------------------------------------------------------------- */

typedef enum { CLI_DOCTOR_OK, CLI_DOCTOR_WARNING, CLI_DOCTOR_FAILURE } cli_doctor_level_t;

typedef struct {
    const char *name; /* stable: "memory" */
    cli_doctor_level_t level;
    char value[CLI_DOCTOR_VALUE_SIZE_BYTES];
    char advice[CLI_DOCTOR_VALUE_SIZE_BYTES]; /* what to type; empty if all is well */
} cli_doctor_line_t;

enum { CLI_DOCTOR_LINE_COUNT_MAX = 24 };

typedef struct {
    cli_doctor_line_t lines[CLI_DOCTOR_LINE_COUNT_MAX];
    uint32_t count;
    uint64_t available_bytes; /* memory for a model and its cache */
} cli_doctor_report_t;

/* A new line without advice; printf's words.  The caller may add advice and raise the level. */
cli_doctor_line_t *cli_doctor_add(cli_doctor_report_t *self, const char *name, const char *format,
                                  ...) __attribute__((format(printf, 3, 4)));
void cli_doctor_advise(cli_doctor_line_t *line, cli_doctor_level_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* What a machine is, from files below `root` ("" = this one). */
void cli_doctor_check_machine(const char *root, cli_doctor_report_t *report);

/* The sum of weights and cache against the memory that is available. */
void cli_doctor_check_fit(const file_config_t *config, cli_doctor_report_t *report);

/* The worst level of all lines. */
cli_doctor_level_t cli_doctor_verdict(const cli_doctor_report_t *self);

#endif
