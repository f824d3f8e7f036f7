/* run_lock -- the file name and the message texts of a run's lock. */
#include "train/run/run_lock.h"
#include "base/file.h"

static struct lock_words words_for(const char *folder)
{
    return (struct lock_words){
        .writer = "run",
        .output = folder,
        .advice = "choose another folder with --out",
    };
}

enum status run_lock_check(struct env *env, const char *folder)
{
    const struct lock_words words = words_for(folder);
    char *path;
    TRY(path_join(env, folder, "lock", &path));
    enum status st = lock_file_check(env, path, &words);
    mem_free(env, path);
    return st;
}

enum status run_lock_take(struct env *env, const char *folder, struct lock_file **lock)
{
    const struct lock_words words = words_for(folder);
    char *path;
    TRY(path_join(env, folder, "lock", &path));
    enum status st = lock_file_take(env, path, &words, lock);
    mem_free(env, path);
    return st;
}
