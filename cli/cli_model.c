#include "cli_model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli_options.h"

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

bool
cli_model_is_hub_name(const char *model, const char **name)
{
    static const char *const schemes[] = {"hf://", "hf:", "https://huggingface.co/"};
    bool has_scheme = false;
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0] && !has_scheme; i++) {
        if (strncmp(model, schemes[i], strlen(schemes[i])) == 0) {
            model += strlen(schemes[i]);
            has_scheme = true;
        }
    }
    size_t owner_len = strspn(model, letters);
    size_t rest_len = model[owner_len] == '/' ? strspn(model + owner_len + 1, letters) : 0;
    static const char file_ending[] = ".gguf";
    size_t model_len = strlen(model);
    bool is_file = model_len > strlen(file_ending) &&
                   strcmp(model + model_len - strlen(file_ending), file_ending) == 0;
    *name = model;
    /* "models/x.gguf", "./x" and "../x" are paths. */
    return owner_len > 0 && rest_len > 0 && model[owner_len + 1 + rest_len] == '\0' &&
           model[0] != '.' && (has_scheme || !is_file);
}

bool
cli_model_check(const char *model)
{
    struct stat info;
    const char *name = NULL;
    if (stat(model, &info) == 0) {
        return true;
    }
    int error = errno;
    if (error == ENOENT && cli_model_is_hub_name(model, &name)) {
        const char *folder = strchr(name, '/') + 1;
        fprintf(
            stderr,
            "onepath: there is no file or folder '%s'.  It looks like the name of a model on a "
            "hub; models are not fetched by themselves.\nFetch it once, then serve the folder:\n"
            "  pip install huggingface_hub\n"
            "  hf download %s --local-dir ./%s\n"
            "  onepath serve ./%s\n"
            "(older: huggingface-cli download; without the network of a hub: copy the folder "
            "from a machine that has one)\n",
            model, name, folder, folder);
        return false;
    }
    fprintf(stderr,
            "onepath: the model '%s' cannot be opened: %s\n"
            "It takes a GGUF file or a folder with config.json and *.safetensors; "
            "'./run demo' fetches a small one.\n",
            model, strerror(error));
    return false;
}

bool
cli_model_check_draft(const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0) {
        return true;
    }
    fprintf(stderr, "onepath: the draft model '%s'%s cannot be opened: %s\n", path,
            cli_options_origin("draft-model"), strerror(errno));
    return false;
}
