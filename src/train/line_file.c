/* line_file.c -- appending lines with O_APPEND and one write each. */
#include "train/line_file.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

struct line_file {
    struct env *env; /* borrowed */
    char *path;
    int fd;
};

enum status line_file_open(struct env *env, const char *path, struct line_file **file)
{
    struct line_file *f;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "line file", sizeof *f, &f));
    f->env = env;
    TRY_OR(undo_self, mem_strdup(env, path, &f->path));
    f->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        st = FAIL(env, IO, "cannot open '%s': %s", path, strerror(errno));
        goto undo_path;
    }
    *file = f;
    return STATUS_OK;
undo_path:
    mem_free(env, f->path);
undo_self:
    mem_free(env, f);
    return st;
}

void line_file_close(struct line_file *file)
{
    if (!file)
        return;
    close(file->fd);
    mem_free(file->env, file->path);
    mem_free(file->env, file);
}

enum status line_file_add(struct line_file *file, const char *line, size_t bytes)
{
    CHECK(bytes > 0 && line[bytes - 1] == '\n');
    while (bytes > 0) {
        ssize_t done = write(file->fd, line, bytes);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return FAIL(file->env, IO, "cannot write '%s': %s", file->path, strerror(errno));
        line += done;
        bytes -= (size_t)done;
    }
    return STATUS_OK;
}
