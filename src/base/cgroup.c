/* cgroup -- reads
 *
 *     proc/self/cgroup                    "0::/a/b" (version 2), "4:cpu,cpuacct:/a/b" (version 1)
 *     sys/fs/cgroup/a/b/cpu.max           "250000 100000" or "max 100000"
 *     sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us, cpu.cfs_period_us        250000 or -1, 100000
 *
 * and the same of the folders above. A container often sees its own group as the top folder while
 * proc/self/cgroup has the path on the host: folders that do not exist are passed over. */
#include "base/cgroup.h"
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The first two words of a file that are numbers, or as many as there are; how many. */
static int read_numbers(const char *folder, const char *name, double *first, double *second)
{
    char path[PATH_MAX], line[128];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return 0;
    FILE *file = fopen(path, "r");
    bool got = file && fgets(line, sizeof line, file);
    if (file)
        fclose(file);
    return got ? sscanf(line, "%lf %lf", first, second) : 0;
}

/* The limit of one folder; 0 = none. */
static double quota_of(const char *folder)
{
    double granted = 0, period = 0, none;
    if (read_numbers(folder, "cpu.max", &granted, &period) != 2 &&
        (read_numbers(folder, "cpu.cfs_quota_us", &granted, &none) < 1 ||
         read_numbers(folder, "cpu.cfs_period_us", &period, &none) < 1))
        return 0;
    return granted > 0 && period > 0 ? granted / period : 0;
}

/* The least limit of top + path and the folders above it, down to `top`; `least` if none has less. */
static double least_quota(const char *top, const char *path, double least)
{
    char folder[PATH_MAX];
    if (snprintf(folder, sizeof folder, "%s%s", top, path) >= (int)sizeof folder)
        return least;
    for (size_t end = strlen(folder);; end--) {
        bool whole = folder[end] == '\0' || folder[end] == '/';
        folder[end] = '\0';
        double quota = whole ? quota_of(folder) : 0;
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
        if (end <= strlen(top))
            return least;
    }
}

/* Is `name` one of the words of a list with commas? */
static bool is_listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

double cgroup_cpu_quota(const char *root)
{
    char path[PATH_MAX], line[PATH_MAX], top[PATH_MAX];
    double least = 0;
    if (snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= (int)sizeof path)
        return 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        controllers++;
        group[strcspn(group, "\n")] = '\0';
        bool unified = *controllers == '\0';
        if (!unified && !is_listed(controllers, "cpu"))
            continue;
        if (snprintf(top, sizeof top, "%s/sys/fs/cgroup%s", root, unified ? "" : "/cpu") <
            (int)sizeof top)
            least = least_quota(top, group, least);
    }
    if (file)
        fclose(file);
    return least;
}
