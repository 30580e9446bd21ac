# SPDX-License-Identifier: Apache-2.0
# Finds what the tree is built from, and says in one table what was found and what is off.

find_package(Threads REQUIRED)
set(Boost_USE_STATIC_LIBS ON)
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_path(DDPRUN_TOMLPP_DIR toml++/toml.h REQUIRED)  # header-only: no library to load at start
find_package(ZLIB)
if(DDPRUN_BUILD_TESTS)
  find_package(Catch2 REQUIRED)
  include(Catch)
endif()

# NCCL and CUDA are reached by dlopen; only their headers are used (docs/architecture.md).
set(DDPRUN_NCCL_INCLUDE_DIR "")
set(DDPRUN_CUDA_INCLUDE_DIR "")
if(NOT DDPRUN_WITH_CUDA STREQUAL "OFF")
  find_path(DDPRUN_CUDA_RUNTIME_DIR cuda_runtime_api.h
            HINTS /usr/local/cuda/include ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES include)
  file(GLOB ddprun_wheel_nccl ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl/include)
  find_path(DDPRUN_NCCL_HEADER_DIR nccl.h HINTS /usr/local/cuda/include ${ddprun_wheel_nccl})
  if(DDPRUN_CUDA_RUNTIME_DIR AND DDPRUN_NCCL_HEADER_DIR)
    set(DDPRUN_CUDA_INCLUDE_DIR ${DDPRUN_CUDA_RUNTIME_DIR})
    set(DDPRUN_NCCL_INCLUDE_DIR ${DDPRUN_NCCL_HEADER_DIR})
  elseif(DDPRUN_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DDPRUN_WITH_CUDA=ON, but cuda_runtime_api.h or nccl.h was not found: "
                        "install the CUDA toolkit with NCCL, or use -DDDPRUN_WITH_CUDA=OFF")
  endif()
endif()

include(LibTorch)

function(ddprun_print_summary)
  message(STATUS "ddprun ${PROJECT_VERSION}")
  message(STATUS "  build type   ${CMAKE_BUILD_TYPE}  sanitizers: ${DDPRUN_SANITIZE}")
  message(STATUS "  Boost        ${Boost_VERSION} (${Boost_INCLUDE_DIRS})")
  if(DDPRUN_CUDA_INCLUDE_DIR)
    message(STATUS "  CUDA         ${DDPRUN_CUDA_INCLUDE_DIR}")
    message(STATUS "  NCCL header  ${DDPRUN_NCCL_INCLUDE_DIR}")
  else()
    message(STATUS "  CUDA, NCCL   off (headers not found or DDPRUN_WITH_CUDA=OFF)")
  endif()
  if(DDPRUN_TORCH_FOUND)
    message(STATUS "  LibTorch     ${DDPRUN_TORCH_VERSION} (${DDPRUN_TORCH_DIR})")
  else()
    message(STATUS "  LibTorch     off: ${DDPRUN_TORCH_WHY}")
  endif()
  if(ZLIB_FOUND)
    message(STATUS "  zlib         ${ZLIB_VERSION_STRING}")
  endif()
  message(STATUS "  ccache       ${DDPRUN_CCACHE}")
endfunction()
