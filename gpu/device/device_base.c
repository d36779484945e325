/* The calls of device_base.h: contracts checked once, for every device. */
#include "device_base.h"

#include "device_ops.h"
#include "proto_require.h"

/* The device that made a stream, event, pool or graph: its first member says so. */
static const device_vtable_t *
vtable_of(const void *part)
{
    require(part != NULL);
    return ((const device_part_t *)part)->device->vtable;
}

void
device_destroy(device_t **self_p)
{
    require(self_p != NULL);
    if (*self_p == NULL) {
        return;
    }
    require((*self_p)->stream_count == 0);
    (*self_p)->vtable->destroy(*self_p);
    *self_p = NULL;
}

const device_ops_t *
device_ops(const device_t *self)
{
    require(self != NULL);
    return self->ops;
}

proto_status_t
device_alloc(device_t *self, device_memory_t kind, size_t size_bytes, void **out_p)
{
    require(self != NULL);
    require(size_bytes > 0);
    require(out_p != NULL);
    return self->vtable->alloc(self, kind, size_bytes, out_p);
}

void
device_release(device_t *self, device_memory_t kind, void **memory_p)
{
    require(memory_p != NULL);
    if (*memory_p == NULL) {
        return;
    }
    proto_status_t status = self->vtable->release(self, kind, *memory_p);
    require(status == STATUS_OK);
    *memory_p = NULL;
}

proto_status_t
device_share(device_t *self, const void *memory, device_share_t *out)
{
    require(memory != NULL);
    require(out != NULL);
    return self->vtable->share == NULL ? STATUS_ERR_UNSUPPORTED
                                       : self->vtable->share(self, memory, out);
}

uint64_t
device_memory_used_bytes(const device_t *self)
{
    return self->vtable->memory_used_bytes == NULL ? 0 : self->vtable->memory_used_bytes(self);
}

proto_status_t
device_memory_free_bytes(device_t *self, uint64_t *out)
{
    require(out != NULL);
    return self->vtable->memory_free_bytes == NULL ? STATUS_ERR_UNSUPPORTED
                                                   : self->vtable->memory_free_bytes(self, out);
}

proto_status_t
device_upload(device_t *self, void *to, const void *from, size_t size_bytes)
{
    require(to != NULL || size_bytes == 0);
    require(from != NULL || size_bytes == 0);
    return self->vtable->upload(self, to, from, size_bytes);
}

proto_status_t
device_stream_new(device_t *self, device_stream_t **out_p)
{
    require(out_p != NULL);
    proto_status_t status = self->vtable->stream_new(self, out_p);
    if (status == STATUS_OK) {
        self->stream_count++;
    }
    return status;
}

void
device_stream_destroy(device_stream_t **self_p)
{
    require(self_p != NULL);
    if (*self_p == NULL) {
        return;
    }
    device_t *device = ((device_part_t *)*self_p)->device;
    device->vtable->stream_destroy(*self_p);
    device->stream_count--;
    *self_p = NULL;
}

proto_status_t
device_stream_synchronize(device_stream_t *self)
{
    return vtable_of(self)->stream_synchronize(self);
}

proto_status_t
device_stream_check(const device_stream_t *self)
{
    return vtable_of(self)->stream_check(self);
}

proto_status_t
device_stream_wait(device_stream_t *self, device_event_t *event)
{
    require(event != NULL);
    return vtable_of(self)->stream_wait(self, event);
}

proto_status_t
device_stream_call(device_stream_t *self, void (*function)(void *), void *context)
{
    require(function != NULL);
    return vtable_of(self)->stream_call(self, function, context);
}

proto_status_t
device_event_new(device_t *self, device_event_t **out_p)
{
    require(out_p != NULL);
    return self->vtable->event_new(self, out_p);
}

void
device_event_destroy(device_event_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        vtable_of(*self_p)->event_destroy(*self_p);
        *self_p = NULL;
    }
}

proto_status_t
device_event_record(device_event_t *self, device_stream_t *stream)
{
    require(stream != NULL);
    return vtable_of(self)->event_record(self, stream);
}

proto_status_t
device_event_query(const device_event_t *self)
{
    return vtable_of(self)->event_query(self);
}

proto_status_t
device_event_synchronize(device_event_t *self)
{
    return vtable_of(self)->event_synchronize(self);
}

uint64_t
device_event_time_ns(const device_event_t *self)
{
    return vtable_of(self)->event_time_ns(self);
}

proto_status_t
device_pool_new(device_t *self, size_t size_bytes, device_pool_t **out_p)
{
    require(size_bytes > 0);
    require(out_p != NULL);
    return self->vtable->pool_new(self, size_bytes, out_p);
}

void
device_pool_destroy(device_pool_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        vtable_of(*self_p)->pool_destroy(*self_p);
        *self_p = NULL;
    }
}

void *
device_pool_memory(const device_pool_t *self, size_t *size_bytes)
{
    require(size_bytes != NULL);
    return vtable_of(self)->pool_memory(self, size_bytes);
}

void
device_pool_keep(device_pool_t *self)
{
    if (vtable_of(self)->pool_keep != NULL) {
        vtable_of(self)->pool_keep(self);
    }
}

proto_status_t
device_capture_begin(device_stream_t *stream, device_pool_t *pool)
{
    require(pool != NULL);
    return vtable_of(stream)->capture_begin(stream, pool);
}

proto_status_t
device_capture_end(device_stream_t *stream, device_graph_t **out_p)
{
    require(out_p != NULL);
    return vtable_of(stream)->capture_end(stream, out_p);
}

proto_status_t
device_graph_replay(device_graph_t *self, device_stream_t *stream)
{
    require(stream != NULL);
    return vtable_of(self)->graph_replay(self, stream);
}

void
device_graph_destroy(device_graph_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        vtable_of(*self_p)->graph_destroy(*self_p);
        *self_p = NULL;
    }
}

uint32_t
device_graph_launch_count(const device_graph_t *self)
{
    return vtable_of(self)->graph_launch_count(self);
}

uint32_t
device_worker_count(const device_t *self)
{
    return self->worker_count;
}

size_t
device_weight_size_bytes(const device_t *self, const kern_weight_t *weight)
{
    require(weight != NULL);
    return self->vtable->weights->size_bytes(self, weight);
}

kern_weight_t
device_weight_load(device_t *self, const kern_weight_t *weight, void *memory)
{
    require(weight != NULL);
    return self->vtable->weights->load(self, weight, memory);
}

size_t
device_form_size_bytes(const device_t *self, kern_form_t form, uint32_t rows, uint32_t cols)
{
    return self->vtable->weights->form_size_bytes(self, form, rows, cols);
}
