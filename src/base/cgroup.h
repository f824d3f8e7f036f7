/* cgroup -- limits of the control group that this process runs in, as containers set them. Linux
 * only. */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

/* CPUs' worth of time that the group may use: 2.5 = two and a half CPUs; 0 = no limit. The least of
 * the group and those around it, by cpu.max (version 2) or cpu.cfs_quota_us (version 1). `root` is
 * the folder that has proc and sys: "" for this machine. */
double cgroup_cpu_quota(const char *root);

#endif
