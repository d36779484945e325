#include "actor_conform_tape.h"

#include <stdlib.h>
#include <unistd.h>

#include "actor_log.h"

struct conform_tape {
    int fd;
    proto_ring_reader_t *reader;
    proto_log_writer_t *writer;
    bool is_failing;
};

proto_status_t
actor_conform_tape_open(const char *directory, const proto_ring_owner_t *owner,
                        conform_tape_t **out_p)
{
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    conform_tape_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return status;
    }
    self->fd = -1;
    status = proto_ring_create(owner, 0, &self->fd);
    if (status == STATUS_OK) {
        status = proto_ring_reader_open(self->fd, &self->reader);
    }
    if (status == STATUS_OK) {
        proto_log_options_t options = {.directory = directory,
                                       .name = owner->name,
                                       .role = owner->role,
                                       .epoch = owner->epoch,
                                       .build = "conform"};
        status = proto_log_writer_open(&options, &self->writer);
    }
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "conform.log", 0, NULL, "cannot record in the folder '%s': %s",
                  directory, proto_status_text(status));
        actor_conform_tape_close(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
actor_conform_tape_close(conform_tape_t **self_p)
{
    conform_tape_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->writer != NULL) {
        actor_conform_tape_service(self, 0);
        proto_log_writer_close(&self->writer);
    }
    if (self->reader != NULL) {
        proto_ring_reader_close(&self->reader);
    }
    if (self->fd >= 0) {
        (void)close(self->fd);
    }
    free(self);
    *self_p = NULL;
}

int
actor_conform_tape_fd(const conform_tape_t *self)
{
    return self->fd;
}

void
actor_conform_tape_service(conform_tape_t *self, uint64_t now_ns)
{
    proto_log_record_t record;
    while (!self->is_failing && proto_ring_reader_next(self->reader, &record) == STATUS_OK) {
        if (proto_log_append(self->writer, &record, now_ns) == STATUS_ERR_IO) {
            self->is_failing = true;
            actor_log(ACTOR_LOG_ERROR, "conform.log", 0, NULL,
                      "the record cannot be written any more: is the disk full?");
        }
    }
}
