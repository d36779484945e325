/* actor_fault.c - a small table, searched only while something is armed. */
#include "actor_fault.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    POINT_COUNT_MAX = 16,
    NAME_SIZE_BYTES = 96,
    DEFAULT_EXIT_CODE = 70,
};

typedef enum {
    ACTION_KILL,
    ACTION_STOP,
    ACTION_ABORT,
    ACTION_EXIT,
    ACTION_DELAY,
    ACTION_DROP,
} action_t;

static const char *const action_names[] = {"kill", "stop", "abort", "exit", "delay", "drop"};

typedef struct {
    char name[NAME_SIZE_BYTES];
    action_t action;
    uint64_t nth; /* 0 = every hit */
    uint64_t argument;
    uint64_t hits;
} point_t;

atomic_bool actor_fault_armed;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static point_t points[POINT_COUNT_MAX];
static uint32_t point_count;
static void (*watcher)(void *context, const char *text);
static void *watcher_context;

static bool
parse_number(const char *text, uint64_t *out)
{
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    char *end = NULL;
    *out = strtoull(text, &end, 10);
    return *end == '\0';
}

/* Takes one "name:action[:nth[:argument]]" apart; the text is changed. */
static bool
parse_point(char *text, point_t *out)
{
    char *fields[4] = {text, NULL, NULL, NULL};
    uint32_t count = 1;
    for (char *at = text; *at != '\0'; at++) {
        if (*at == ':') {
            if (count == 4) {
                return false;
            }
            *at = '\0';
            fields[count++] = at + 1;
        }
    }
    if (count < 2 || fields[0][0] == '\0' || strlen(fields[0]) >= sizeof out->name) {
        return false;
    }
    *out = (point_t){.nth = 1};
    (void)snprintf(out->name, sizeof out->name, "%s", fields[0]);
    uint32_t action = 0;
    while (action < sizeof action_names / sizeof action_names[0] &&
           strcmp(fields[1], action_names[action]) != 0) {
        action++;
    }
    if (action == sizeof action_names / sizeof action_names[0]) {
        return false;
    }
    out->action = (action_t)action;
    out->argument = out->action == ACTION_EXIT ? DEFAULT_EXIT_CODE : 0;
    return (count < 3 || parse_number(fields[2], &out->nth)) &&
           (count < 4 || parse_number(fields[3], &out->argument));
}

proto_status_t
actor_fault_arm(const char *specification)
{
    char text[POINT_COUNT_MAX * NAME_SIZE_BYTES];
    if (strlen(specification) >= sizeof text) {
        return STATUS_ERR_CONFIG;
    }
    (void)snprintf(text, sizeof text, "%s", specification);
    point_t parsed[POINT_COUNT_MAX] = {{.nth = 0}};
    uint32_t count = 0;
    char *rest = NULL;
    for (char *item = strtok_r(text, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest)) {
        if (count == POINT_COUNT_MAX || !parse_point(item, &parsed[count])) {
            return STATUS_ERR_CONFIG;
        }
        count++;
    }
    pthread_mutex_lock(&mutex);
    memcpy(points, parsed, sizeof parsed[0] * count);
    point_count = count;
    pthread_mutex_unlock(&mutex);
    atomic_store(&actor_fault_armed, count > 0);
    return STATUS_OK;
}

void
actor_fault_clear(void)
{
    atomic_store(&actor_fault_armed, false);
    pthread_mutex_lock(&mutex);
    point_count = 0;
    pthread_mutex_unlock(&mutex);
}

void
actor_fault_watch(void (*fn)(void *context, const char *text), void *context)
{
    pthread_mutex_lock(&mutex);
    watcher = fn;
    watcher_context = context;
    pthread_mutex_unlock(&mutex);
}

static void
tell_watcher(const point_t *point)
{
    char text[NAME_SIZE_BYTES + 64];
    pthread_mutex_lock(&mutex);
    void (*fn)(void *context, const char *text) = watcher;
    void *context = watcher_context;
    pthread_mutex_unlock(&mutex);
    if (fn != NULL) {
        (void)snprintf(text, sizeof text, "injected at %s: %s", point->name,
                       action_names[point->action]);
        fn(context, text);
    }
}

/* True if the hit of `name` fires; *out gets what to do. */
static bool
take_hit(const char *name, point_t *out)
{
    bool fires = false;
    pthread_mutex_lock(&mutex);
    for (uint32_t index = 0; index < point_count && !fires; index++) {
        point_t *point = &points[index];
        if (strcmp(point->name, name) == 0) {
            point->hits++;
            fires = point->nth == 0 || point->hits == point->nth;
            *out = *point;
        }
    }
    pthread_mutex_unlock(&mutex);
    return fires;
}

bool
actor_fault_hit(const char *name)
{
    point_t point;
    if (!take_hit(name, &point)) {
        return false;
    }
    tell_watcher(&point);
    struct timespec delay = {(time_t)(point.argument / 1000),
                             (long)(point.argument % 1000) * 1000000};
    switch (point.action) {
    case ACTION_KILL:
        (void)kill(getpid(), SIGKILL);
        return false;
    case ACTION_STOP:
        (void)kill(getpid(), SIGSTOP);
        return false;
    case ACTION_ABORT:
        abort();
    case ACTION_EXIT:
        /* No handlers, no flushing: the point of the exercise is a sudden end. */
        (void)syscall(SYS_exit_group, (int)point.argument);
        return false;
    case ACTION_DELAY:
        (void)nanosleep(&delay, NULL);
        return false;
    case ACTION_DROP:
        return true;
    }
    return false;
}

bool
actor_fault_hit_kind(const char *prefix, proto_kind_t kind)
{
    char name[NAME_SIZE_BYTES];
    (void)snprintf(name, sizeof name, "%s.%s", prefix, proto_kind_name(kind));
    return actor_fault_hit(name);
}
