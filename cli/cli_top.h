/* cli_top.h - the picture that `onepath top` shows: lines of text for a window of any size.
 *
 * Pure: a node and its figures in, lines out; the terminal is cli_top.c's.  Main thread. */
#ifndef CLI_TOP_H
#define CLI_TOP_H

#include "cli_look.h"

enum {
    CLI_TOP_LINES_MAX = 200,
    CLI_TOP_WIDTH_MAX = 300,
    CLI_TOP_WIDTH_MIN = 40,
    CLI_TOP_HEIGHT_MIN = 10,
};

typedef enum {
    CLI_TOP_PLAIN = 0,
    CLI_TOP_TITLE, /* of a table */
    CLI_TOP_GOOD,
    CLI_TOP_WARN,
    CLI_TOP_BAD,
    CLI_TOP_DIM,
} cli_top_look_t;

typedef struct {
    char text[CLI_TOP_WIDTH_MAX + 1]; /* ASCII, no longer than the window is wide */
    cli_top_look_t look;
} cli_top_line_t;

typedef struct {
    const actor_node_t *node;
    const cli_look_requests_t *requests;
    const cli_look_rates_t *rates;
    const char *run_dir;
    const char *clock; /* "12:34:56" */
    uint32_t width;
    uint32_t height;   /* 0 = as many lines as there are */
    bool only_waiting; /* of the requests */
    bool paused;
    uint32_t first_request; /* how many are scrolled away */
} cli_top_view_t;

/* Writes at most `height` lines, the last of them the keys if height is not 0; returns how many. */
uint32_t cli_top_draw(const cli_top_view_t *view, cli_top_line_t *lines);

#endif
