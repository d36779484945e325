/* `onepath report`: what a bug report needs, in one file, without prompts. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <sodium.h>

#include "actor_crash.h"
#include "actor_log.h"
#include "cli_command.h"
#include "cli_doctor.h"
#include "cli_file.h"
#include "cli_log.h"
#include "cli_look.h"
#include "cli_node.h"
#include "cli_tar.h"
#include "log_cut.h"
#include "proto_messages.h"

enum { PATH_SIZE_BYTES = CLI_LOG_SCRATCH_SIZE_BYTES + 512, CRASH_COUNT_DEFAULT = 4 };

typedef struct {
    const char *run_dir;
    const char *config;
    const char *out;
    uint32_t crash_count;
} options_t;

static const cli_option_t options_table[] = {
    {"out", CLI_OPTION_TEXT, offsetof(options_t, out), 0, 0, "FILE",
     "the report (onepath-report-TIME.tar)", false},
    {"config", CLI_OPTION_TEXT, offsetof(options_t, config), 0, 0, "FILE",
     "cluster file that the node was started with", false},
    {"crashes", CLI_OPTION_U32, offsetof(options_t, crash_count), 0, ACTOR_CRASH_KEPT_MAX, "COUNT",
     "newest crash records to add (4)", false},
    {"run-dir", CLI_OPTION_TEXT, offsetof(options_t, run_dir), 0, 0, "DIR",
     "of the running node (found by itself if one node of this user runs here)", false},
};

static const cli_command_t report_command = {
    .name = "report",
    .usage = "report [LOG...] [OPTIONS]",
    .text =
        "Packs what a bug report needs into one file: version, machine, effective settings with\n"
        "their origins, the running node's actors and requests if one runs, the newest crash\n"
        "records and the given logs, and the digest of each part.  Logs are redacted as by\n"
        "`onepath log redact`: tokens, sampling and salts are zeros, lengths and page hashes\n"
        "stay.  No prompt, no answer and no key is in it; host name, paths and the names of\n"
        "requests are.  Nothing is sent anywhere: look at it first (tar tf), then attach it.\n"
        "Exit codes: 0 done, 1 done, but a part is missing (it says which), 75 the file cannot\n"
        "be written, 78 usage, or the file exists.",
    .examples = "  onepath report\n"
                "  onepath report ./log --config cluster.yaml --out report.tar",
    .options = options_table,
    .node_option = "run-dir",
    .option_count = sizeof options_table / sizeof options_table[0],
    .word_count_max = CLI_WORDS_LEN_MAX,
};

/* A report in the making: a folder of its own, whose files go into the tar. */
typedef struct {
    char folder[CLI_LOG_SCRATCH_SIZE_BYTES];
    uint32_t missing; /* parts */
} report_t;

static FILE *
open_part(const report_t *self, const char *name)
{
    char path[PATH_SIZE_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", self->folder, name);
    FILE *file = fopen(path, "wxe");
    if (file == NULL) {
        fprintf(stderr, "onepath report: %s cannot be written: %s\n", path, strerror(errno));
    }
    return file;
}

static void
miss(report_t *self, const char *part, const char *why)
{
    self->missing++;
    fprintf(stderr, "onepath report: without %s: %s\n", part, why);
}

static void
add_machine(report_t *self)
{
    static const char *const levels[] = {"ok", "warning", "failure"};
    FILE *file = open_part(self, "machine.txt");
    static cli_doctor_report_t doctor;
    struct utsname name;
    if (file == NULL || uname(&name) != 0) {
        miss(self, "the machine", strerror(errno));
        return;
    }
    doctor.count = 0;
    cli_doctor_check_machine("", &doctor);
    fprintf(file, "onepath %s\nschema %d (talks to %d and newer)\n%s %s %s\n\n", ONEPATH_VERSION,
            PROTO_SCHEMA_VERSION, PROTO_SCHEMA_VERSION_MIN, name.sysname, name.release,
            name.machine);
    for (uint32_t i = 0; i < doctor.count; i++) {
        fprintf(file, "%-8s %-11s %s\n", levels[doctor.lines[i].level], doctor.lines[i].name,
                doctor.lines[i].value);
    }
    (void)fclose(file);
}

static void
put_line(void *context, const char *line)
{
    fprintf((FILE *)context, "%s\n", line);
}

static void
add_settings(report_t *self, const char *path)
{
    config_cluster_t *cluster = NULL;
    if (cli_file_read(path, NULL, 0, &cluster) != STATUS_OK) {
        miss(self, "settings.yaml", "the settings are wrong, see above");
    } else {
        FILE *file = open_part(self, "settings.yaml");
        const config_show_t show = {.all = true, .with_origin = true, .node = CONFIG_TOP};
        if (file != NULL) {
            config_cluster_show(cluster, &show, put_line, file);
            (void)fclose(file);
        }
    }
    config_cluster_destroy(&cluster);
}

/* The node that runs, as `onepath ps --json` shows it. */
static void
add_node(report_t *self, const char *run_dir)
{
    char error[ACTOR_VIEW_DETAIL_SIZE_BYTES] = "it does not answer";
    actor_view_t *view = NULL;
    const actor_node_t *node = NULL;
    cli_look_requests_t requests = {.count = 0};
    proto_status_t status = actor_view_open(run_dir, &view, error);
    status = status == STATUS_OK ? actor_view_look(view, CLI_LOOK_ROWS_MAX, &node) : status;
    status = status == STATUS_OK ? cli_look_merge(node, &requests) : status;
    FILE *file = status == STATUS_OK ? open_part(self, "node.json") : NULL;
    if (file != NULL) {
        status = cli_look_json(file, node, &requests, NULL);
        (void)fclose(file);
    }
    if (status != STATUS_OK) {
        miss(self, "node.json", error);
    }
    cli_look_fini(&requests);
    actor_view_close(&view);
}

/* One path, redacted, into the folder logN of the report. */
static void
add_log(report_t *self, const char *path, uint32_t number)
{
    char folder[PATH_SIZE_BYTES];
    proto_error_t error = {{0}};
    log_set_t *set = NULL;
    log_out_t *out = NULL;
    log_cut_counts_t counts;
    const log_cut_options_t what = {.redact = true};
    (void)snprintf(folder, sizeof folder, "%s/log%" PRIu32, self->folder, number);
    proto_status_t status = log_set_open(&path, 1, NULL, &set, &error);
    status = status == STATUS_OK ? log_out_open(folder, &out, &error) : status;
    if (status == STATUS_OK) {
        status = log_cut(set, &what, out, &counts);
        status = status == STATUS_OK ? log_out_commit(out) : status;
        (void)snprintf(error.detail, sizeof error.detail, "%s", log_out_error(out));
    }
    if (status != STATUS_OK) {
        miss(self, path, error.detail[0] != '\0' ? error.detail : proto_status_text(status));
    } else {
        printf("%s: %" PRIu64 " record%s, %" PRIu64 " of them redacted\n", path, counts.kept,
               cli_plural(counts.kept), counts.redacted);
    }
    if (out != NULL) {
        log_out_close(&out);
    }
    if (set != NULL) {
        log_set_close(&set);
    }
}

typedef struct {
    struct timespec time;
    char path[PATH_SIZE_BYTES];
} crash_t;

/* The newest crash records of this user, newest first. */
static uint32_t
find_crashes(crash_t *crashes, uint32_t count_max)
{
    char folder[64];
    uint32_t count = 0;
    DIR *directory =
        actor_crash_default_dir(folder, sizeof folder) == STATUS_OK ? opendir(folder) : NULL;
    const struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        crash_t found;
        struct stat info;
        const char *ending = strrchr(entry->d_name, '.');
        (void)snprintf(found.path, sizeof found.path, "%s/%s", folder, entry->d_name);
        if (ending == NULL || strcmp(ending, ".alog") != 0 || lstat(found.path, &info) != 0 ||
            !S_ISREG(info.st_mode)) {
            continue;
        }
        found.time = info.st_mtim;
        uint32_t at = count;
        while (at > 0 && (crashes[at - 1].time.tv_sec < found.time.tv_sec ||
                          (crashes[at - 1].time.tv_sec == found.time.tv_sec &&
                           crashes[at - 1].time.tv_nsec < found.time.tv_nsec))) {
            if (at < count_max) {
                crashes[at] = crashes[at - 1];
            }
            at--;
        }
        if (at < count_max) {
            crashes[at] = found;
            count += count < count_max ? 1 : 0;
        }
    }
    if (directory != NULL) {
        (void)closedir(directory);
    }
    return count;
}

static bool
digest(const char *path, char out[2 * crypto_hash_sha256_BYTES + 1])
{
    unsigned char bytes[crypto_hash_sha256_BYTES];
    unsigned char block[16384];
    crypto_hash_sha256_state state;
    FILE *file = fopen(path, "rbe");
    if (file == NULL || sodium_init() < 0) {
        if (file != NULL) {
            (void)fclose(file);
        }
        return false;
    }
    (void)crypto_hash_sha256_init(&state);
    size_t size = 1;
    while (size > 0) {
        size = fread(block, 1, sizeof block, file);
        (void)crypto_hash_sha256_update(&state, block, size);
    }
    bool ok = ferror(file) == 0;
    (void)fclose(file);
    (void)crypto_hash_sha256_final(&state, bytes);
    (void)sodium_bin2hex(out, 2 * crypto_hash_sha256_BYTES + 1, bytes, sizeof bytes);
    return ok;
}

/* Adds everything below `folder`, and a line of `digests` for each file. */
static proto_status_t
pack_folder(cli_tar_t *tar, FILE *digests, const char *folder, const char *prefix)
{
    struct dirent **entries = NULL;
    proto_status_t status = STATUS_OK;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[2 * PATH_SIZE_BYTES];
        char name[CLI_TAR_NAME_LEN_MAX + 1];
        char hex[2 * crypto_hash_sha256_BYTES + 1];
        struct stat info;
        bool fits =
            snprintf(name, sizeof name, "%s/%s", prefix, entries[i]->d_name) < (int)sizeof name;
        (void)snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && fits && status == STATUS_OK &&
            lstat(path, &info) == 0) {
            if (S_ISDIR(info.st_mode)) {
                status = pack_folder(tar, digests, path, name);
            } else if (strcmp(entries[i]->d_name, "digests.txt") != 0) {
                status = digest(path, hex) ? cli_tar_add(tar, name, path) : STATUS_ERR_IO;
                if (status == STATUS_OK) {
                    fprintf(digests, "%s  %s\n", hex, strchr(name, '/') + 1);
                }
            }
        }
        free(entries[i]);
    }
    free(entries);
    return count < 0 ? STATUS_ERR_IO : status;
}

static proto_status_t
pack(const report_t *self, const char *out, const char *prefix)
{
    char path[PATH_SIZE_BYTES];
    char name[CLI_TAR_NAME_LEN_MAX + 1];
    char hex[2 * crypto_hash_sha256_BYTES + 1] = "";
    cli_tar_t *tar = NULL;
    proto_status_t status = cli_tar_new(out, &tar);
    if (status != STATUS_OK) {
        return status;
    }
    FILE *digests = open_part(self, "digests.txt");
    status = digests != NULL && digest("/proc/self/exe", hex) ? STATUS_OK : STATUS_ERR_IO;
    if (digests != NULL) {
        fprintf(digests, "# sha256 of each part; the program itself: %s\n", hex);
        status = status == STATUS_OK ? pack_folder(tar, digests, self->folder, prefix) : status;
        status = fclose(digests) == 0 ? status : STATUS_ERR_IO;
    }
    if (status == STATUS_OK) {
        (void)snprintf(path, sizeof path, "%s/digests.txt", self->folder);
        (void)snprintf(name, sizeof name, "%s/digests.txt", prefix);
        status = cli_tar_add(tar, name, path);
    }
    status = status == STATUS_OK ? cli_tar_finish(tar) : status;
    cli_tar_destroy(&tar);
    return status;
}

static void
remove_folder(const char *folder)
{
    DIR *directory = opendir(folder);
    const struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char path[2 * PATH_SIZE_BYTES];
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            unlink(path) != 0) {
            remove_folder(path);
        }
    }
    if (directory != NULL) {
        (void)closedir(directory);
    }
    (void)rmdir(folder);
}

static void
collect(report_t *self, const options_t *options, const cli_words_t *words)
{
    static crash_t crashes[ACTOR_CRASH_KEPT_MAX];
    char run_dir[512];
    add_machine(self);
    add_settings(self, options->config);
    if (cli_command_node("onepath report", options->run_dir, run_dir, sizeof run_dir)) {
        add_node(self, run_dir);
    } else if (options->run_dir != NULL) {
        self->missing++;
    }
    uint32_t number = 0;
    for (uint32_t i = 0; i < words->count; i++) {
        add_log(self, words->words[i], number++);
    }
    uint32_t count = options->crash_count > 0 ? find_crashes(crashes, options->crash_count) : 0;
    for (uint32_t i = 0; i < count; i++) {
        add_log(self, crashes[i].path, number++);
    }
}

int
cli_report(int argc, char **argv)
{
    options_t options = {.crash_count = CRASH_COUNT_DEFAULT};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&report_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    actor_log_options_t log = {.actor = "client", .level_min = ACTOR_LOG_ERROR};
    actor_log_configure(&log);
    static report_t report;
    struct tm utc;
    time_t now = time(NULL);
    char prefix[64];
    char out[80];
    (void)gmtime_r(&now, &utc);
    (void)strftime(prefix, sizeof prefix, "onepath-report-%Y%m%dT%H%M%SZ", &utc);
    (void)snprintf(out, sizeof out, "%s.tar", prefix);
    options.out = options.out != NULL ? options.out : out;
    report.missing = 0;
    if (!cli_log_make_scratch("report", report.folder)) {
        return CLI_EXIT_TEMPORARY;
    }
    collect(&report, &options, &words);
    status = pack(&report, options.out, prefix);
    remove_folder(report.folder);
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath report: %s cannot be written: %s\n", options.out,
                status == STATUS_ERR_REFUSED ? "it exists" : proto_status_text(status));
        return status == STATUS_ERR_REFUSED ? CLI_EXIT_CONFIG : CLI_EXIT_TEMPORARY;
    }
    printf("%s: no prompt, answer or key is in it; look at it with tar, then attach it\n",
           options.out);
    return report.missing > 0 ? CLI_EXIT_FOUND : CLI_EXIT_OK;
}
