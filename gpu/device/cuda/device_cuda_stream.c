/* Streams and events of the CUDA device. */
#include <stdlib.h>

#include "device_cuda_private.h"

proto_status_t
device_cuda_stream_new(device_t *base, device_stream_t **out_p)
{
    if (device_cuda_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    device_stream_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->part.device = base;
    proto_status_t status =
        device_cuda_check(base, cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking),
                          "make a stream");
    if (status == STATUS_OK) {
        status =
            device_cuda_check(base, cudaStreamCreateWithFlags(&self->calls, cudaStreamNonBlocking),
                              "make a stream");
    }
    if (status == STATUS_OK) {
        status = device_cuda_check(base,
                                   cudaEventCreateWithFlags(&self->reached, cudaEventDisableTiming),
                                   "make an event");
    }
    if (status != STATUS_OK) {
        device_cuda_stream_destroy(self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
device_cuda_stream_destroy(device_stream_t *self)
{
    if (self->stream != NULL) {
        (void)cudaStreamSynchronize(self->stream);
        (void)cudaStreamDestroy(self->stream);
    }
    if (self->calls != NULL) {
        (void)cudaStreamSynchronize(self->calls);
        (void)cudaStreamDestroy(self->calls);
    }
    if (self->reached != NULL) {
        (void)cudaEventDestroy(self->reached);
    }
    free(self);
}

proto_status_t
device_cuda_stream_synchronize(device_stream_t *self)
{
    if (device_cuda_in_capture(self->part.device)) {
        return STATUS_ERR_CAPTURE;
    }
    proto_status_t status =
        device_cuda_check(self->part.device, cudaStreamSynchronize(self->stream), "wait");
    if (status == STATUS_OK) {
        status = device_cuda_check(self->part.device, cudaStreamSynchronize(self->calls), "wait");
    }
    return status == STATUS_OK ? device_cuda_stream_check(self) : status;
}

proto_status_t
device_cuda_stream_check(const device_stream_t *self)
{
    const cuda_device_t *device = (const cuda_device_t *)self->part.device;
    return atomic_load(&device->has_failed) ? STATUS_ERR_DEVICE : STATUS_OK;
}

proto_status_t
device_cuda_stream_wait(device_stream_t *self, device_event_t *event)
{
    if (device_cuda_in_capture(self->part.device)) {
        return STATUS_ERR_CAPTURE;
    }
    return device_cuda_check(self->part.device, cudaStreamWaitEvent(self->stream, event->event, 0),
                             "wait in a stream");
}

proto_status_t
device_cuda_stream_call(device_stream_t *self, void (*function)(void *), void *context)
{
    device_t *device = self->part.device;
    if (device_cuda_in_capture(device)) {
        return STATUS_ERR_CAPTURE;
    }
    proto_status_t status =
        device_cuda_check(device, cudaEventRecord(self->reached, self->stream), "record an event");
    if (status == STATUS_OK) {
        status = device_cuda_check(device, cudaStreamWaitEvent(self->calls, self->reached, 0),
                                   "wait in a stream");
    }
    if (status == STATUS_OK) {
        status = device_cuda_check(device, cudaLaunchHostFunc(self->calls, function, context),
                                   "call the host");
    }
    return status;
}

proto_status_t
device_cuda_event_new(device_t *base, device_event_t **out_p)
{
    if (device_cuda_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    device_event_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->part.device = base;
    proto_status_t status =
        device_cuda_check(base, cudaEventCreateWithFlags(&self->event, cudaEventDisableTiming),
                          "make an event");
    if (status == STATUS_OK) {
        status =
            device_cuda_check(base, cudaHostAlloc((void **)&self->stamp, sizeof *self->stamp, 0),
                              "make an event");
    }
    if (status != STATUS_OK) {
        device_cuda_event_destroy(self);
        return status;
    }
    *self->stamp = 0;
    *out_p = self;
    return STATUS_OK;
}

void
device_cuda_event_destroy(device_event_t *self)
{
    if (self->event != NULL) {
        (void)cudaEventDestroy(self->event);
    }
    if (self->stamp != NULL) {
        (void)cudaFreeHost(self->stamp);
    }
    free(self);
}

proto_status_t
device_cuda_event_record(device_event_t *self, device_stream_t *stream)
{
    device_t *device = self->part.device;
    if (device_cuda_in_capture(device)) {
        return STATUS_ERR_CAPTURE;
    }
    proto_status_t status =
        device_cuda_check(device, (cudaError_t)kern_cuda_stamp(self->stamp, stream->stream),
                          "record an event");
    if (status == STATUS_OK) {
        status = device_cuda_check(device, cudaEventRecord(self->event, stream->stream),
                                   "record an event");
    }
    self->is_recorded = self->is_recorded || status == STATUS_OK;
    return status;
}

proto_status_t
device_cuda_event_query(const device_event_t *self)
{
    if (device_cuda_in_capture(self->part.device)) {
        return STATUS_ERR_CAPTURE;
    }
    cudaError_t error = cudaEventQuery(self->event);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return STATUS_AGAIN;
    }
    return device_cuda_check(self->part.device, error, "a step");
}

proto_status_t
device_cuda_event_synchronize(device_event_t *self)
{
    if (device_cuda_in_capture(self->part.device)) {
        return STATUS_ERR_CAPTURE;
    }
    return device_cuda_check(self->part.device, cudaEventSynchronize(self->event),
                             "wait for an event");
}

uint64_t
device_cuda_event_time_ns(const device_event_t *self)
{
    const cuda_device_t *device = (const cuda_device_t *)self->part.device;
    uint64_t stamp = *(const volatile uint64_t *)self->stamp;
    return stamp == 0 ? 0 : (uint64_t)((int64_t)stamp + device->clock_offset_ns);
}
