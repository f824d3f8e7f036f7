/* file_guard -- mapped files that become shorter, or whose device fails, while they are read.
 *
 * A read of such a page raises SIGBUS, which would end the process without a word. For files that are
 * guarded the rest of the map becomes zeros instead, and the map is marked: who has copied something
 * out asks file_map_check (base/file.h) before it is used. Faults elsewhere are handled as before.
 */
#ifndef BASE_FILE_GUARD_H
#define BASE_FILE_GUARD_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

struct file_guard;

/* The file's map, of info->st_size bytes; NULL when too many are guarded. Valid until it is removed,
 * before the map is. */
struct file_guard *file_guard_add(const void *data, const struct stat *info);
void file_guard_remove(struct file_guard *guard); /* NULL is fine */

/* What is known of the map that has `data` in it; false where there is none. */
struct file_guard_news {
    bool failed;  /* a read was answered with zeros ... */
    size_t at;    /* ... from this byte on */
    size_t bytes; /* of the file when it was mapped */
    dev_t device; /* which file it is */
    ino_t inode;
};
bool file_guard_look(const void *data, struct file_guard_news *news);

#endif
