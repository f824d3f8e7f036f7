/* resident -- reads /proc/self/status. The system keeps no peak of RssAnon + RssShmem (VmHWM
 * includes file pages), so a caller that wants the peak must ask when usage is highest. */
#include "base/resident.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The value of a line "NAME: 1234 kB", in bytes. */
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
