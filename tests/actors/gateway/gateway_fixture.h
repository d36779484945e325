/* gateway_fixture.h - a real gateway in a thread, before a fake scheduler (fake_scheduler.h), with
 * its log kept for the test to look at. */
#ifndef GATEWAY_FIXTURE_H
#define GATEWAY_FIXTURE_H

#include "actor_gateway.h"
#include "fake_scheduler.h"
#include "http_client.h"

typedef struct {
    actor_gateway_options_t options; /* may be changed before fixture_start */
    fake_script_t script;
    bool no_scheduler; /* nobody answers at the endpoint */
    uint16_t port;
    fake_scheduler_t *scheduler;
    int exit_code; /* after fixture_stop */
} fixture_t;

extern fixture_t fixture;

/* Sensible options and a script that says "Hello world", one token a step. */
void fixture_setup(void);
/* Starts both sides; waits until the gateway listens, and is ready unless no_scheduler. */
void fixture_start(void);
/* As SIGTERM: admit nothing more, finish what runs. */
void fixture_drain(void);
/* Asks the gateway to end and waits for it. */
void fixture_stop(void);
void fixture_teardown(void);

/* One request on a connection of its own. */
void fixture_post(const char *path, const char *json, http_reply_t *reply);
void fixture_get(const char *path, http_reply_t *reply);
/* Looks at the fake scheduler until `done` says so; false after 5 s. */
bool fixture_wait_seen(bool (*done)(const fake_seen_t *seen));
/* Allocations of the gateway's thread so far; false where they cannot be counted. */
bool fixture_allocations(uint32_t *count);
/* The gateway's log so far; owned by the fixture. */
const char *fixture_log(void);

#endif
