# SPDX-License-Identifier: Apache-2.0
# LibTorch out of the `torch` wheel in .venv (scripts/setup.sh), used as a CPU library: target
# ddprun::libtorch.
# The wheels `torch --no-deps`, nvidia-cuda-runtime and nvidia-cuda-cupti are enough: libtorch_cpu.so
# finds those two libraries through its own RPATH.

# Older versions can't give a stream's handle (DeviceGuardImplInterface::getStreamNativeHandle).
set(ddprun_torch_needed 2.11)

set(DDPRUN_TORCH_FOUND FALSE)
set(DDPRUN_TORCH_WHY "DDPRUN_WITH_TORCH=OFF")
macro(ddprun_no_torch_unless_wanted)
  if(DDPRUN_WITH_TORCH STREQUAL "ON")
    message(FATAL_ERROR "DDPRUN_WITH_TORCH=ON, but ${DDPRUN_TORCH_WHY}")
  endif()
endmacro()
if(DDPRUN_WITH_TORCH STREQUAL "OFF")
  return()
endif()
file(GLOB ddprun_torch_candidates ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
find_path(DDPRUN_TORCH_DIR version.py HINTS ${DDPRUN_TORCH_ROOT} ${ddprun_torch_candidates}
          NO_DEFAULT_PATH)
if(NOT DDPRUN_TORCH_DIR OR NOT EXISTS ${DDPRUN_TORCH_DIR}/lib/libtorch_cpu.so)
  set(DDPRUN_TORCH_WHY "no torch wheel in .venv (scripts/setup.sh installs it; or -DDDPRUN_TORCH_ROOT=…/site-packages/torch)")
  ddprun_no_torch_unless_wanted()
  return()
endif()
file(STRINGS ${DDPRUN_TORCH_DIR}/version.py ddprun_torch_version_line REGEX "^__version__")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" DDPRUN_TORCH_VERSION "${ddprun_torch_version_line}")
if(DDPRUN_TORCH_VERSION VERSION_LESS ddprun_torch_needed)
  set(DDPRUN_TORCH_WHY "LibTorch ${DDPRUN_TORCH_VERSION} in ${DDPRUN_TORCH_DIR} is older than ${ddprun_torch_needed}")
  ddprun_no_torch_unless_wanted()
  return()
endif()

include(LibTorchTarget)
ddprun_add_libtorch(ddprun::libtorch ${DDPRUN_TORCH_DIR})
set(DDPRUN_TORCH_FOUND TRUE)
