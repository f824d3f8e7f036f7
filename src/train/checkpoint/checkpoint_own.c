/* checkpoint_own -- recognizes checkpoints by COMPLETE and by file names. */
#include "train/checkpoint/checkpoint_own.h"
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/part_folder.h"
#include "train/checkpoint/checkpoint_list.h"

static bool is_member(const char *name, bool is_folder)
{
    if (is_folder)
        return strcmp(name, "optimizer") == 0;
    return strcmp(name, "state.json") == 0 || strcmp(name, "COMPLETE") == 0 ||
           strcmp(name, PART_FOLDER_MARKER) == 0 || checkpoint_list_is_plain(name) ||
           checkpoint_layout_is_name(name);
}

/* Does the open file contain what sifr writes to COMPLETE? */
static bool is_marker(int fd)
{
    struct stat info;
    char text[CHECKPOINT_MARKER + 1] = "";
    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
           pread(fd, text, sizeof text - 1, 0) > 0 && checkpoint_marker_is(text);
}

bool checkpoint_own_is(const char *path)
{
    bool ours = false;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return false;
    int file = openat(folder, "COMPLETE", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file >= 0) {
        ours = is_marker(file);
        close(file);
    }
    close(folder);
    return ours;
}

enum status checkpoint_own_stranger(struct env *env, const char *path,
                                    char stranger[TREE_PATH_BYTES])
{
    return tree_find_stranger(env, path, is_member, stranger);
}

enum status checkpoint_own_check(struct env *env, const char *path)
{
    char stranger[TREE_PATH_BYTES];
    if (!checkpoint_own_is(path))
        return FAIL(env, CONFIG, "'%s' is kept: it is %s", path,
                    path_is_link(path) ? "a symbolic link, and not a checkpoint that sifr wrote"
                                       : "not a checkpoint that sifr wrote completely");
    TRY(checkpoint_own_stranger(env, path, stranger));
    if (!*stranger)
        return STATUS_OK;
    return FAIL(
        env, CONFIG,
        "'%s' is kept: '%s' in it is not part of the checkpoint; move that file elsewhere to "
        "have old checkpoints removed",
        path, stranger + strlen(path) + 1);
}

enum status checkpoint_own_remove(struct env *env, const char *path)
{
    return tree_remove(env, path, is_member, "COMPLETE");
}
