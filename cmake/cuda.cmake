# cuda -- libsifr-cuda.so: the CUDA back ends of device and ops, and comm over NCCL.
#
# A plugin that the command loads when a run uses a GPU, so that the command needs neither driver
# nor toolkit (src/base/plugin.h). It is built if nvcc, cuBLASLt and cuDNN are found; NCCL is
# optional. It has its own copies of base and device and exports only its entry points. It is not
# built with SIFR_CUDA=OFF or with sanitizers.

function(sifr_cuda_missing what)
    if(SIFR_CUDA STREQUAL "ON")
        message(FATAL_ERROR "CUDA back ends: ${what}")
    endif()
    message(STATUS "CUDA back ends: not built (${what})")
endfunction()

if(SIFR_CUDA STREQUAL "OFF" OR SIFR_SANITIZE)
    message(STATUS "CUDA back ends: not built (not asked for)")
    return()
endif()

include(CheckLanguage)
set(CMAKE_CUDA_ARCHITECTURES ${SIFR_CUDA_ARCHITECTURES})
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
    sifr_cuda_missing("nvcc is not found; put it in PATH or set CUDACXX")
    return()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# Also search by full name: Python packages have no plain .so links.
set(hints HINTS ${CUDAToolkit_LIBRARY_DIR} $ENV{CUDNN_ROOT} PATH_SUFFIXES lib lib64)
find_library(SIFR_CUBLASLT_LIBRARY NAMES cublasLt libcublasLt.so.13 libcublasLt.so.12 ${hints})
find_path(SIFR_CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(SIFR_CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 ${hints})
find_path(SIFR_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} $ENV{CUDNN_ROOT} PATH_SUFFIXES include)
find_library(SIFR_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} $ENV{NCCL_ROOT} PATH_SUFFIXES lib lib64)
find_path(SIFR_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} $ENV{NCCL_ROOT} PATH_SUFFIXES include)
mark_as_advanced(SIFR_CUBLASLT_LIBRARY SIFR_CUBLASLT_INCLUDE_DIR SIFR_CUDNN_LIBRARY SIFR_CUDNN_INCLUDE_DIR SIFR_NCCL_LIBRARY SIFR_NCCL_INCLUDE_DIR)
if(NOT SIFR_CUBLASLT_LIBRARY OR NOT SIFR_CUBLASLT_INCLUDE_DIR)
    sifr_cuda_missing("cuBLASLt is not found")
    return()
elseif(NOT SIFR_CUDNN_LIBRARY OR NOT SIFR_CUDNN_INCLUDE_DIR)
    sifr_cuda_missing("cuDNN 9, which attention needs, is not found; name its folder in CUDNN_ROOT or CMAKE_PREFIX_PATH")
    return()
endif()
set(SIFR_CUDA_LIBRARIES ${SIFR_CUBLASLT_LIBRARY} ${SIFR_CUDNN_LIBRARY})
set(SIFR_CUDA_INCLUDES ${CUDAToolkit_INCLUDE_DIRS} ${SIFR_CUBLASLT_INCLUDE_DIR} ${SIFR_CUDNN_INCLUDE_DIR})
file(GLOB cuda_sources CONFIGURE_DEPENDS src/device/cuda/*.c src/ops/cuda/*.c src/ops/cuda/*/*.c)
list(APPEND cuda_sources src/ops/ops_tune.c)
file(GLOB cuda_kernels CONFIGURE_DEPENDS src/device/cuda/*.cu src/ops/cuda/*.cu src/ops/cuda/*/*.cu)
set(with_nccl "without NCCL")
if(SIFR_NCCL_LIBRARY AND SIFR_NCCL_INCLUDE_DIR)
    file(GLOB nccl_sources CONFIGURE_DEPENDS src/comm/nccl/*.c)
    list(APPEND cuda_sources ${nccl_sources})
    list(APPEND SIFR_CUDA_LIBRARIES ${SIFR_NCCL_LIBRARY})
    list(APPEND SIFR_CUDA_INCLUDES ${SIFR_NCCL_INCLUDE_DIR})
    set(with_nccl "with NCCL")
    set(SIFR_HAS_NCCL ON)
endif()
message(STATUS "CUDA back ends: toolkit ${CUDAToolkit_VERSION}, cuDNN ${SIFR_CUDNN_LIBRARY}, ${with_nccl}, for ${SIFR_CUDA_ARCHITECTURES}")

# C files have the usual flags; the toolkit's headers are SYSTEM, so that they give no warnings.
add_library(cuda_slots OBJECT ${cuda_sources})
target_link_libraries(cuda_slots PRIVATE sifr_flags)
target_include_directories(cuda_slots SYSTEM PRIVATE ${SIFR_CUDA_INCLUDES})
set_property(SOURCE src/device/cuda/device_cuda.c APPEND PROPERTY COMPILE_DEFINITIONS SIFR_BUILD="${SIFR_BUILD}")

# Kernels: as in C, no contraction and no fast-math, so that a formula gives the same bits in every
# kernel that uses it (a norm and its recomputation). Fused multiply-adds are explicit in the
# source.
#
# Files named *_hopper.cu use instructions of sm_90a, which no other GPU has, not even later ones.
# They are compiled only for sm_90a, whatever SIFR_CUDA_ARCHITECTURES says, and their callers check
# the GPU first.
set(cuda_hopper ${cuda_kernels})
list(FILTER cuda_hopper INCLUDE REGEX "_hopper\\.cu$")
list(FILTER cuda_kernels EXCLUDE REGEX "_hopper\\.cu$")
add_library(cuda_kernels OBJECT ${cuda_kernels})
add_library(cuda_hopper OBJECT ${cuda_hopper})
set_target_properties(cuda_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real)
set(quick "")
if(SIFR_CUDA_QUICK)
    include(CheckCompilerFlag)
    check_compiler_flag(CUDA --Ofast-compile=max SIFR_HAS_FAST_COMPILE)  # nvcc 12.9 or later
    set(quick $<$<BOOL:${SIFR_HAS_FAST_COMPILE}>:--Ofast-compile=max>)
endif()
foreach(kernels cuda_kernels cuda_hopper)
    target_include_directories(${kernels} PRIVATE ${CMAKE_SOURCE_DIR}/src)
    target_compile_options(${kernels} PRIVATE --fmad=false -Xcompiler=-Wall -Werror=all-warnings ${quick})
    set_target_properties(${kernels} PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_VISIBILITY_PRESET hidden)
endforeach()

# An archive, so that only those objects of base and device are linked that the back ends use.
add_library(cuda_base STATIC $<TARGET_OBJECTS:layer_base> $<TARGET_OBJECTS:layer_device>)
add_library(sifr_cuda SHARED $<TARGET_OBJECTS:cuda_slots> $<TARGET_OBJECTS:cuda_kernels> $<TARGET_OBJECTS:cuda_hopper>)
target_link_libraries(sifr_cuda PRIVATE cuda_base ${SIFR_CUDA_LIBRARIES} OpenMP::OpenMP_C Threads::Threads m ${CMAKE_DL_LIBS})
target_link_options(sifr_cuda PRIVATE -Wl,-z,defs -Wl,--as-needed)
# Put the folders of the libraries into the RUNPATH: the toolkit's folder is rarely in the loader's
# path.
set(folders "")
foreach(library IN LISTS SIFR_CUDA_LIBRARIES)
    get_filename_component(folder ${library} DIRECTORY)
    list(APPEND folders ${folder})
endforeach()
list(REMOVE_DUPLICATES folders)
set_target_properties(sifr_cuda PROPERTIES OUTPUT_NAME sifr-cuda LINKER_LANGUAGE CUDA CUDA_RUNTIME_LIBRARY Static
                      INSTALL_RPATH "${folders}" INSTALL_RPATH_USE_LINK_PATH OFF)
install(TARGETS sifr_cuda DESTINATION ${CMAKE_INSTALL_LIBDIR})
