/* Adds the seconds in the file $SOJOURN_TEST_CLOCK to the wall clock of a process that preloads this library.
 * The monotonic clock, by which timeouts run, is not changed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile long *seconds;

__attribute__((constructor)) static void open_file(void) {
    const char *path = getenv("SOJOURN_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        seconds = page;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*original)(clockid_t, struct timespec *);
    if (!original)
        original = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = original(clock, time);
    if (result == 0 && clock == CLOCK_REALTIME && seconds)
        time->tv_sec += *seconds;
    return result;
}
