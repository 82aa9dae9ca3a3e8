// Makes one file operation of a process fail, or be its last.
//
// Loaded with LD_PRELOAD. Operations that change files below FAULT_DIR (a part of their path) are
// counted from 1: creating and opening for writing, writes, syncs, truncations, renames, removals,
// new directories. Operation number FAULT_AT meets its FAULT_KIND:
//
//   crash    the process ends right after it, as if killed
//   enospc   it fails for lack of space, and so do all later ones that need some
//   eio      it fails once: of a sync, it is refused
//   short    a write stops halfway, and the next one fails for lack of space; others as eio
//
// What happened is written to the file FAULT_LOG: one line when the operation was met.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NEEDS_SPACE = 1, IS_WRITE = 2 };
enum { PROCEED, CUT, CRASH_AFTER };

static atomic_int count, full;
static atomic_char watched[65536];  // by file descriptor

static void* next(const char* name) { return dlsym(RTLD_NEXT, name); }

static int is_below(const char* path) {
    const char* dir = getenv("FAULT_DIR");
    return dir && path && strstr(path, dir);
}

static void tell(const char* what) {
    const char* log = getenv("FAULT_LOG");
    int (*real)(const char*, int, ...) = next("open");
    int fd = log ? real(log, O_CREAT | O_WRONLY | O_APPEND, 0644) : -1;
    if (fd < 0) return;
    dprintf(fd, "%s\n", what);
    close(fd);
}

// The fate of an operation: -1 with errno where it fails.
static int fate(const char* what, int traits) {
    int number = atomic_fetch_add(&count, 1) + 1;
    const char *at = getenv("FAULT_AT"), *kind = getenv("FAULT_KIND");
    if (!at || !kind) return PROCEED;
    if (atomic_load(&full) && traits & NEEDS_SPACE) return errno = ENOSPC, -1;
    if (number != atoi(at)) return PROCEED;
    tell(what);
    if (!strcmp(kind, "crash")) return CRASH_AFTER;
    if (!strcmp(kind, "enospc")) {
        atomic_store(&full, 1);
        return errno = ENOSPC, -1;
    }
    if (!strcmp(kind, "short") && traits & IS_WRITE) {
        atomic_store(&full, 1);
        return CUT;
    }
    return errno = EIO, -1;
}

#define AFTER(result, fate)            \
    if ((fate) == CRASH_AFTER) _exit(137); \
    return result

static int open_file(int (*real)(const char*, int, ...), const char* path, int flags, int mode) {
    int writes = (flags & O_ACCMODE) != O_RDONLY, fated = PROCEED;
    if (writes && is_below(path)) {
        fated = fate("open", flags & O_CREAT ? NEEDS_SPACE : 0);
        if (fated < 0) return -1;
    }
    int fd = real(path, flags, mode);
    if (fd >= 0 && fd < 65536) watched[fd] = is_below(path) != 0;
    AFTER(fd, fated);
}

#define MODE(flags)                                   \
    int mode = 0;                                     \
    if ((flags) & (O_CREAT | O_TMPFILE)) {            \
        va_list list;                                 \
        va_start(list, flags);                        \
        mode = va_arg(list, int);                     \
        va_end(list);                                 \
    }

int open(const char* path, int flags, ...) {
    MODE(flags)
    return open_file(next("open"), path, flags, mode);
}

int open64(const char* path, int flags, ...) {
    MODE(flags)
    return open_file(next("open64"), path, flags, mode);
}

int close(int fd) {
    if (fd >= 0 && fd < 65536) watched[fd] = 0;
    int (*real)(int) = next("close");
    return real(fd);
}

static int is_watched(int fd) { return fd >= 0 && fd < 65536 && watched[fd]; }

ssize_t write(int fd, const void* bytes, size_t size) {
    ssize_t (*real)(int, const void*, size_t) = next("write");
    int fated = is_watched(fd) ? fate("write", NEEDS_SPACE | IS_WRITE) : PROCEED;
    if (fated < 0) return -1;
    ssize_t written = real(fd, bytes, fated == CUT ? size / 2 : size);
    AFTER(written, fated);
}

ssize_t copy_file_range(int in, off64_t* from, int out, off64_t* to, size_t size, unsigned flags) {
    // The caller falls back to reads and writes, which are counted.
    if (is_watched(out)) return errno = EXDEV, -1;
    ssize_t (*real)(int, off64_t*, int, off64_t*, size_t, unsigned) = next("copy_file_range");
    return real(in, from, out, to, size, flags);
}

ssize_t sendfile64(int out, int in, off64_t* from, size_t size) {
    if (is_watched(out)) return errno = EINVAL, -1;
    ssize_t (*real)(int, int, off64_t*, size_t) = next("sendfile64");
    return real(out, in, from, size);
}

ssize_t sendfile(int out, int in, off_t* from, size_t size) {
    if (is_watched(out)) return errno = EINVAL, -1;
    ssize_t (*real)(int, int, off_t*, size_t) = next("sendfile");
    return real(out, in, from, size);
}

#define ON_FILE(name, traits, parameters, arguments)              \
    int name parameters {                                         \
        int (*real) parameters = next(#name);                     \
        int fated = is_watched(fd) ? fate(#name, traits) : PROCEED; \
        if (fated < 0) return -1;                                 \
        int result = real arguments;                              \
        AFTER(result, fated);                                     \
    }

ON_FILE(fsync, 0, (int fd), (fd))
ON_FILE(fdatasync, 0, (int fd), (fd))
ON_FILE(ftruncate, 0, (int fd, off_t size), (fd, size))
ON_FILE(ftruncate64, 0, (int fd, off64_t size), (fd, size))

#define ON_PATH(name, traits, parameters, arguments)                \
    int name parameters {                                           \
        int (*real) parameters = next(#name);                       \
        int fated = is_below(path) ? fate(#name, traits) : PROCEED; \
        if (fated < 0) return -1;                                   \
        int result = real arguments;                                \
        AFTER(result, fated);                                       \
    }

ON_PATH(rename, 0, (const char* path, const char* to), (path, to))
ON_PATH(unlink, 0, (const char* path), (path))
ON_PATH(mkdir, NEEDS_SPACE, (const char* path, mode_t mode), (path, mode))
