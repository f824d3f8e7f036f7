/* resident -- see the header. The system keeps no high-water mark of these two figures (VmHWM has
 * pages of files in it), so who wants the largest asks when most is held. */
#include "base/resident.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The figure of "NAME:   1234 kB", in bytes. */
static size_t field_bytes(const char *status, const char *name)
{
    const char *at = strstr(status, name);
    return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

size_t resident_bytes(void)
{
    char status[4096];
    int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t bytes = read(file, status, sizeof status - 1);
    close(file);
    if (bytes <= 0)
        return 0;
    status[bytes] = '\0';
    return field_bytes(status, "\nRssAnon:") + field_bytes(status, "\nRssShmem:");
}
