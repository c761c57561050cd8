/* A disk that takes its time: every fsync and fdatasync of the process waits before it is done, for as many milliseconds
 * as the file says that FILA_SYNC_DELAY_FILE names. Loaded before the C library, by LD_PRELOAD; no part of the product. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void take_time(void) {
    const char *path = getenv("FILA_SYNC_DELAY_FILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    long millis = 0;
    if (!file) return;
    if (fscanf(file, "%ld", &millis) != 1) millis = 0;
    fclose(file);
    if (millis > 0) {
        struct timespec wait = {millis / 1000, millis % 1000 * 1000000L};
        nanosleep(&wait, NULL);
    }
}

int fsync(int fd) {
    take_time();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    take_time();
    return (int)syscall(SYS_fdatasync, fd);
}
