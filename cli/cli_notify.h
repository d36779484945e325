/* cli_notify.h - tells systemd how a node is doing: READY, STATUS, STOPPING, WATCHDOG.
 *
 * The protocol of sd_notify(3), without its library: datagrams to the socket that NOTIFY_SOCKET
 * names.  Without that variable every call does nothing.  Main thread. */
#ifndef CLI_NOTIFY_H
#define CLI_NOTIFY_H

#include <stdbool.h>

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and takes them out of the environment, so
 * that no child speaks for the node. */
void cli_notify_init(void);

/* The node is ready; `status` is one line for `systemctl status`. */
void cli_notify_ready(const char *status);

/* For each round of the supervisor's loop: the watchdog's sign of life, twice in its interval, and
 * once that the end has begun. */
void cli_notify_round(bool is_ending);

#endif
