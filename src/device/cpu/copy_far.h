/* copy_far -- memory to memory, for what is so long that no cache would keep it.
 *
 * On x86-64 by stores that go past the caches: an ordinary store reads first what it overwrites, so
 * that a copy moves three bytes for one. memcpy does the same, but for single calls of many MiB only,
 * and threads copy in pieces. Elsewhere it is memcpy.
 */
#ifndef DEVICE_CPU_COPY_FAR_H
#define DEVICE_CPU_COPY_FAR_H
#include <stddef.h>

#define COPY_FAR_FROM ((size_t)4 << 20) /* bytes of a whole copy that are worth it */

void copy_far(void *dst, const void *src, size_t bytes);

#endif
