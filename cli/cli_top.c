/* `onepath top`: a running node, again and again, on a terminal. */
#include "cli_top.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "actor_log.h"
#include "cli_command.h"
#include "cli_node.h"
#include "proto_clock.h"

#ifdef ONEPATH_HAS_NCURSES
#include <ncurses.h>
#endif

enum {
    FIRST_MS = 500, /* between the two looks of --once: figures a second need two */
    KEY_MS = 50,
};

typedef struct {
    const char *run_dir;
    bool once;
    bool json;
    uint32_t interval_s;
    uint32_t width;
} options_t;

static const cli_option_t options_table[] = {
    {"once", CLI_OPTION_FLAG, offsetof(options_t, once), 0, 0, NULL,
     "print one picture and end; needs no terminal", false},
    {"json", CLI_OPTION_FLAG, offsetof(options_t, json), 0, 0, NULL,
     "with --once: one JSON document with everything", false},
    {"interval", CLI_OPTION_U32, offsetof(options_t, interval_s), 1, 3600, "SECONDS",
     "between two pictures (1)", false},
    {"width", CLI_OPTION_U32, offsetof(options_t, width), CLI_TOP_WIDTH_MIN, CLI_TOP_WIDTH_MAX,
     "COLUMNS", "with --once: of the picture (80)", false},
    {"run-dir", CLI_OPTION_TEXT, offsetof(options_t, run_dir), 0, 0, "DIR",
     "of the node (found by itself if one node of this user runs here)", false},
};

static const cli_command_t top_command = {
    .name = "top",
    .usage = "top [--once [--json]] [--interval SECONDS] [--run-dir DIR]",
    .text = "Shows a running node as it changes: its actors (state, epoch, heartbeat, processor,\n"
            "memory, ends that nobody asked for), links, cache, rates, and its requests with what\n"
            "each one waits for.  Looking changes nothing.  Works in 80 x 24; colours follow\n"
            "NO_COLOR.  Keys: q quit, w only requests that wait, p pause, j and k scroll.\n"
            "Exit codes: 0 done, 75 the node ended or does not answer, 78 usage or no such node.",
    .examples = "  onepath top\n"
                "  onepath top --once --json | jq .load",
    .options = options_table,
    .node_option = "run-dir",
    .option_count = sizeof options_table / sizeof options_table[0],
};

typedef struct {
    const options_t *options;
    char run_dir[512];
    actor_view_t *view;
    const actor_node_t *node; /* lent by the view */
    cli_look_sample_t sample;
    cli_look_rates_t rates;
    cli_look_requests_t requests;
    char clock[16];
    bool only_waiting;
    bool paused;
    uint32_t first_request;
    cli_top_line_t lines[CLI_TOP_LINES_MAX];
} top_t;

static proto_status_t
look(top_t *self)
{
    proto_status_t status = actor_view_look(self->view, CLI_LOOK_ROWS_MAX, &self->node);
    if (status == STATUS_OK) {
        cli_look_fini(&self->requests);
        status = cli_look_merge(self->node, &self->requests);
    }
    if (status == STATUS_OK) {
        cli_look_rates(&self->sample, self->node, &self->rates);
        time_t now = time(NULL);
        struct tm local;
        (void)localtime_r(&now, &local);
        (void)strftime(self->clock, sizeof self->clock, "%H:%M:%S", &local);
    }
    return status;
}

static uint32_t
draw(top_t *self, uint32_t width, uint32_t height)
{
    const cli_top_view_t view = {.node = self->node,
                                 .requests = &self->requests,
                                 .rates = &self->rates,
                                 .run_dir = self->run_dir,
                                 .clock = self->clock,
                                 .width = width,
                                 .height = height,
                                 .only_waiting = self->only_waiting,
                                 .paused = self->paused,
                                 .first_request = self->first_request};
    return cli_top_draw(&view, self->lines);
}

static proto_status_t
show_once(top_t *self)
{
    proto_status_t status = look(self);
    if (status == STATUS_OK) {
        (void)usleep(FIRST_MS * 1000);
        status = look(self);
    }
    if (status != STATUS_OK) {
        return status;
    }
    if (self->options->json) {
        return cli_look_json(stdout, self->node, &self->requests, &self->rates);
    }
    uint32_t count = draw(self, self->options->width, 0);
    for (uint32_t i = 0; i < count; i++) {
        printf("%s\n", self->lines[i].text);
    }
    return fflush(stdout) == 0 ? STATUS_OK : STATUS_ERR_IO;
}

/* ---- a terminal ------------------------------------------------------------------------------ */

#ifdef ONEPATH_HAS_NCURSES

static attr_t
attribute_of(cli_top_look_t kind, bool colours)
{
    switch (kind) {
    case CLI_TOP_TITLE:
        return A_REVERSE;
    case CLI_TOP_GOOD:
        return colours ? (attr_t)COLOR_PAIR(1) | A_BOLD : A_BOLD;
    case CLI_TOP_WARN:
        return colours ? (attr_t)COLOR_PAIR(2) : A_NORMAL;
    case CLI_TOP_BAD:
        return colours ? (attr_t)COLOR_PAIR(3) | A_BOLD : A_BOLD;
    case CLI_TOP_DIM:
        return A_DIM;
    case CLI_TOP_PLAIN:
        break;
    }
    return A_NORMAL;
}

static void
paint(top_t *self, bool colours)
{
    int height = 0;
    int width = 0;
    getmaxyx(stdscr, height, width);
    erase();
    if (height < CLI_TOP_HEIGHT_MIN || width < CLI_TOP_WIDTH_MIN) {
        (void)mvaddnstr(0, 0, "too small a window", width);
        (void)refresh();
        return;
    }
    uint32_t count = draw(self, (uint32_t)width, (uint32_t)height);
    for (uint32_t i = 0; i < count; i++) {
        attr_t attribute = attribute_of(self->lines[i].look, colours);
        (void)attrset((int)attribute);
        (void)mvaddnstr((int)i, 0, self->lines[i].text, width);
        if (self->lines[i].look == CLI_TOP_TITLE) { /* to the edge of the window */
            for (int at = (int)strlen(self->lines[i].text); at < width; at++) {
                (void)mvaddch((int)i, at, ' ');
            }
        }
        (void)attrset(A_NORMAL);
    }
    (void)refresh();
}

/* False: quit. */
static bool
press(top_t *self, int key)
{
    if (key == 'q' || key == 'Q' || key == 27) {
        return false;
    }
    if (key == 'w') {
        self->only_waiting = !self->only_waiting;
        self->first_request = 0;
    } else if (key == 'p') {
        self->paused = !self->paused;
    } else if ((key == 'j' || key == KEY_DOWN) && self->first_request + 1 < self->requests.count) {
        self->first_request++;
    } else if ((key == 'k' || key == KEY_UP) && self->first_request > 0) {
        self->first_request--;
    }
    return true;
}

/* Waits for keys until the next look is due, or would tell that the node ended; false: quit.  A
 * paused picture stays, whatever becomes of the node. */
static bool
wait_for_keys(top_t *self, bool colours)
{
    const proto_clock_t *clock = proto_clock_system();
    uint64_t until_ns =
        proto_clock_monotonic_ns(clock) + self->options->interval_s * UINT64_C(1000000000);
    bool is_lost = false;
    while (self->paused || (!is_lost && proto_clock_monotonic_ns(clock) < until_ns)) {
        is_lost = actor_view_service(self->view) != STATUS_OK;
        int key = getch();
        if (key == ERR) {
            continue; /* KEY_MS have passed */
        }
        if (!press(self, key)) {
            return false;
        }
        paint(self, colours);
    }
    return true;
}

static proto_status_t
show_again(top_t *self)
{
    (void)setlocale(LC_ALL, "");
    SCREEN *screen = newterm(NULL, stdout, stdin);
    if (screen == NULL) {
        fprintf(stderr, "onepath top: this terminal (TERM) is not known; --once needs none\n");
        return STATUS_ERR_CONFIG;
    }
    (void)cbreak();
    (void)noecho();
    (void)curs_set(0);
    (void)keypad(stdscr, TRUE);
    timeout(KEY_MS);
    set_escdelay(25);
    const char *no_color = getenv("NO_COLOR");
    bool colours = (no_color == NULL || no_color[0] == '\0') && has_colors();
    if (colours) {
        (void)start_color();
        (void)use_default_colors();
        (void)init_pair(1, COLOR_GREEN, -1);
        (void)init_pair(2, COLOR_YELLOW, -1);
        (void)init_pair(3, COLOR_RED, -1);
    }
    proto_status_t status = STATUS_OK;
    do {
        status = look(self);
        if (status == STATUS_OK) {
            paint(self, colours);
        }
    } while (status == STATUS_OK && wait_for_keys(self, colours));
    (void)endwin();
    delscreen(screen);
    return status;
}

#else

static proto_status_t
show_again(top_t *self)
{
    (void)self;
    fprintf(stderr, "onepath top: built without ncurses; --once works\n");
    return STATUS_ERR_CONFIG;
}

#endif

int
cli_top(int argc, char **argv)
{
    static top_t self;
    options_t options = {.interval_s = 1, .width = 80};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&top_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    if (options.json && !options.once) {
        fprintf(stderr, "onepath top: --json goes with --once\n");
        return CLI_EXIT_CONFIG;
    }
    if (!options.once && (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0)) {
        fprintf(stderr, "onepath top: this is no terminal; --once needs none\n");
        return CLI_EXIT_CONFIG;
    }
    self.options = &options;
    if (!cli_command_node("onepath top", options.run_dir, self.run_dir, sizeof self.run_dir)) {
        return CLI_EXIT_CONFIG;
    }
    actor_log_options_t log = {.actor = "client", .level_min = ACTOR_LOG_ERROR};
    actor_log_configure(&log);
    char error[ACTOR_VIEW_DETAIL_SIZE_BYTES] = "";
    status = actor_view_open(self.run_dir, &self.view, error);
    if (status == STATUS_OK) {
        status = options.once ? show_once(&self) : show_again(&self);
    }
    cli_look_fini(&self.requests);
    actor_view_close(&self.view);
    if (status != STATUS_OK && status != STATUS_ERR_CONFIG) {
        fprintf(stderr, "onepath top: %s\n",
                error[0] != '\0' ? error : "the node has ended, or does not answer");
    }
    return cli_command_exit(status);
}
