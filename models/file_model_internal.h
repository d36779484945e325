/* file_model_internal.h - the inside of an open checkpoint, for the files of models/ only. */
#ifndef FILE_MODEL_INTERNAL_H
#define FILE_MODEL_INTERNAL_H

#include "file_gguf.h"
#include "file_map.h"
#include "file_model.h"
#include "file_tensors.h"

enum { FILE_SHARD_COUNT_MAX = 1024 };

typedef struct {
    file_map_t map;
    json_t *header; /* owns the tensors' names; NULL for a GGUF */
} file_shard_t;

/* Anonymous memory of the model. */
typedef struct {
    void *memory;
    size_t size_bytes;
} file_copy_t;

/* A draft folder is opened like a model's, with another config and other roles. */
typedef struct {
    void *context;
    proto_status_t (*read_config)(void *context, const json_t *config, file_config_t *out,
                                  file_error_t error);
    proto_status_t (*assign_roles)(void *context, file_model_t *self, file_error_t error);
} file_folder_reader_t;

struct file_model {
    file_config_t config;
    const file_folder_reader_t *reader; /* during opening; NULL = a model */
    bool is_gguf;
    int folder_fd;        /* -1 for a GGUF */
    file_shard_t *shards; /* [shard_count] */
    uint32_t shard_count;
    file_gguf_t gguf; /* empty for a folder */
    file_tensors_t tensors;
    file_tensor_t *roles;   /* [FILE_ROLE_FIRST_OF_LAYER + layer_count * roles of a layer] */
    file_tensor_t *experts; /* with has_apart_experts, else NULL: file_model_expert_slot() */
    size_t expert_slot_count;
    file_copy_t *copies; /* [copy_capacity]: what a slice could not leave in the mapping */
    size_t copy_count;
    size_t copy_capacity;
};

enum { FILE_ROLES_PER_LAYER = FILE_ROLE_COUNT - FILE_ROLE_FIRST_OF_LAYER };

/* Fills the parts of the config that the keys of a GGUF give; the tensors decide the rest. */
MUST_CHECK proto_status_t file_config_from_gguf(const file_gguf_t *gguf, file_config_t *out,
                                                file_error_t error);

/* The same from config.json and, unless NULL, generation_config.json. */
MUST_CHECK proto_status_t file_config_from_json(const json_t *config, const json_t *generation,
                                                file_config_t *out, file_error_t error);

/* Bounds and relations that hold for every checkpoint, whatever its container. */
MUST_CHECK proto_status_t file_config_check(const file_config_t *config, file_error_t error);

/* Everything that a gemma3 has in common; `period` is the distance of full layers. */
void file_config_set_gemma3(file_config_t *config, uint32_t sliding_window, uint32_t period);

/* Everything that a gpt-oss has in common: sliding and full layers by turns, sinks, the experts'
 * activation. */
void file_config_set_gpt_oss(file_config_t *config);

/* YaRN with the factor that stands in the config; an attention factor of 0 follows from it, and
 * from both scales if neither is 0. */
void file_config_set_yarn(file_config_t *config, double attention_factor, double mscale,
                          double mscale_all_dim);

/* Everything that a deepseek_v3 has in common; after its sizes and, for YaRN's part in the scale of
 * the scores, with the scaling's `mscale_all_dim` (0 = none). */
void file_config_set_deepseek(file_config_t *config, double mscale_all_dim);

/* Latent attention and its router: bounds and relations. */
MUST_CHECK proto_status_t file_config_check_deepseek(const file_config_t *config,
                                                     file_error_t error);

/* Adds a stop id unless it is there, negative, or the list is full. */
void file_config_add_stop_id(file_config_t *config, int32_t id);

/* Copies a name, characters that are not printable replaced. */
void file_config_set_name(file_config_t *config, const void *name, size_t size_bytes);

/* Maps a file of the model's folder and parses it.  STATUS_ERR_NOT_FOUND if it is missing, then
 * without a text. */
MUST_CHECK proto_status_t file_model_read_json(const file_model_t *self,
                                               const file_json_limits_t *limits, file_error_t error,
                                               json_t **out_p);

typedef enum {
    FILE_FORM_VECTOR,
    FILE_FORM_MATRIX,
    FILE_FORM_STACK,  /* a matrix for each expert, in one tensor */
    FILE_FORM_EXPERT, /* a matrix of an expert, of the types of a stack */
    FILE_FORM_TAPS,   /* [channels][1][taps] */
} file_form_t;

/* Finds a tensor by name, checks it, marks it as used and describes it as [rows, cols]. */
MUST_CHECK proto_status_t file_model_bind(file_model_t *self, const char *name, file_form_t form,
                                          uint32_t rows, uint32_t cols, file_error_t error,
                                          file_tensor_t *out);

/* The same for the experts that have tensors of their own. */
MUST_CHECK proto_status_t file_model_assign_experts(file_model_t *self, file_error_t error);

/* What the matrix in this place of file_model.experts is for. */
file_role_t file_expert_role(size_t slot);

/* Counts the types of everything that has a role, and names them in the config. */
void file_model_summarise_types(file_model_t *self);

/* Gives every tensor its role, checks shapes against the config, counts bytes and types. */
MUST_CHECK proto_status_t file_model_assign_roles(file_model_t *self, file_error_t error);

/* file_model_open() of a folder with another reader. */
MUST_CHECK proto_status_t file_model_open_as(const char *path, const file_folder_reader_t *reader,
                                             file_error_t error, file_model_t **out_p);

/* Computes config.digest. */
void file_model_compute_digest(file_model_t *self);

#endif
