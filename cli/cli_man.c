/* `onepath man`: manual pages from the tables of the options, as roff. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli_commands.h"
#include "cli_node.h"

typedef struct {
    const char *folder;
} man_options_t;

static const cli_option_t man_cli_options[] = {
    {"all", CLI_OPTION_TEXT, offsetof(man_options_t, folder), 0, 0, "DIR",
     "write every page into this folder, as onepath-COMMAND.1", false},
};

static const cli_command_t man_command = {
    .name = "man",
    .usage = "man [COMMAND [COMMAND]] [OPTIONS]",
    .text = "Prints the manual page of the program or of one command, in the language of man(1).\n"
            "The pages have the words of --help: both are made from the same tables.\n"
            "Exit codes: 0; 75 the folder cannot be written; 78 no such command.",
    .examples = "  onepath man log show | man -l -\n"
                "  onepath man --all ~/.local/share/man/man1",
    .options = man_cli_options,
    .option_count = sizeof man_cli_options / sizeof man_cli_options[0],
    .word_count_max = 2,
};

typedef struct {
    const char *wanted; /* "log show"; NULL: all, into files */
    const char *folder;
    bool found;
    bool failed;
} job_t;

/* One text, so that no character of it is read as a request or an escape. */
static void
put_text(FILE *out, const char *text)
{
    bool begins = true;
    for (const char *at = text; *at != '\0'; at++) {
        if (begins && (*at == '.' || *at == '\'')) {
            fprintf(out, "\\&");
        }
        switch (*at) {
        case '\\':
            fprintf(out, "\\e");
            break;
        case '-':
            fprintf(out, "\\-");
            break;
        case '\'':
            fprintf(out, "\\(aq");
            break;
        case '`':
            fprintf(out, "\\(ga");
            break;
        case '^':
            fprintf(out, "\\(ha");
            break;
        case '~':
            fprintf(out, "\\(ti");
            break;
        default:
            (void)fputc(*at, out);
        }
        begins = *at == '\n';
    }
}

static void
put_block(FILE *out, const char *heading, const char *text)
{
    fprintf(out, ".SH %s\n.nf\n", heading);
    put_text(out, text);
    fprintf(out, "\n.fi\n");
}

static void
put_head(FILE *out, const char *page, const char *text)
{
    char title[64];
    (void)snprintf(title, sizeof title, "%s", page);
    for (char *at = title; *at != '\0'; at++) {
        *at = *at >= 'a' && *at <= 'z' ? (char)(*at - 'a' + 'A') : *at;
    }
    fprintf(out, ".TH %s 1 \"\" \"onepath %s\" \"Onepath\"\n.SH NAME\n", title, ONEPATH_VERSION);
    put_text(out, page);
    fprintf(out, " \\- ");
    put_text(out, text);
    fprintf(out, "\n");
}

static void
put_command(FILE *out, const char *page, const cli_seen_t *seen)
{
    const cli_command_t *command = seen->command;
    put_head(out, page, seen->text);
    fprintf(out, ".SH SYNOPSIS\n.B onepath\n");
    put_text(out, command->usage);
    fprintf(out, "\n");
    put_block(out, "DESCRIPTION", command->text);
    if (command->examples != NULL) {
        put_block(out, "EXAMPLES", command->examples);
    }
    if (command->option_count > 0) {
        fprintf(out, ".SH OPTIONS\n");
    }
    for (uint32_t i = 0; i < command->option_count; i++) {
        const cli_option_t *option = &command->options[i];
        if (option->hidden) {
            continue;
        }
        char variable[CLI_VARIABLE_SIZE_BYTES];
        cli_options_variable(command, option, variable);
        fprintf(out, ".TP\n.B \\-\\-");
        put_text(out, option->name);
        if (option->argument != NULL) {
            fprintf(out, " ");
            put_text(out, option->argument);
        }
        fprintf(out, "\n");
        put_text(out, option->text);
        fprintf(out, "\n.br\nEnvironment: %s\n", variable);
    }
    fprintf(out, ".SH SEE ALSO\n.BR onepath (1)\n");
}

static void
put_program(FILE *out)
{
    put_head(out, "onepath", "a distributed inference runtime for language models");
    fprintf(out, ".SH SYNOPSIS\n.B onepath\nCOMMAND [OPTIONS]\n.SH COMMANDS\n");
    for (uint32_t i = 0; i < cli_command_count; i++) {
        fprintf(out, ".TP\n.B %s\n", cli_commands[i].name);
        put_text(out, cli_commands[i].text);
        fprintf(out, "\n");
    }
    for (uint32_t i = 0; i < cli_log_command_count; i++) {
        fprintf(out, ".TP\n.B log %s\n", cli_log_commands[i].name);
        put_text(out, cli_log_commands[i].text);
        fprintf(out, "\n");
    }
    fprintf(out, ".SH EXIT STATUS\n");
    put_text(out, "0 done; 1 found what was looked for; 70 a failure of the program; 75 try again; "
                  "78 options or files are wrong.");
    fprintf(out, "\n");
}

static void
page_name(const char *command, char out[64])
{
    (void)snprintf(out, 64, "onepath-%s", command);
    for (char *at = out; *at != '\0'; at++) {
        *at = *at == ' ' ? '-' : *at;
    }
}

static FILE *
open_page(job_t *job, const char *page)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s.1", job->folder, page);
    FILE *out = length < (int)sizeof path ? fopen(path, "we") : NULL;
    if (out == NULL) {
        fprintf(stderr, "onepath man: %s: %s\n", path, strerror(errno));
        job->failed = true;
    }
    return out;
}

static void
close_page(job_t *job, FILE *out)
{
    job->failed |= ferror(out) != 0;
    job->failed |= fclose(out) != 0;
}

static void
visit(void *context, const cli_seen_t *seen)
{
    job_t *job = context;
    char page[64];
    page_name(seen->name, page);
    if (job->folder == NULL) {
        if (strcmp(seen->name, job->wanted) == 0) {
            put_command(stdout, page, seen);
            job->found = true;
        }
        return;
    }
    FILE *out = job->failed ? NULL : open_page(job, page);
    if (out != NULL) {
        put_command(out, page, seen);
        close_page(job, out);
    }
}

static int
write_all(job_t *job)
{
    if (mkdir(job->folder, 0755) != 0 && errno != EEXIST) {
        fprintf(stderr, "onepath man: %s: %s\n", job->folder, strerror(errno));
        return CLI_EXIT_TEMPORARY;
    }
    FILE *out = open_page(job, "onepath");
    if (out != NULL) {
        put_program(out);
        close_page(job, out);
        cli_commands_each(visit, job);
    }
    return job->failed ? CLI_EXIT_TEMPORARY : CLI_EXIT_OK;
}

int
cli_man(int argc, char **argv)
{
    man_options_t options = {.folder = NULL};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&man_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    job_t job = {.folder = options.folder};
    if (options.folder != NULL) {
        return write_all(&job);
    }
    if (words.count == 0) {
        put_program(stdout);
        return CLI_EXIT_OK;
    }
    char wanted[128];
    (void)snprintf(wanted, sizeof wanted, "%s%s%s", words.words[0], words.count > 1 ? " " : "",
                   words.count > 1 ? words.words[1] : "");
    job.wanted = wanted;
    cli_commands_each(visit, &job);
    if (!job.found) {
        fprintf(stderr, "onepath man: there is no command '%s'\n", wanted);
        return CLI_EXIT_CONFIG;
    }
    return CLI_EXIT_OK;
}
