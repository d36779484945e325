/* `onepath keygen`: the keys with which actors on several machines prove who they are. */
#include <stdio.h>
#include <string.h>

#include "actor_keys.h"
#include "cli_node.h"

enum { PAIR_SIZE_BYTES = 128 };

static const cli_command_t keygen_command = {
    .name = "keygen",
    .usage = "keygen DIR ROLE[=NAME]...",
    .text =
        "Makes a CURVE key pair for each actor: DIR/NAME.key (secret, mode 0600) and a line in\n"
        "DIR/peers (public: key, role, name).  Give every machine the `peers` file and the .key\n"
        "files of its own actors, no others, and start them with --curve-keys DIR.  Nothing is\n"
        "ever overwritten.  To take a key back, remove its line from every `peers` file and\n"
        "restart the actors that others connect to.\n"
        "Roles: gateway scheduler executor drafter kv-transfer prefill-role decode-role recorder\n"
        "supervisor client.  Exit codes: 0 done, 78 a name is wrong or a file is in the way.",
    .examples = "  onepath keygen ./keys scheduler gateway executor\n"
                "  onepath keygen ./keys executor=executor-2 decode-role=decode-1",
    .word_count_min = 2,
    .word_count_max = 64,
};

static proto_status_t
make(const char *folder, const char *word)
{
    char role_text[PAIR_SIZE_BYTES];
    const char *equals = strchr(word, '=');
    (void)snprintf(role_text, sizeof role_text, "%.*s",
                   (int)(equals != NULL ? (size_t)(equals - word) : strlen(word)), word);
    proto_role_t role = actor_keys_role(role_text);
    if (role == PROTO_ROLE_NONE) {
        fprintf(stderr, "onepath keygen: '%s' is no role, such as gateway or executor\n",
                role_text);
        return STATUS_ERR_CONFIG;
    }
    const char *name = equals != NULL ? equals + 1 : role_text;
    proto_status_t status = actor_keys_make(folder, role, name);
    if (status == STATUS_OK) {
        printf("%s/%s.key\n", folder, name);
    }
    return status;
}

int
cli_keygen(int argc, char **argv)
{
    cli_words_t words;
    char nothing = 0;
    proto_status_t status = cli_options_parse(&keygen_command, argc, argv, 2, &nothing, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    for (uint32_t index = 1; index < words.count; index++) {
        if (make(words.words[0], words.words[index]) != STATUS_OK) {
            return CLI_EXIT_CONFIG;
        }
    }
    fprintf(stderr,
            "%s/peers lists who may connect; give each machine this file and its own .key files\n",
            words.words[0]);
    return CLI_EXIT_OK;
}
