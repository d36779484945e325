#include "file_model.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file_model_internal.h"
#include "file_safetensors.h"
#include "proto_require.h"

static const file_json_limits_t CONFIG_LIMITS = {"config.json", 1 << 20, 16, 1 << 16};
static const file_json_limits_t GENERATION_LIMITS = {"generation_config.json", 1 << 20, 16,
                                                     1 << 16};
static const file_json_limits_t INDEX_LIMITS = {"model.safetensors.index.json", 64 << 20, 4,
                                                2 * FILE_TENSOR_COUNT_MAX};

/* The last part of a path, for a checkpoint that names itself nowhere. */
static void
set_name_from_path(file_config_t *config, const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') {
        start--;
    }
    file_config_set_name(config, path + start, end - start);
}

static proto_status_t
open_gguf(file_model_t *self, const char *path, file_error_t error)
{
    self->is_gguf = true;
    self->shards = calloc(1, sizeof *self->shards);
    if (self->shards == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory");
    }
    proto_status_t status = file_map_open(path, error, &self->shards[0].map);
    if (status != STATUS_OK) {
        return status;
    }
    self->shard_count = 1;
    file_view_t file = {self->shards[0].map.bytes, self->shards[0].map.size_bytes};
    status = file_gguf_init(&self->gguf, file, &self->tensors, error);
    if (status != STATUS_OK) {
        return status;
    }
    set_name_from_path(&self->config, path);
    return file_config_from_gguf(&self->gguf, &self->config, error);
}

proto_status_t
file_model_read_json(const file_model_t *self, const file_json_limits_t *limits, file_error_t error,
                     json_t **out_p)
{
    file_map_t map = {0};
    file_error_t quiet = {NULL, 0};
    proto_status_t status = file_map_open_in(self->folder_fd, limits->what, quiet, &map);
    if (status == STATUS_ERR_NOT_FOUND) {
        return status;
    }
    if (status != STATUS_OK) { /* once more for its text */
        status = file_map_open_in(self->folder_fd, limits->what, error, &map);
    }
    if (status == STATUS_OK) {
        status = file_json_parse(map.bytes, map.size_bytes, limits, error, out_p);
        file_map_close(&map);
    }
    return status;
}

static proto_status_t
read_folder_config(file_model_t *self, file_error_t error)
{
    json_t *config = NULL;
    json_t *generation = NULL;
    proto_status_t status = file_model_read_json(self, &CONFIG_LIMITS, error, &config);
    if (status == STATUS_ERR_NOT_FOUND) {
        return file_error_set(error, STATUS_ERR_IO,
                              "the folder has no config.json; a model is a GGUF file or a folder "
                              "with config.json and .safetensors files");
    }
    if (status == STATUS_OK) {
        status = file_model_read_json(self, &GENERATION_LIMITS, error, &generation);
        status = status == STATUS_ERR_NOT_FOUND ? STATUS_OK : status;
    }
    if (status == STATUS_OK) {
        const file_folder_reader_t *reader = self->reader;
        status = reader != NULL ? reader->read_config(reader->context, config, &self->config, error)
                                : file_config_from_json(config, generation, &self->config, error);
    }
    json_decref(config);
    json_decref(generation);
    return status;
}

static proto_status_t
open_shard(file_model_t *self, const char *name, file_error_t error)
{
    require(self->shard_count < FILE_SHARD_COUNT_MAX);
    file_shard_t *shard = &self->shards[self->shard_count];
    proto_status_t status = file_map_open_in(self->folder_fd, name, error, &shard->map);
    if (status != STATUS_OK) {
        return status == STATUS_ERR_NOT_FOUND ? STATUS_ERR_IO : status;
    }
    uint32_t index = self->shard_count++;
    file_view_t file = {shard->map.bytes, shard->map.size_bytes};
    return file_safetensors_read(file, name, index, &self->tensors, &shard->header, error);
}

static int
compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The shards that the index names, each once, in order of their names. */
static proto_status_t
list_shards(const json_t *weight_map, const char **names, uint32_t *count, file_error_t error)
{
    const char *key;
    json_t *value;
    size_t entry_count = json_object_size(weight_map);
    const char **all = calloc(entry_count + 1, sizeof *all);
    if (all == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the index");
    }
    proto_status_t status = STATUS_OK;
    size_t written = 0;
    json_object_foreach((json_t *)(uintptr_t)weight_map, key, value)
    {
        if (!json_is_string(value)) {
            status =
                file_error_set(error, STATUS_ERR_MALFORMED, "%s: the file of '%s' must be a string",
                               INDEX_LIMITS.what, file_printable(key, strlen(key)).text);
            break;
        }
        all[written++] = json_string_value(value);
    }
    qsort(all, written, sizeof *all, compare_names);
    *count = 0;
    for (size_t i = 0; status == STATUS_OK && i < written; i++) {
        if (i > 0 && strcmp(all[i], all[i - 1]) == 0) {
            continue;
        }
        if (*count == FILE_SHARD_COUNT_MAX) {
            status = file_error_set(error, STATUS_ERR_MALFORMED, "%s: more than %d files",
                                    INDEX_LIMITS.what, FILE_SHARD_COUNT_MAX);
            break;
        }
        names[(*count)++] = all[i];
    }
    free(all);
    return status;
}

/* What the index promises must be what the shards hold. */
static proto_status_t
check_index(const file_model_t *self, const json_t *weight_map, const char *const *names,
            file_error_t error)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)weight_map, key, value)
    {
        const file_stored_t *stored = file_tensors_find(&self->tensors, key);
        if (stored == NULL || strcmp(names[stored->shard], json_string_value(value)) != 0) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "%s: tensor '%s' is not in the file it names", INDEX_LIMITS.what,
                                  file_printable(key, strlen(key)).text);
        }
    }
    return STATUS_OK;
}

static proto_status_t
open_shards(file_model_t *self, const json_t *index, file_error_t error)
{
    const char *names[FILE_SHARD_COUNT_MAX] = {"model.safetensors"};
    uint32_t count = 1;
    const json_t *weight_map = json_object_get(index, "weight_map");
    proto_status_t status = STATUS_OK;
    if (index != NULL && !json_is_object(weight_map)) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "%s: 'weight_map' must be an object",
                              INDEX_LIMITS.what);
    }
    if (index != NULL) {
        status = list_shards(weight_map, names, &count, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    self->shards = calloc(count + 1, sizeof *self->shards);
    if (self->shards == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++) {
        status = open_shard(self, names[i], error);
    }
    if (status == STATUS_OK) {
        status = file_tensors_sort(&self->tensors, error);
    }
    if (status == STATUS_OK && index != NULL) {
        status = check_index(self, weight_map, names, error);
    }
    return status;
}

static proto_status_t
open_folder(file_model_t *self, const char *path, file_error_t error)
{
    self->folder_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (self->folder_fd < 0) {
        return file_error_set(error, STATUS_ERR_IO, "%s: %s",
                              file_printable(path, strlen(path)).text, strerror(errno));
    }
    set_name_from_path(&self->config, path);
    proto_status_t status = read_folder_config(self, error);
    if (status != STATUS_OK) {
        return status;
    }
    json_t *index = NULL;
    status = file_model_read_json(self, &INDEX_LIMITS, error, &index);
    if (status == STATUS_OK || status == STATUS_ERR_NOT_FOUND) {
        status = open_shards(self, index, error);
    }
    json_decref(index);
    return status;
}

static proto_status_t
open_model(file_model_t *self, const char *path, file_error_t error)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        return file_error_set(error, STATUS_ERR_IO, "model path '%s': %s",
                              file_printable(path, strlen(path)).text, strerror(errno));
    }
    proto_status_t status = S_ISDIR(info.st_mode) || self->reader != NULL
                                ? open_folder(self, path, error)
                                : open_gguf(self, path, error);
    if (status == STATUS_OK) {
        const file_folder_reader_t *reader = self->reader;
        status = reader != NULL ? reader->assign_roles(reader->context, self, error)
                                : file_model_assign_roles(self, error);
    }
    if (status == STATUS_OK) {
        for (uint32_t i = 0; i < self->shard_count; i++) {
            self->config.file_size_bytes += self->shards[i].map.size_bytes;
        }
        file_model_compute_digest(self);
    }
    return status;
}

proto_status_t
file_model_open(const char *path, char *error, size_t error_size_bytes, file_model_t **out_p)
{
    return file_model_open_as(path, NULL, file_error_init(error, error_size_bytes), out_p);
}

proto_status_t
file_model_open_as(const char *path, const file_folder_reader_t *reader, file_error_t sink,
                   file_model_t **out_p)
{
    require(path != NULL);
    require(out_p != NULL);
    file_model_t *self = sodium_init() >= 0 ? calloc(1, sizeof *self) : NULL;
    if (self == NULL) {
        return file_error_set(sink, STATUS_ERR_NO_MEMORY, "out of memory");
    }
    self->folder_fd = -1;
    self->reader = reader;
    self->config.bos_id = FILE_ID_NONE;
    self->config.eos_id = FILE_ID_NONE;
    self->config.pad_id = FILE_ID_NONE;
    proto_status_t status = open_model(self, path, sink);
    if (status != STATUS_OK) {
        file_model_close(&self);
        return status;
    }
    self->reader = NULL;
    *out_p = self;
    return STATUS_OK;
}

void
file_model_close(file_model_t **self_p)
{
    file_model_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    for (uint32_t i = 0; i < self->shard_count; i++) {
        file_map_close(&self->shards[i].map);
        json_decref(self->shards[i].header);
    }
    if (self->folder_fd >= 0) {
        (void)close(self->folder_fd);
    }
    for (size_t i = 0; i < self->copy_count; i++) {
        (void)munmap(self->copies[i].memory, self->copies[i].size_bytes);
    }
    free(self->copies);
    file_gguf_fini(&self->gguf);
    file_tensors_fini(&self->tensors);
    free(self->shards);
    free(self->roles);
    free(self->experts);
    free(self);
    *self_p = NULL;
}

const file_config_t *
file_model_config(const file_model_t *self)
{
    return &self->config;
}

/* Touches [bytes, bytes + size_bytes): the kernel is told first, so that it reads ahead. */
static void
touch_pages(const uint8_t *bytes, uint64_t size_bytes)
{
    const uintptr_t page = 4096;
    uintptr_t start = (uintptr_t)bytes & ~(page - 1);
    uintptr_t end = (uintptr_t)bytes + size_bytes;
    (void)madvise((void *)start, end - start, MADV_WILLNEED);
    for (uint64_t at = 0; at < size_bytes; at += page) {
        (void)*(const volatile uint8_t *)(bytes + at);
    }
}

void
file_model_prefetch(const file_model_t *self, file_progress_fn progress, void *context)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < self->tensors.count; i++) {
        total += self->tensors.items[i].size_bytes;
    }
    const uint64_t chunk = total / 64 + 1;
    uint64_t done = 0;
    uint64_t told = 0;
    for (uint32_t i = 0; i < self->tensors.count; i++) {
        const file_stored_t *item = &self->tensors.items[i];
        for (uint64_t at = 0; at < item->size_bytes; at += chunk) {
            uint64_t left = item->size_bytes - at;
            uint64_t part = left < chunk ? left : chunk;
            touch_pages(item->data + at, part);
            done += part;
            if (progress != NULL && done - told >= chunk) {
                told = done;
                progress(context, done, total);
            }
        }
    }
    if (progress != NULL) {
        progress(context, total, total);
    }
}
