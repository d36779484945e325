/* log_support.h - a folder with segments whose every record follows from its number, for the tests
 * of the log: what is read back can be checked byte for byte. */
#ifndef LOG_SUPPORT_H
#define LOG_SUPPORT_H

#include <check.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_log_recover.h"

enum { LOG_PATH_SIZE = 512, LOG_FILE_SIZE_MAX = 4 << 20 };

/* A folder of its own; log_path() names files in it, lent until the eighth call after. */
void log_folder_make(void);
void log_folder_remove(void);
const char *log_folder(void);
const char *log_path(const char *name);
/* The file of segment `index` of the writer below. */
const char *log_segment_path(uint32_t index);

/* Record number `sequence`: kinds IN and OUT with a header that names request 1 + sequence / 10,
 * parts of up to `size_max` bytes.  Views live until the next call. */
void log_record_make(uint64_t sequence, size_t size_max, proto_log_record_t *out);
/* Fails the test unless `got` is record number got->sequence. */
void log_record_check(const proto_log_record_t *got, size_t size_max);

/* A writer called "scheduler" of epoch 7. */
proto_log_writer_t *log_writer_open(uint64_t segment_size_max, uint64_t sequence_before);
/* Appends records first..last. */
void log_write(proto_log_writer_t *writer, uint64_t first, uint64_t last, size_t size_max);
/* One segment with records 1..count. */
void log_make(uint64_t count, size_t size_max);

size_t log_file_read(const char *path, uint8_t *out);
void log_file_write(const char *path, const uint8_t *data, size_t size_bytes);
bool log_file_exists(const char *path);

proto_log_reader_t *log_reader_open(const char *path);
uint64_t log_drop_count(const proto_log_record_t *record);

#endif
