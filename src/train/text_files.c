/* text_files.c -- mapping the files of a pattern and placing the cut. */
#include "train/text_files.h"
#include <string.h>

/* The first place at or after `from` where a line begins; else, where characters may be cut, a
 * character; else the end. */
static size_t cut_after(const struct file_map *map, size_t from, bool whole_lines)
{
    if (from == 0)
        return 0;
    const uint8_t *newline = memchr(map->data + from - 1, '\n', map->bytes - from + 1);
    size_t cut = newline ? (size_t)(newline - map->data) + 1 : map->bytes;
    if (cut < map->bytes || whole_lines)
        return cut;
    /* The last line has no end, or only the file's own: a continuation byte of UTF-8 is no place
     * to cut. */
    while (from < map->bytes && (map->data[from] & 0xc0) == 0x80)
        from++;
    return from;
}

static void place_cut(struct text_files *files, double split, bool whole_lines)
{
    size_t validation = (size_t)((double)files->bytes * split);
    size_t target = files->bytes - validation, before = 0; /* bytes in the files before */
    for (int i = 0; i < files->count; i++) {
        struct text_file *file = &files->files[i];
        if (before + file->map.bytes <= target)
            file->cut = file->map.bytes;
        else
            file->cut = before >= target ? 0 : cut_after(&file->map, target - before, whole_lines);
        before += file->map.bytes;
    }
}

static enum status map_all(struct env *env, const char *pattern, struct text_files *files)
{
    TRY(path_glob(env, pattern, &files->paths));
    TRY(mem_alloc_array(env, MEM_LOADER, "text files", (size_t)files->paths.count,
                        sizeof *files->files, &files->files));
    for (int i = 0; i < files->paths.count; i++) {
        struct text_file *file = &files->files[i];
        file->path = files->paths.paths[i];
        TRY(file_map_open(env, file->path, &file->map));
        files->bytes += file->map.bytes;
        files->count++;
    }
    if (files->bytes == 0)
        return FAIL(env, FORMAT, "'%s' is empty", pattern);
    return STATUS_OK;
}

enum status text_files_open(struct env *env, const char *pattern, double split, bool whole_lines,
                            struct text_files *files)
{
    struct text_files f = {0};
    enum status st;
    TRY_OR(undo_files, map_all(env, pattern, &f));
    place_cut(&f, split, whole_lines);
    *files = f;
    return STATUS_OK;
undo_files:
    text_files_close(env, &f);
    return st;
}

void text_files_close(struct env *env, struct text_files *files)
{
    for (int i = 0; i < files->count; i++)
        file_map_close(&files->files[i].map);
    mem_free(env, files->files);
    path_list_free(env, &files->paths);
    *files = (struct text_files){0};
}
