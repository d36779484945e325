/* kern_form.h - how rows of activations lie in memory between two operations.
 *
 * Whoever writes rows says in which form, and every reader of them expects that one.  A device says
 * how large a form is (device_ops.h). */
#ifndef KERN_FORM_H
#define KERN_FORM_H

typedef enum {
    KERN_FORM_ROWS = 0,    /* float32, one row after the other */
    KERN_FORM_OPERAND = 1, /* as the device's products read their input; on the host as ROWS */
} kern_form_t;

#endif
