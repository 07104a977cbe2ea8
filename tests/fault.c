/* Fails one operation on files, the FAULT_AT-th of those whose path begins with FAULT_FILES, with EIO; preloaded into a
 * server. With FAULT_FULL, the disk is full from then on, as long as there is a file of that path: whatever would grow
 * a file fails with ENOSPC.
 * How many operations there were is kept in the file FAULT_COUNT.
 * With FAULT_UNSYNCED, files whose path ends like this are never synced, and nobody is told.
 * With FAULT_UNLOCKED, no folder can be locked, as on NFS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long done, fails_at;
static const char *full;
static int counter = -1;
static char files[PATH_MAX];
static const char *unsynced;

__attribute__((constructor)) static void begin(void) {
    unsynced = getenv("FAULT_UNSYNCED");
    const char *at = getenv("FAULT_AT"), *file = getenv("FAULT_COUNT"), *below = getenv("FAULT_FILES");
    if (!file || !below) return;
    fails_at = at ? atol(at) : 0;
    full = getenv("FAULT_FULL");
    snprintf(files, sizeof files, "%s", below);
    counter = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CREAT, 0600);
    char text[32] = {0};
    /* Several servers of one run count on. */
    if (syscall(SYS_pread64, counter, text, sizeof text - 1, 0) > 0) done = atol(text);
}

static int is_below(const char *path) { return counter >= 0 && !strncmp(path, files, strlen(files)); }

/* Counts an operation. Returns whether it is to fail. */
static int fails(int grows) {
    char text[32];
    pthread_mutex_lock(&lock);
    done++;
    int due = full ? fails_at && done >= fails_at && grows && !access(full, F_OK) : done == fails_at;
    int length = snprintf(text, sizeof text, "%ld\n", done);
    syscall(SYS_pwrite64, counter, text, length, 0);
    pthread_mutex_unlock(&lock);
    if (due) errno = full ? ENOSPC : EIO;
    return due;
}

/* Returns the path of an open file, empty if it has none. */
static const char *path_of(int fd, char path[PATH_MAX]) {
    char link[64];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    errno = before;
    path[length > 0 ? length : 0] = 0;
    return path;
}

static int fails_file(int fd, int grows) {
    char path[PATH_MAX];
    return counter >= 0 && is_below(path_of(fd, path)) && fails(grows);
}

static int is_unsynced(int fd) {
    char path[PATH_MAX];
    if (!unsynced) return 0;
    size_t length = strlen(path_of(fd, path)), end = strlen(unsynced);
    return length >= end && !strcmp(path + length - end, unsynced);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int flock(int fd, int operation) {
    struct stat found;
    if (getenv("FAULT_UNLOCKED") && !fstat(fd, &found) && S_ISDIR(found.st_mode)) {
        errno = EBADF;
        return -1;
    }
    return NEXT(flock)(fd, operation);
}
ssize_t write(int fd, const void *data, size_t size) {
    return fails_file(fd, 1) ? -1 : NEXT(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return fails_file(fd, 1) ? -1 : NEXT(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return fails_file(fd, 1) ? -1 : NEXT(pwrite64)(fd, data, size, at);
}
int fsync(int fd) {
    if (is_unsynced(fd)) return 0;
    return fails_file(fd, 0) ? -1 : NEXT(fsync)(fd);
}
int fdatasync(int fd) {
    if (is_unsynced(fd)) return 0;
    return fails_file(fd, 0) ? -1 : NEXT(fdatasync)(fd);
}
int sync_file_range(int fd, off64_t from, off64_t size, unsigned flags) {
    return fails_file(fd, 0) ? -1 : NEXT(sync_file_range)(fd, from, size, flags);
}
int ftruncate(int fd, off_t size) { return fails_file(fd, 0) ? -1 : NEXT(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return fails_file(fd, 0) ? -1 : NEXT(ftruncate64)(fd, size); }
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    return fails_file(out, 1) ? -1 : NEXT(copy_file_range)(in, from, out, to, size, flags);
}
int rename(const char *from, const char *to) {
    return is_below(to) && fails(0) ? -1 : NEXT(rename)(from, to);
}
