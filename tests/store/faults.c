/* Lets one system call on files under a folder fail, the way a disk does: preloaded (LD_PRELOAD) into a test's process.
   faults_arm(folder, n, error, lasting): the n-th call that changes something there fails with `error`, a write of
   error 0 writes half; lasting: every call after it, too. faults_disarm() returns the number of calls so far. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[4096];
static volatile long calls, target;
static volatile int armed, fault, persistent;
static volatile int done;

void faults_arm(const char *folder, long n, int error, int lasting) {
    strncpy(root, folder, sizeof root - 1);
    calls = 0; target = n; fault = error; persistent = lasting; done = 0;
    armed = 1;
}
long faults_disarm(void) { armed = 0; return calls; }
int faults_done(void) { return done; }

static int under(const char *path) { return armed && path && !strncmp(path, root, strlen(root)); }
static int fd_under(int fd) {
    char link[64], path[4096];
    if (!armed || fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return under(path);
}
static int due(void) {
    long now = __sync_add_and_fetch(&calls, 1);
    if (now == target || (persistent && target && now > target)) { done = 1; return 1; }
    return 0;
}
#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL return errno = fault ? fault : EIO, -1
#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT))

#define OPEN(name) int name(const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    REAL(name); if (WRITES(flags) && under(path) && due()) FAIL; return real(path, flags, mode); }
OPEN(open)
OPEN(open64)
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    REAL(name); if (WRITES(flags) && under(path) && due()) FAIL; return real(at, path, flags, mode); }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *data, size_t n) {
    REAL(write);
    if (fd_under(fd) && due()) { if (fault || n < 2) FAIL; return real(fd, data, n / 2); }
    return real(fd, data, n);
}
#define PWRITE(name, offset) ssize_t name(int fd, const void *data, size_t n, offset where) { \
    REAL(name); \
    if (fd_under(fd) && due()) { if (fault || n < 2) FAIL; return real(fd, data, n / 2, where); } \
    return real(fd, data, n, where); }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
ssize_t writev(int fd, const struct iovec *parts, int n) {
    REAL(writev);
    if (fd_under(fd) && due()) { if (fault || n < 2) FAIL; return real(fd, parts, n / 2); }
    return real(fd, parts, n);
}
#define ON_FD(name) int name(int fd) { REAL(name); if (fd_under(fd) && due()) FAIL; return real(fd); }
ON_FD(fsync)
ON_FD(fdatasync)
int close(int fd) {
    REAL(close);
    int writes = armed && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY && fd_under(fd);
    int result = real(fd);
    if (writes && due()) FAIL;
    return result;
}
#define ON_PATH(name) int name(const char *path) { REAL(name); if (under(path) && due()) FAIL; return real(path); }
ON_PATH(unlink)
ON_PATH(rmdir)
int unlinkat(int at, const char *path, int flags) {
    REAL(unlinkat); if ((under(path) || fd_under(at)) && due()) FAIL; return real(at, path, flags); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); if (under(path) && due()) FAIL; return real(path, mode); }
#define ON_TWO(name) int name(const char *a, const char *b) { \
    REAL(name); if ((under(a) || under(b)) && due()) FAIL; return real(a, b); }
ON_TWO(rename)
ON_TWO(link)
int renameat(int at, const char *a, int bt, const char *b) {
    REAL(renameat); if ((under(a) || under(b)) && due()) FAIL; return real(at, a, bt, b); }
int renameat2(int at, const char *a, int bt, const char *b, unsigned flags) {
    REAL(renameat2); if ((under(a) || under(b)) && due()) FAIL; return real(at, a, bt, b, flags); }
int linkat(int at, const char *a, int bt, const char *b, int flags) {
    REAL(linkat); if ((under(a) || under(b)) && due()) FAIL; return real(at, a, bt, b, flags); }
int ftruncate(int fd, off_t n) { REAL(ftruncate); if (fd_under(fd) && due()) FAIL; return real(fd, n); }
int ftruncate64(int fd, off64_t n) { REAL(ftruncate64); if (fd_under(fd) && due()) FAIL; return real(fd, n); }
