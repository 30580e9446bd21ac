# SPDX-License-Identifier: Apache-2.0
# Sets DDPRUN_BUILT_WITH: the compiler and libraries of the build, which `ddprun --version` prints.

# Sets `result` to the VALUE of "#define NAME VALUE" in a header.
function(ddprun_header_value header name result)
  file(STRINGS ${header} lines REGEX "^#define[ \t]+${name}[ \t]+[0-9]+")
  string(REGEX REPLACE ".*[ \t]([0-9]+).*" "\\1" value "${lines}")
  set(${result} "${value}" PARENT_SCOPE)
endfunction()

set(DDPRUN_BUILT_WITH "CUDA and NCCL: off")
if(DDPRUN_CUDA_INCLUDE_DIR)
  ddprun_header_value(${DDPRUN_CUDA_INCLUDE_DIR}/cuda_runtime_api.h CUDART_VERSION ddprun_cuda)
  math(EXPR ddprun_cuda_major "${ddprun_cuda} / 1000")
  math(EXPR ddprun_cuda_minor "${ddprun_cuda} % 1000 / 10")
  foreach(part MAJOR MINOR PATCH)
    ddprun_header_value(${DDPRUN_NCCL_INCLUDE_DIR}/nccl.h NCCL_${part} ddprun_nccl_${part})
  endforeach()
  set(DDPRUN_BUILT_WITH "CUDA ${ddprun_cuda_major}.${ddprun_cuda_minor}, NCCL ${ddprun_nccl_MAJOR}.${ddprun_nccl_MINOR}.${ddprun_nccl_PATCH}")
endif()
if(DDPRUN_TORCH_FOUND)
  string(APPEND DDPRUN_BUILT_WITH ", LibTorch ${DDPRUN_TORCH_VERSION}")
else()
  string(APPEND DDPRUN_BUILT_WITH ", LibTorch: off")
endif()
string(APPEND DDPRUN_BUILT_WITH ", OpenSSL ${OPENSSL_VERSION}")
