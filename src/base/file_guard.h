/* file_guard -- survives truncation or device failure of mapped files.
 *
 * Reading a page that no longer exists raises SIGBUS, which would kill the process without a
 * message. In a guarded map the handler replaces the rest of the map by zeros and marks it: callers
 * that copied data out call file_map_check (base/file.h) before using it. Other faults go to the
 * previous handler.
 */
#ifndef BASE_FILE_GUARD_H
#define BASE_FILE_GUARD_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

struct file_guard;

/* Guard a map of info->st_size bytes at `data`; NULL when too many maps are guarded. Remove the
 * guard before unmapping. */
struct file_guard *file_guard_add(const void *data, const struct stat *info);
void file_guard_remove(struct file_guard *guard); /* NULL is fine */

/* The state of the map that contains `data`; false = no guarded map does. */
struct file_guard_news {
    bool failed;  /* a read returned zeros ... */
    size_t at;    /* ... from this byte on */
    size_t bytes; /* size of the file when it was mapped */
    dev_t device; /* device and inode identify the file */
    ino_t inode;
};
bool file_guard_look(const void *data, struct file_guard_news *news);

#endif
