/* What a machine is, and what of it stands in the way of serving. */
#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli_doctor.h"
#include "kern_path.h"
#include "proto_require.h"

enum { TEXT_SIZE_BYTES = 256 * 1024, PATH_SIZE_BYTES = 4096 };

static const uint64_t SMALL_MEMORY_BYTES = UINT64_C(1) << 30;

cli_doctor_line_t *
cli_doctor_add(cli_doctor_report_t *self, const char *name, const char *format, ...)
{
    require(self->count < CLI_DOCTOR_LINE_COUNT_MAX);
    cli_doctor_line_t *line = &self->lines[self->count++];
    line->name = name;
    line->level = CLI_DOCTOR_OK;
    line->advice[0] = '\0';
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line->value, sizeof line->value, format, arguments);
    va_end(arguments);
    return line;
}

void
cli_doctor_advise(cli_doctor_line_t *line, cli_doctor_level_t level, const char *format, ...)
{
    line->level = level;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line->advice, sizeof line->advice, format, arguments);
    va_end(arguments);
}

cli_doctor_level_t
cli_doctor_verdict(const cli_doctor_report_t *self)
{
    cli_doctor_level_t worst = CLI_DOCTOR_OK;
    for (uint32_t i = 0; i < self->count; i++) {
        worst = self->lines[i].level > worst ? self->lines[i].level : worst;
    }
    return worst;
}

/* The text of a file below the root; NULL if it cannot be read.  The caller frees it. */
static char *
read_text(const char *root, const char *path)
{
    char full[PATH_SIZE_BYTES];
    int length = snprintf(full, sizeof full, "%s%s", root, path);
    FILE *file = length > 0 && (size_t)length < sizeof full ? fopen(full, "re") : NULL;
    char *text = file != NULL ? malloc(TEXT_SIZE_BYTES) : NULL;
    if (text != NULL) {
        text[fread(text, 1, TEXT_SIZE_BYTES - 1, file)] = '\0';
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return text;
}

/* ---- processors ------------------------------------------------------------------------------ */

/* The least quota of the process's own control group and all above it. */
static bool
find_quota(const char *root, double *out)
{
    char *cgroup = read_text(root, "/proc/self/cgroup");
    char path[1024] = "";
    bool is_second = !cli_doctor_cgroup_path(cgroup, "cpu", path, sizeof path);
    if (is_second) {
        (void)cli_doctor_cgroup_path(cgroup, NULL, path, sizeof path);
    }
    free(cgroup);
    bool found = false;
    for (bool more = true; more;) {
        char file[2 * sizeof path];
        double quota = 0;
        char *text = NULL;
        if (is_second) {
            (void)snprintf(file, sizeof file, "/sys/fs/cgroup%s/cpu.max", path);
            text = read_text(root, file);
        } else {
            char both[128];
            (void)snprintf(file, sizeof file, "/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us", path);
            text = read_text(root, file);
            (void)snprintf(file, sizeof file, "/sys/fs/cgroup/cpu%s/cpu.cfs_period_us", path);
            char *period = read_text(root, file);
            (void)snprintf(both, sizeof both, "%.40s %.40s", text != NULL ? text : "",
                           period != NULL ? period : "");
            free(text);
            free(period);
            text = strdup(both);
        }
        if (cli_doctor_quota(text, &quota) && (!found || quota < *out)) {
            *out = quota;
            found = true;
        }
        free(text);
        char *slash = strrchr(path, '/');
        more = slash != NULL;
        if (more) {
            *slash = '\0';
        }
    }
    return found;
}

static void
check_processors(const char *root, cli_doctor_report_t *report)
{
    char *cpuinfo = read_text(root, "/proc/cpuinfo");
    char model[128] = "unknown";
    (void)cli_doctor_field(cpuinfo, "model name", model, sizeof model);
    uint32_t count = cli_doctor_processor_count(cpuinfo);
    static const char *const flags[] = {"avx2",     "fma",      "f16c",     "avx512f",
                                        "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"};
    char seen[128] = "";
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (cli_doctor_has_flag(cpuinfo, flags[i])) {
            size_t length = strlen(seen);
            (void)snprintf(seen + length, sizeof seen - length, " %s", flags[i]);
        }
    }
    free(cpuinfo);
    (void)cli_doctor_add(report, "cpu", "%s; features in use where present:%s", model,
                         seen[0] != '\0' ? seen : " none");
    kern_path_t best = kern_path_best();
    cli_doctor_line_t *kernels = cli_doctor_add(report, "kernels", "%s", kern_path_name(best));
    if (best == KERN_PATH_PORTABLE) {
        cli_doctor_advise(kernels, CLI_DOCTOR_WARNING,
                          "no AVX2 here: it serves, many times slower than it could");
    }
    cpu_set_t allowed;
    uint32_t may =
        sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (uint32_t)CPU_COUNT(&allowed) : count;
    double quota = 0;
    if (!find_quota(root, &quota)) {
        (void)cli_doctor_add(report, "cores", "%u, %u of them for this process; no quota", count,
                             may);
        return;
    }
    cli_doctor_line_t *cores =
        cli_doctor_add(report, "cores", "%u, %u of them for this process; a quota of %.2f", count,
                       may, quota);
    if (quota < (double)may) {
        double whole = floor(quota);
        cli_doctor_advise(cores, CLI_DOCTOR_WARNING,
                          "more threads than the quota are stopped in mid-step: onepath serve "
                          "--threads %.0f",
                          whole < 1 ? 1 : whole);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct {
    const char *limit, *usage, *inactive; /* files, and the field of memory.stat */
} memory_names_t;

/* The least room of the process's own control group and all above it: limit, less what is used
 * and cannot be given back. */
static bool
find_room(const char *root, uint64_t *limit_out, uint64_t *room_out)
{
    static const memory_names_t first = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                         "total_inactive_file "};
    static const memory_names_t second = {"memory.max", "memory.current", "inactive_file "};
    char *cgroup = read_text(root, "/proc/self/cgroup");
    char path[1024] = "";
    bool is_second = !cli_doctor_cgroup_path(cgroup, "memory", path, sizeof path);
    if (is_second) {
        (void)cli_doctor_cgroup_path(cgroup, NULL, path, sizeof path);
    }
    free(cgroup);
    const memory_names_t *names = is_second ? &second : &first;
    const char *base = is_second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    bool found = false;
    for (bool more = true; more;) {
        char file[2 * sizeof path];
        uint64_t limit = 0;
        uint64_t usage = 0;
        (void)snprintf(file, sizeof file, "%s%s/%s", base, path, names->limit);
        char *limit_text = read_text(root, file);
        (void)snprintf(file, sizeof file, "%s%s/%s", base, path, names->usage);
        char *usage_text = read_text(root, file);
        (void)snprintf(file, sizeof file, "%s%s/memory.stat", base, path);
        char *stat = read_text(root, file);
        if (cli_doctor_limit(limit_text, &limit)) {
            const char *inactive = stat != NULL ? strstr(stat, names->inactive) : NULL;
            uint64_t back =
                inactive != NULL ? strtoull(inactive + strlen(names->inactive), NULL, 10) : 0;
            (void)cli_doctor_limit(usage_text, &usage);
            usage = usage > back ? usage - back : 0;
            uint64_t room = limit > usage ? limit - usage : 0;
            if (!found || room < *room_out) {
                *room_out = room;
                *limit_out = limit;
            }
            found = true;
        }
        free(limit_text);
        free(usage_text);
        free(stat);
        char *slash = strrchr(path, '/');
        more = slash != NULL;
        if (more) {
            *slash = '\0';
        }
    }
    return found;
}

static void
check_memory(const char *root, cli_doctor_report_t *report)
{
    char *meminfo = read_text(root, "/proc/meminfo");
    uint64_t total = 0;
    uint64_t available = 0;
    bool known = cli_doctor_amount(meminfo, "MemTotal", &total) &&
                 cli_doctor_amount(meminfo, "MemAvailable", &available);
    char texts[3][32];
    uint64_t limit = 0;
    uint64_t room = 0;
    bool has_limit = find_room(root, &limit, &room);
    report->available_bytes = has_limit && (!known || room < available) ? room : available;
    cli_doctor_line_t *line =
        has_limit
            ? cli_doctor_add(report, "memory",
                             "%s available of %s; a limit of %s leaves %s to this process",
                             cli_doctor_bytes(available, texts[0]),
                             cli_doctor_bytes(total, texts[1]), cli_doctor_bytes(limit, texts[2]),
                             cli_doctor_bytes(room, (char[32]){0}))
            : cli_doctor_add(report, "memory", "%s available of %s; no limit",
                             cli_doctor_bytes(available, texts[0]),
                             cli_doctor_bytes(total, texts[1]));
    if (!known && !has_limit) {
        cli_doctor_advise(line, CLI_DOCTOR_WARNING, "/proc/meminfo does not say");
    } else if (report->available_bytes < SMALL_MEMORY_BYTES) {
        cli_doctor_advise(line, CLI_DOCTOR_WARNING,
                          "weights and cache must fit in it: end something, raise the limit, or "
                          "take a small model with --memory");
    }
    char choice[32] = "unknown";
    char *text = read_text(root, "/sys/kernel/mm/transparent_hugepage/enabled");
    (void)cli_doctor_choice(text, choice, sizeof choice);
    uint64_t reserved = 0;
    (void)cli_doctor_amount(meminfo, "HugePages_Total", &reserved);
    (void)cli_doctor_add(report, "huge-pages", "transparent: %s; reserved: %llu", choice,
                         (unsigned long long)reserved);
    free(text);
    free(meminfo);
}

static void
check_limits(const char *root, cli_doctor_report_t *report)
{
    char path[PATH_SIZE_BYTES];
    (void)snprintf(path, sizeof path, "%s/dev/shm", root);
    struct statvfs shm;
    if (statvfs(path, &shm) == 0) {
        char texts[2][32];
        (void)cli_doctor_add(report, "dev-shm", "%s free of %s",
                             cli_doctor_bytes(shm.f_bavail * shm.f_frsize, texts[0]),
                             cli_doctor_bytes(shm.f_blocks * shm.f_frsize, texts[1]));
    } else {
        (void)cli_doctor_add(report, "dev-shm", "none; this build needs none");
    }
    struct rlimit files = {0};
    (void)getrlimit(RLIMIT_NOFILE, &files);
    cli_doctor_line_t *line =
        cli_doctor_add(report, "open-files", "%llu, at most %llu",
                       (unsigned long long)files.rlim_cur, (unsigned long long)files.rlim_max);
    if (files.rlim_cur < 1024) {
        cli_doctor_advise(line, CLI_DOCTOR_WARNING,
                          "each client is an open file of the gateway: ulimit -n %llu",
                          (unsigned long long)(files.rlim_max < 65536 ? files.rlim_max : 65536));
    }
}

/* ---- the GPU --------------------------------------------------------------------------------- */

/* The models of the cards that the driver tells of; their count. */
static uint32_t
list_cards(const char *root, char *out, size_t out_size_bytes)
{
    char path[PATH_SIZE_BYTES];
    (void)snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", root);
    DIR *folder = opendir(path);
    uint32_t count = 0;
    out[0] = '\0';
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        char model[96] = "a GPU";
        (void)snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", entry->d_name);
        char *text = read_text(root, path);
        (void)cli_doctor_field(text, "Model", model, sizeof model);
        free(text);
        size_t length = strlen(out);
        (void)snprintf(out + length, out_size_bytes - length, "%s%s", count > 0 ? ", " : "", model);
        count++;
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return count;
}

/* The CUDA device is an object beside the program, or in lib beside its folder. */
static bool
has_cuda_object(void)
{
    char program[PATH_SIZE_BYTES];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(program, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    char path[PATH_SIZE_BYTES + 64];
    (void)snprintf(path, sizeof path, "%s/libonepath_cuda.so", program);
    if (access(path, R_OK) == 0) {
        return true;
    }
    (void)snprintf(path, sizeof path, "%s/../lib/libonepath_cuda.so", program);
    return access(path, R_OK) == 0;
}

/* /dev/nvidia0, /dev/nvidia1, ... */
static uint32_t
count_device_files(const char *root)
{
    char path[PATH_SIZE_BYTES];
    for (uint32_t count = 0;; count++) {
        (void)snprintf(path, sizeof path, "%s/dev/nvidia%u", root, count);
        if (access(path, F_OK) != 0) {
            return count;
        }
    }
}

static void
check_gpu(const char *root, cli_doctor_report_t *report)
{
    bool has_cuda = has_cuda_object();
    const char *build = has_cuda ? "this build has CUDA" : "this build is for the CPU";
    char control[PATH_SIZE_BYTES];
    (void)snprintf(control, sizeof control, "%s/dev/nvidiactl", root);
    bool may_open = access(control, R_OK | W_OK) == 0;
    char *version = read_text(root, "/proc/driver/nvidia/version");
    char driver[160] =
        "unknown"; /* a container may hide the driver's files and give the device's */
    bool has_version = cli_doctor_field(version, "NVRM version", driver, sizeof driver);
    free(version);
    char cards[160];
    uint32_t count = list_cards(root, cards, sizeof cards);
    uint32_t files = count_device_files(root);
    if (!has_version && (!may_open || files == 0)) {
        cli_doctor_line_t *none = cli_doctor_add(report, "gpu", "no NVIDIA driver; %s", build);
        if (has_cuda) {
            cli_doctor_advise(none, CLI_DOCTOR_WARNING,
                              "it will serve on the CPU; a container gets its GPUs by --gpus all");
        }
        return;
    }
    cli_doctor_line_t *line =
        cli_doctor_add(report, "gpu", "%u (%s); driver %.100s; %s", count > 0 ? count : files,
                       count > 0 ? cards : "models not told", driver, build);
    if (!may_open) {
        cli_doctor_advise(line, CLI_DOCTOR_WARNING,
                          "/dev/nvidiactl cannot be opened: start the container with its GPUs "
                          "(--gpus all), or join the group that owns it");
    } else if (!has_cuda) {
        cli_doctor_advise(
            line, CLI_DOCTOR_WARNING,
            "the GPU stays idle: cmake -DONEPATH_CUDA=ON makes a build that has CUDA");
    }
}

void
cli_doctor_check_machine(const char *root, cli_doctor_report_t *report)
{
    check_processors(root, report);
    check_memory(root, report);
    check_limits(root, report);
    check_gpu(root, report);
}
