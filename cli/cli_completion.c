/* `onepath completion`: scripts for bash, zsh and fish from the tables of the options. */
#include <string.h>

#include "cli_commands.h"
#include "cli_node.h"

static const cli_command_t completion_command = {
    .name = "completion",
    .usage = "completion bash | zsh | fish",
    .text = "Prints a script that completes commands, options and files.  `cmake --install` puts\n"
            "all three where the shells look for them.",
    .examples = "  source <(onepath completion bash)             (in ~/.bashrc)\n"
                "  onepath completion zsh > ~/.zfunc/_onepath    (a folder of $fpath)\n"
                "  onepath completion fish > ~/.config/fish/completions/onepath.fish",
    .words = "bash zsh fish",
    .word_count_min = 1,
    .word_count_max = 1,
};

static void
put_names(const cli_entry_t *entries, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        printf("%s%s", i > 0 ? " " : "", entries[i].name);
    }
}

/* ---- bash ------------------------------------------------------------------------------------ */

static void
put_options(const cli_command_t *command, bool with_value_only)
{
    bool any = false;
    for (uint32_t i = 0; i < command->option_count; i++) {
        const cli_option_t *option = &command->options[i];
        if (!option->hidden && (!with_value_only || option->type != CLI_OPTION_FLAG)) {
            printf("%s--%s", any ? " " : "", option->name);
            any = true;
        }
    }
    if (!with_value_only) {
        printf("%s--help", any ? " " : "");
    }
}

static void
put_bash_command(void *context, const cli_seen_t *seen)
{
    (void)context;
    const cli_command_t *command = seen->command;
    printf("    '%s')\n        options='", seen->name);
    put_options(command, false);
    printf("'\n        valued=' ");
    put_options(command, true);
    printf(" '\n        words='%s' ;;\n", command->words != NULL ? command->words : "");
}

static void
put_bash(void)
{
    printf("# bash completion of onepath; made by `onepath completion bash`\n"
           "_onepath() {\n"
           "    local now=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    local options='' valued='' words='' command=${COMP_WORDS[1]} first=2\n"
           "    COMPREPLY=()\n"
           "    if ((COMP_CWORD == 1)); then\n"
           "        COMPREPLY=($(compgen -W '");
    put_names(cli_commands, cli_command_count);
    printf(" help version' -- \"$now\"))\n"
           "        return\n"
           "    fi\n"
           "    if [[ $command == log ]]; then\n"
           "        if ((COMP_CWORD == 2)); then\n"
           "            COMPREPLY=($(compgen -W '");
    put_names(cli_log_commands, cli_log_command_count);
    printf("' -- \"$now\"))\n"
           "            return\n"
           "        fi\n"
           "        command=\"log ${COMP_WORDS[2]}\"\n"
           "        first=3\n"
           "    fi\n"
           "    case $command in\n");
    cli_commands_each(put_bash_command, NULL);
    printf("    esac\n"
           "    if [[ $now == -* ]]; then\n"
           "        COMPREPLY=($(compgen -W \"$options\" -- \"$now\"))\n"
           "    elif [[ $valued == *\" $last \"* || -z $words || $COMP_CWORD -ne $first ]]; then\n"
           "        COMPREPLY=($(compgen -f -- \"$now\"))\n"
           "        compopt -o filenames 2>/dev/null\n"
           "    else\n"
           "        COMPREPLY=($(compgen -W \"$words\" -- \"$now\"))\n"
           "    fi\n"
           "    return 0\n"
           "}\n"
           "complete -F _onepath onepath\n");
}

/* ---- zsh ------------------------------------------------------------------------------------- */

/* A text inside '...', with a backslash before what _arguments would read as its own. */
static void
put_quoted(const char *text, const char *special)
{
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '\'') {
            printf("'\\''");
        } else if (strchr(special, *at) != NULL) {
            printf("\\%c", *at);
        } else {
            (void)putchar(*at);
        }
    }
}

static void
put_zsh_command(void *context, const cli_seen_t *seen)
{
    (void)context;
    const cli_command_t *command = seen->command;
    printf("    '%s')\n        _arguments \\\n", seen->name);
    for (uint32_t i = 0; i < command->option_count; i++) {
        const cli_option_t *option = &command->options[i];
        if (option->hidden) {
            continue;
        }
        printf("            '%s--%s[", option->type == CLI_OPTION_LIST ? "*" : "", option->name);
        put_quoted(option->text, "[]:\\");
        printf("]");
        if (option->type != CLI_OPTION_FLAG) {
            printf(":");
            put_quoted(option->argument, "[]:\\");
            printf(":_files");
        }
        printf("' \\\n");
    }
    printf("            '--help[say more]' \\\n");
    if (command->words != NULL) {
        printf("            '1:what:(%s)' \\\n", command->words);
    }
    printf("            '*:file:_files' ;;\n");
}

static void
put_zsh_entries(const char *array, const cli_entry_t *entries, uint32_t count)
{
    printf("    %s=(\n", array);
    for (uint32_t i = 0; i < count; i++) {
        printf("        '%s:", entries[i].name);
        put_quoted(entries[i].text, ":\\");
        printf("'\n");
    }
    printf("    )\n");
}

static void
put_zsh(void)
{
    printf("#compdef onepath\n"
           "# zsh completion of onepath; made by `onepath completion zsh`\n"
           "_onepath() {\n"
           "    local -a commands log_commands\n"
           "    local command=$words[2]\n");
    put_zsh_entries("commands", cli_commands, cli_command_count);
    printf("    commands+=('help:what there is' 'version:print the version')\n");
    put_zsh_entries("log_commands", cli_log_commands, cli_log_command_count);
    printf("    if (( CURRENT == 2 )); then\n"
           "        _describe command commands\n"
           "        return\n"
           "    fi\n"
           "    if [[ $command == log ]]; then\n"
           "        if (( CURRENT == 3 )); then\n"
           "            _describe command log_commands\n"
           "            return\n"
           "        fi\n"
           "        command=\"log $words[3]\"\n"
           "        shift words\n"
           "        (( CURRENT-- ))\n"
           "    fi\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $command in\n");
    cli_commands_each(put_zsh_command, NULL);
    printf("    esac\n"
           "}\n"
           "if [[ $funcstack[1] == _onepath ]]; then\n"
           "    _onepath \"$@\"\n"
           "else\n"
           "    compdef _onepath onepath\n"
           "fi\n");
}

/* ---- fish ------------------------------------------------------------------------------------ */

static void
put_fish_command(void *context, const cli_seen_t *seen)
{
    (void)context;
    const cli_command_t *command = seen->command;
    char condition[96];
    const char *space = strchr(seen->name, ' ');
    if (space != NULL) {
        (void)snprintf(condition, sizeof condition,
                       "__fish_seen_subcommand_from log; and __fish_seen_subcommand_from %s",
                       space + 1);
    } else {
        (void)snprintf(condition, sizeof condition, "__fish_seen_subcommand_from %s", seen->name);
    }
    for (uint32_t i = 0; i < command->option_count; i++) {
        const cli_option_t *option = &command->options[i];
        if (!option->hidden) {
            printf("complete -c onepath -n '%s' -l %s%s -d '", condition, option->name,
                   option->type != CLI_OPTION_FLAG ? " -r" : "");
            put_quoted(option->text, "\\");
            printf("'\n");
        }
    }
    printf("complete -c onepath -n '%s' -l help -d 'say more'\n", condition);
    if (command->words != NULL) {
        printf("complete -c onepath -n '%s' -a '%s'\n", condition, command->words);
    }
}

static void
put_fish_entries(const char *condition, const cli_entry_t *entries, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        printf("complete -c onepath -f -n '%s' -a %s -d '", condition, entries[i].name);
        put_quoted(entries[i].text, "\\");
        printf("'\n");
    }
}

static void
put_fish(void)
{
    printf("# fish completion of onepath; made by `onepath completion fish`\n");
    put_fish_entries("__fish_use_subcommand", cli_commands, cli_command_count);
    printf("complete -c onepath -f -n __fish_use_subcommand -a 'help version'\n");
    printf("set -l onepath_log ");
    put_names(cli_log_commands, cli_log_command_count);
    printf("\n");
    char condition[] = "__fish_seen_subcommand_from log; and not __fish_seen_subcommand_from "
                       "'\"$onepath_log\"'";
    put_fish_entries(condition, cli_log_commands, cli_log_command_count);
    cli_commands_each(put_fish_command, NULL);
}

int
cli_completion(int argc, char **argv)
{
    cli_words_t words;
    char values = '\0'; /* it has no options */
    proto_status_t status = cli_options_parse(&completion_command, argc, argv, 2, &values, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    if (strcmp(words.words[0], "bash") == 0) {
        put_bash();
    } else if (strcmp(words.words[0], "zsh") == 0) {
        put_zsh();
    } else if (strcmp(words.words[0], "fish") == 0) {
        put_fish();
    } else {
        fprintf(stderr, "onepath completion: '%s' is none of bash, zsh, fish\n", words.words[0]);
        return CLI_EXIT_CONFIG;
    }
    return CLI_EXIT_OK;
}
