/* actor_http_metrics_writer.h - what the files of the exposition share; for them only. */
#ifndef ACTOR_HTTP_METRICS_WRITER_H
#define ACTOR_HTTP_METRICS_WRITER_H

#include "actor_http_metrics.h"

typedef struct {
    actor_http_text_t *out;
    const char *prefix;
    const char *labels; /* model_name="...",engine="0" */
} actor_metrics_writer_t;

/* The two lines before the samples of a name; once for each. */
void actor_metrics_describe(const actor_metrics_writer_t *writer, const char *name,
                            const char *type, const char *help);
/* One sample; `more_labels` begins with a comma, or is "". */
void actor_metrics_write_value(const actor_metrics_writer_t *writer, const char *name,
                               const char *more_labels, double value);
/* A name with one sample. */
void actor_metrics_write_one(const actor_metrics_writer_t *writer, const char *name,
                             const char *type, const char *help, double value);
/* The series that only we have. */
void actor_metrics_write_own(const actor_http_metrics_t *self,
                             const actor_http_metrics_view_t *view,
                             const actor_metrics_writer_t *writer);

#endif
