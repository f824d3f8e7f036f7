/* device_info -- asks the plugin, if available: only the plugin links CUDA. */
#include "device/device_info.h"
#include "base/plugin.h"

void device_cuda_info(struct device_cuda_info *info)
{
    device_cuda_look_fn *look;
    device_nccl_look_fn *look_nccl;
    char why[256];
    *info = (struct device_cuda_info){.gpu_count = 0};
    if (!plugin_look("cuda", DEVICE_CUDA_LOOK, &look, info->missing, sizeof info->missing))
        return;
    look(info);
    if (plugin_look("cuda", DEVICE_NCCL_LOOK, &look_nccl, why, sizeof why))
        info->nccl = look_nccl();
}
