#include "cli/token_file.h"
#include "base/file.h"
#include "base/named.h"

enum status token_file_open(struct env *env, const char *path, enum shard_format format,
                            struct shard **shard)
{
    struct file_map map;
    TRY(named_files(env, "", path));
    TRY(file_map_open(env, path, &map));
    bool headed = shard_is_llmc(map.data, map.bytes);
    file_map_close(&map);
    if (headed && format != SHARD_LLMC)
        return FAIL(env, USAGE, "'%s' has a header that tells its format; omit --format", path);
    if (!headed && format == SHARD_LLMC)
        return FAIL(
            env, FORMAT,
            "'%s' has no token shard header; if it holds bare token ids, add --format=u16 or "
            "--format=u32",
            path);
    return shard_open(env, path, format, shard);
}
