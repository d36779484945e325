/* support.h - what the tests of models/ share: paths, fixtures, seeds. */
#ifndef TESTS_MODELS_SUPPORT_H
#define TESTS_MODELS_SUPPORT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* The path of a fixture; a static buffer, good until the next call. */
const char *support_fixture(const char *name);

/* The SmolLM2 GGUF.  Fails the test, with the way to get it, if it is not there. */
const char *support_smollm2(void);

/* A fixture as JSON; the caller owns it. */
json_t *support_json(const char *name);

/* A new folder under $TMPDIR; the caller frees the string. */
char *support_temp_folder(void);

/* Removes the folder and what is in it, and frees the string. */
void support_remove_folder(char *folder);

void support_write(const char *folder, const char *name, const void *bytes, size_t size_bytes);

/* A fresh seed, printed; ONEPATH_SEED repeats a run. */
uint64_t support_seed(void);

/* splitmix64 */
uint64_t support_random(uint64_t *state);

#endif
