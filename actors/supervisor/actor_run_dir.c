#include "actor_run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actor_log.h"

proto_status_t
actor_run_dir_make(const char *path, bool *made)
{
    *made = mkdir(path, 0700) == 0;
    if (!*made && errno != EEXIST) {
        actor_log(ACTOR_LOG_ERROR, "supervisor.run_dir", 0, NULL,
                  "cannot make the run folder '%s': %s; choose another one", path, strerror(errno));
        return STATUS_ERR_CONFIG;
    }
    struct stat info;
    bool ours = lstat(path, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
                (info.st_mode & 077) == 0;
    if (!ours) {
        actor_log(ACTOR_LOG_ERROR, "supervisor.run_dir", 0, NULL,
                  "the run folder '%s' must be a folder of this user with mode 0700", path);
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}

void
actor_run_dir_remove(const char *path, bool made)
{
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        struct stat info;
        /* A child that was killed leaves its socket behind, one with fault points its marker, an
         * executor with a drafter their ring. */
        if (fstatat(dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            (S_ISSOCK(info.st_mode) ||
             (S_ISREG(info.st_mode) && (strncmp(entry->d_name, "armed-", 6) == 0 ||
                                        strcmp(entry->d_name, "draft-ring") == 0)))) {
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    (void)closedir(folder);
    if (made && rmdir(path) != 0) {
        actor_log(ACTOR_LOG_WARN, "supervisor.run_dir", 0, NULL, "the run folder '%s' stays: %s",
                  path, strerror(errno));
    }
}
