/*
 * A wall clock that a test sets. Loaded before the C library, it adds to the real time what the file says that
 * WALL_CLOCK_FILE names: a number of seconds. Behind it, it counts how often the wall clock was read. All other clocks
 * are as they are.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct cell {
    volatile int64_t seconds;
    int64_t reads;
};

static struct cell *cell;

__attribute__((constructor)) static void open_cell(void) {
    const char *path = getenv("WALL_CLOCK_FILE");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) {
        abort();
    }
    void *page = mmap(NULL, sizeof *cell, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) {
        abort();
    }
    close(file);
    cell = page;
}

static int64_t ahead(void) {
    if (!cell) {
        return 0;
    }
    __atomic_add_fetch(&cell->reads, 1, __ATOMIC_RELAXED);
    return cell->seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += ahead();
    }
    return (int)failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    now->tv_sec = wall.tv_sec;
    now->tv_usec = wall.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    if (out) {
        *out = wall.tv_sec;
    }
    return wall.tv_sec;
}
